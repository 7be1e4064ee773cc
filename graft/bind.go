package graft

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Bind answers bind(2). Where a rule names the address, the engine binds the
// endpoint's address on the program's behalf: bind(2) of an IP socket never
// waits. The engine acts on the file that it holds, so it does not matter what
// the program does to its descriptor or its memory meanwhile.
func (e *Engine) Bind(p Program, number int, addr netip.AddrPort) (Answer, error) {
	return e.begin().bind(p, number, addr)
}

func (e call) bind(p Program, number int, addr netip.AddrPort) (Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(file)
	s, err := inspect(file)
	if err != nil || !s.isIP() {
		return s.again(p), err
	}
	if _, is, err := e.Enforcer.AFGraft(file); is || err != nil {
		return fail(unix.EAFNOSUPPORT), err // an AF_GRAFT socket takes only names of endpoints
	}
	if s.is4() != addr.Addr().Is4() {
		return Answer{}, nil
	}
	if !s.movable() || e.bound(s) {
		if e.Enforcer.BoundBy(s.file, p.Call()) {
			return e.bindRepeated(p, s, addr), nil
		}
		return e.bindAgain(s), nil
	}
	rule, err := e.ingress(s, addr)
	if err != nil {
		return Answer{}, err
	}
	ep := rule.Endpoint
	e.logDecision(p, "bind", number, addr, ep)
	if s.translated() && (ep == nil || !ep.Addr.Is6()) {
		if s, err = e.untranslate(p, number, s); err != nil {
			return answerFor(err)
		}
		defer unix.Close(s.file)
	}
	switch {
	case ep != nil && ep.Type == endpoint.Unix:
		return e.listenAtPath(p, number, s, ep)
	case ep != nil && s.is4() && ep.Addr.Is6():
		return e.bind6(p, number, s, rule, addr)
	case ep != nil:
		host := netip.AddrPortFrom(s.shape(ep.Addr), rule.HostPort(addr.Port()))
		b := policy.Binding{Host: host, View: addr, Ingress: true, Rule: rule.Number, Call: p.Call()}
		return e.bindAt(p, number, s, e.Host[ep.Netns], e.bothFamilies(s, b, ep))
	case e.places[s.netns] == nil: // a socket of the container's own namespace, to an address there
		return Answer{}, e.Enforcer.NoteAnyPort(s.file, addr.Port() == 0)
	case e.Untrapped:
		return e.bindOnLoopback(p, s, addr)
	case addr.Port() == 0 && addr.Addr().Unmap().IsUnspecified():
		// Any address, any port: clients bind so before they connect. If the socket listens after
		// all, Listen moves it.
		if e.hasSources() {
			e.Know(BoundClients)
		}
		return e.bindAnyClient(p, number, s, policy.Binding{View: addr, Call: p.Call()})
	}
	moved, err := e.swap(p, number, s, e.Own, rebind{})
	if err != nil {
		return answerFor(err)
	}
	unix.Close(moved)
	return Answer{}, nil
}

// ingress finds the rule for the address that a socket binds. The wildcard of an IPv6 socket that
// is not V6ONLY stands for the IPv4 wildcard as well. A rule for any address covers any address of
// the container: all other addresses are left to the kernel to refuse.
func (e call) ingress(s *socket, addr netip.AddrPort) (none policy.Ingress, err error) {
	unmapped := netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	protocol := policy.TCP
	if s.typ == unix.SOCK_DGRAM {
		protocol = policy.UDP
	}
	r := e.Table.IngressRule(protocol, unmapped)
	if r.Endpoint == nil && addr.Addr() == netip.IPv6Unspecified() && !s.v6only() {
		r = e.Table.IngressRule(protocol, netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()))
	}
	if r.Endpoint == nil || unmapped.Addr().IsUnspecified() || unmapped.Addr() == r.Endpoint.Addr || e.Table.Names(unmapped.Addr()) {
		return r, nil
	}
	has, err := e.has(unmapped.Addr())
	if !has {
		return none, err
	}
	return r, nil
}

// has tells whether an address is one of the container's own namespace.
func (e *Engine) has(addr netip.Addr) (bool, error) {
	k, err := e.Own.Maker()
	if err != nil {
		return false, err
	}
	kind := keeper.Kind{Family: unix.AF_INET6, Type: unix.SOCK_DGRAM, Protocol: unix.IPPROTO_UDP}
	if addr.Is4() {
		kind.Family = unix.AF_INET
	}
	probe, err := k.Socket(kind)
	if err != nil {
		return false, err
	}
	defer unix.Close(probe)
	return unix.Bind(probe, sockaddr.Of(netip.AddrPortFrom(addr, 0))) == nil, nil
}

// bound tells whether a socket has a port. After a connection was reset, a TCP socket shows the
// port for long although it has lost it.
func (e call) bound(s *socket) bool {
	if s.local.Port() == 0 {
		return false
	}
	return s.typ == unix.SOCK_DGRAM || e.places[s.netns] == nil || e.Enforcer.Bound(s.file)
}

// bindAgain is the answer for a socket that has a name already or is in use. A bind(2) on a host
// socket must not reach the kernel programs then, because they would refuse it with another errno
// than the kernel does.
func (e call) bindAgain(s *socket) Answer {
	if e.places[s.netns] == nil {
		return Answer{}
	}
	return fail(unix.EINVAL)
}

// clientSource picks a source address for a socket that has no destination yet: the address of the
// endpoints, if all have the same. A socket without a source address gets one when it connects, and
// the kernel programs give one to each of its datagrams. A socket that can reach both families gets
// the wildcard: once it is bound to an IPv6 address, the kernel makes it V6ONLY.
func (e call) clientSource(s *socket) netip.Addr {
	any := netip.IPv6Unspecified()
	if s.is4() {
		any = netip.IPv4Unspecified()
	}
	ep := e.Table.Default(!s.is4())
	if !s.is4() && !s.v6only() || ep == nil || ep.Type == endpoint.Unix {
		return any
	}
	for _, other := range e.Table.Endpoints() {
		if other.Type == ep.Type && other.Addr != ep.Addr {
			return any
		}
	}
	return s.shape(ep.Addr)
}

// bindAnyClient binds a host socket to port 0. The socket moves to the container's namespace if it
// connects there or listens, and has to keep its port then. So if the port is taken there,
// bindAnyClient replaces the socket by one with a port that is free in both.
func (e call) bindAnyClient(p Program, number int, s *socket, b policy.Binding) (Answer, error) {
	place := e.places[s.netns]
	b.Host = netip.AddrPortFrom(e.clientSource(s), 0)
	answer, err := e.bindAt(p, number, s, place, b)
	if err != nil || answer.Action != Succeed {
		return answer, err
	}
	name, err := localName(s.file)
	if err != nil || name.Port() == 0 { // IP_BIND_ADDRESS_NO_PORT
		return answer, err
	}
	at := privatePort(e.Own, s.kind().Protocol, name.Port())
	if _, err := claimIn(e.Own, at); !errors.Is(err, unix.EADDRINUSE) {
		return answer, nil
	}
	any := privatePort(place, s.kind().Protocol, 0)
	for range privateTries {
		port, err := claimIn(e.Own, any)
		if err != nil || !e.chooses(any, port) {
			break
		}
		to := netip.AddrPortFrom(b.Host.Addr(), port)
		moved, err := e.swap(p, number, s, place, rebind{wanted: true, exact: true, to: to, view: b.View, call: b.Call})
		if err == nil {
			unix.Close(moved)
			break
		}
		e.Log.Debug("port is taken", "pid", p.Thread(), "fd", number, "port", port, "err", err)
	}
	return answer, nil // at worst the port changes when the socket moves
}

// chooses tells whether the host's kernel might choose a port for the container's sockets.
func (e *Engine) chooses(at Port, port uint16) bool {
	return e.Ephemeral.Contains(port) && !e.keeps(port) && !e.Ports.Reserved(at, endpoint.PortRange{First: port, Last: port})
}

// bindAt binds a socket of the place and gives it to the program.
func (e call) bindAt(p Program, number int, s *socket, place Place, b policy.Binding) (Answer, error) {
	file := s.file
	if s.netns == place.Cookie() {
		if err := e.bindHost(file, place, b); err != nil {
			return answerFor(err)
		}
	} else {
		moved, err := e.swap(p, number, s, place, rebind{wanted: true, exact: true, to: b.Host, second: b.Second, view: b.View, ingress: b.Ingress, rule: b.Rule, secondRule: b.SecondRule, call: b.Call})
		if err != nil {
			return answerFor(err)
		}
		defer unix.Close(moved)
		file = moved
	}
	if b.Ingress {
		e.serveAll(p, file, s.kind().Protocol, place, b)
	}
	return Answer{Action: Succeed}, nil
}

// serveAll calls serve for each address of a server.
func (e call) serveAll(p Program, file, protocol int, place Place, b policy.Binding) {
	for _, host := range []netip.AddrPort{b.Host, b.Second} {
		if !host.IsValid() {
			continue
		}
		b.Host = host
		if err := e.serve(file, protocol, place, b); err != nil {
			// Remote clients reach the server all the same.
			e.Log.Error("server not reachable on the container's loopback", "pid", p.Thread(), "addr", b.View, "err", err)
		}
	}
}

// serve lets the container reach on its loopback a server that was bound on the host.
func (e *Engine) serve(file, protocol int, place Place, b policy.Binding) error {
	name, err := localName(file)
	if err != nil {
		return err
	}
	// If the port was 0, the kernel has chosen one.
	b.View = netip.AddrPortFrom(b.View.Addr(), name.Port())
	if b.Host.Port() == 0 {
		b.Host = netip.AddrPortFrom(b.Host.Addr(), name.Port())
	}
	if !e.Untrapped {
		e.leadPort(service{protocol, b.View.Port(), b.Host.Addr().Unmap().Is4()}, place)
	}
	return e.Enforcer.Serve(protocol, b, place.Cookie())
}

// reuse has the options by which a socket shares its port. For UDP sockets, the kernel programs
// hold these back until a rule lets the socket bind (bpf/held.h). Then they have to be set again.
type reuse struct{ addr, port int }

func reuseOf(file int) reuse {
	addr, _ := unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	port, _ := unix.GetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	return reuse{addr, port}
}

// apply sets the options. If the kernel refuses them, the bind fails when the port is taken.
func (r reuse) apply(file int) {
	if r.addr != 0 {
		_ = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, r.addr)
	}
	if r.port != 0 {
		_ = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEPORT, r.port)
	}
}

func (r reuse) undo(file int) {
	if r != (reuse{}) {
		_ = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		_ = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
	}
}

// bindHost binds a socket of the place.
func (e *Engine) bindHost(file int, place Place, b policy.Binding) error {
	if b.Ingress {
		return e.bindServer(file, place, b)
	}
	if err := e.bindAllowed(file, b, reuse{}); err != nil || b.Host.Port() != 0 {
		return err
	}
	_, err := e.allowChosen(file, b)
	return err
}

// allowChosen tells the kernel programs the port of a socket that was bound to port 0.
func (e *Engine) allowChosen(file int, b policy.Binding) (uint16, error) {
	name, err := localName(file)
	if err != nil {
		return 0, err
	}
	b.Host = netip.AddrPortFrom(b.Host.Addr(), name.Port())
	return name.Port(), e.Enforcer.AllowBind(file, b)
}

// bindAllowed tells the kernel programs to allow one bind, and makes the bind.
func (e *Engine) bindAllowed(file int, b policy.Binding, share reuse) error {
	if err := e.Enforcer.AllowBind(file, b); err != nil {
		return err
	}
	share.apply(file)
	if err := unix.Bind(file, sockaddr.Of(b.Host)); err != nil {
		share.undo(file)
		ferr := e.Enforcer.ForgetBind(file)
		share.apply(file)
		if ferr != nil {
			return ferr
		}
		return refusal(err)
	}
	return nil
}

// Listen answers listen(2). The engine calls listen(2) itself on the file that it holds. When an
// unbound socket listens, the kernel binds it to any address of its namespace and to a port of the
// kernel's choice, without any bind program. That must not happen to a host socket. Only a socket
// that an ingress rule has bound may listen on the host. Any other is moved to the container's own
// namespace first.
//
// A socket that is not IP is left to the kernel, which writes the caller's identity into a unix
// socket. If the program puts a host socket in its place meanwhile, the kernel programs make that
// listener unreachable.
//
// Where the container's loopback is on the host, an unbound listener is reached only there, and
// the kernel carries on with the call.
func (e *Engine) Listen(p Program, number, backlog int) (Answer, error) {
	if e.Untrapped {
		return Answer{}, nil
	}
	return e.begin().listen(p, number, backlog)
}

func (e call) listen(p Program, number, backlog int) (Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(file)
	s, err := inspect(file)
	if err != nil || !s.isIP() || s.typ != unix.SOCK_STREAM {
		return Answer{}, err
	}
	if _, is, err := e.Enforcer.AFGraft(file); err != nil {
		return Answer{}, err
	} else if is && (s.local.Port() == 0 || !e.Enforcer.BoundByIngress(s.file)) {
		return fail(unix.EADDRNOTAVAIL), nil
	}
	listener := s.file
	var own *ownListener
	onHost := e.places[s.netns] != nil && s.movable()
	serves := onHost && s.local.Port() != 0 && e.Enforcer.BoundByIngress(s.file)
	if serves {
		if may, err := e.mayListen(s); !may {
			return fail(unix.EADDRINUSE), err
		}
		e.steerListener(s, s.local)
		if own, err = e.openOwn(s, backlog); err != nil {
			return answerFor(err)
		}
	}
	if onHost && !serves {
		moved, err := e.swap(p, number, s, e.Own, e.nameAt(s, nil, e.Own))
		if err != nil {
			return answerFor(err)
		}
		defer unix.Close(moved)
		listener = moved
	}
	e.Log.Debug("listen", "pid", p.Thread(), "fd", number, "addr", s.local)
	err = unix.Listen(listener, backlog)
	own.serve() // if listen has failed, it ends with the first connection
	if err != nil {
		return answerFor(refusal(err))
	}
	return Answer{Action: Succeed}, nil
}
