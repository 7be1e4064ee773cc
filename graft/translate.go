package graft

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// # Translated sockets
//
// A program that knows IPv4 only sees IPv6 hosts under virtual addresses. If the program connects
// to one, or binds an address that a rule leads to an IPv6 address, an IPv6 socket replaces its TCP
// socket: a translated socket. The kernel programs show its domain (SO_DOMAIN) as AF_INET, which
// its name contradicts. By this contradiction the engine recognizes it, whichever process has it.
// The engine answers the names of the socket and of its peers. Rules are for the IPv6 addresses,
// and the kernel enforces them.

// Translator knows the virtual addresses of a container. A *translate.Table is one.
type Translator interface {
	// V6 returns the IPv6 address for a virtual one.
	V6(v4 netip.Addr) (v6 netip.Addr, known bool)
	// Map returns the virtual address of an IPv6 host. The address stays in use for ttl from now
	// on.
	Map(v6 netip.Addr, ttl time.Duration) (v4 netip.Addr, err error)
}

// Translation is what an engine needs to translate IPv4. The zero value translates nothing.
type Translation struct {
	Translator Translator
	// Own is the container's IPv4 address, which stands for each address of the host.
	Own netip.Addr
	// Opened returns the endpoint by which name rules have opened an address and port of TCP; nil if
	// they have not. It is nil if there are no name rules. The kernel programs judge each connect all
	// the same.
	Opened func(to netip.AddrPort) *endpoint.Endpoint
	// Nobody stands for peers that have no virtual address. Programs reach nothing by it.
	Nobody netip.Addr
	// Gateway rewrites messages that name addresses. It may be nil.
	Gateway Gateway
}

// resolverPort is where the kernel programs lead questions for names to the container's DNS proxy.
const resolverPort = 53

// connectTranslated answers connect(2) to an IPv4 address. The engine
// begins to connect, without waiting. Then the kernel carries on with the call: on a socket that is
// connecting, connect(2) waits and does not look at the address. So blocking, signals and errnos
// are the kernel's.
func (e call) connectTranslated(p Program, number int, to netip.AddrPort) (Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(file)
	s, err := inspect(file)
	if err != nil || !s.is4() || s.typ != unix.SOCK_STREAM || e.places[s.netns] == nil {
		return Answer{}, err
	}
	if !s.movable() {
		return s.connectBegun(p)
	}
	if to.Addr().IsLoopback() || to.Addr().IsUnspecified() || to.Port() == resolverPort {
		return e.connectUntranslated(p, number, s)
	}
	v6, known := e.Translator.V6(to.Addr())
	if !known {
		return e.connectUntranslated(p, number, s)
	}
	if s.translated() {
		if err := unix.Connect(s.file, sockaddr.Of(to)); !errors.Is(err, unix.EINVAL) {
			// The program does not know yet that a connect has failed. Else the kernel refuses an IPv4 address.
			return answerFor(refusal(err))
		}
	}
	to6 := netip.AddrPortFrom(v6, to.Port())
	ep := e.Table.Egress(policy.TCP, to6)
	if ep == nil && e.Translation.Opened != nil {
		ep = e.Translation.Opened(to6)
	}
	e.logTranslated(p, number, to, to6, ep)
	if ep == nil || ep.Netns != "" {
		return fail(unix.ENETUNREACH), nil
	}
	if e.isRelayed(to.Port()) {
		return e.connectRelayed(p, number, s, to, to6)
	}
	return e.connectBy6(p, number, s, ep, to6)
}

// connectBegun answers connect(2) on a socket that connects or is connected. The kernel reads no address then. If the
// call was begun before, and its answer was lost, it gets that answer.
func (s *socket) connectBegun(p Program) (Answer, error) {
	switch {
	case !p.Again(), s.state == tcpListen:
	case s.state == unix.BPF_TCP_SYN_SENT:
		flags, err := unix.FcntlInt(uintptr(s.file), unix.F_GETFL, 0)
		if err != nil {
			return Answer{}, fmt.Errorf("read file flags: %w", err)
		}
		if flags&unix.O_NONBLOCK != 0 {
			return fail(unix.EINPROGRESS), nil // the kernel would say EALREADY
		}
	case s.translated():
		return Answer{Action: Succeed}, nil // the kernel would say EISCONN
	}
	return Answer{}, nil
}

// connectUntranslated is the answer for a destination that is no virtual address: the kernel
// programs decide. They need an IPv4 socket for that.
func (e call) connectUntranslated(p Program, number int, s *socket) (Answer, error) {
	if !s.translated() {
		return Answer{}, nil
	}
	if e.bound(s) {
		return fail(unix.ENETUNREACH), nil
	}
	s, err := e.untranslate(p, number, s)
	if err != nil {
		return answerFor(err)
	}
	unix.Close(s.file)
	return Answer{}, nil
}

// untranslate replaces a translated socket that has no name by an IPv4 socket: one that the preloaded
// library has taken from its pool, or one that has failed to connect. The caller closes the file of
// the new socket.
func (e call) untranslate(p Program, number int, s *socket) (*socket, error) {
	file, err := e.swap(p, number, s, e.host, rebind{})
	if err != nil {
		return nil, err
	}
	if s, err = inspect(file); err != nil {
		unix.Close(file)
	}
	return s, err
}

// connectBy6 begins to connect an IPv6 socket, and replaces s by it. If the connection is refused
// at once, s stays.
func (e call) connectBy6(p Program, number int, s *socket, ep *endpoint.Endpoint, to netip.AddrPort) (Answer, error) {
	flags, err := unix.FcntlInt(uintptr(s.file), unix.F_GETFL, 0)
	if err != nil {
		return Answer{}, fmt.Errorf("read file flags: %w", err)
	}
	file, err := e.make6(s, e.nameAt(s, ep, e.host))
	if err != nil {
		return answerFor(err)
	}
	defer unix.Close(file)
	if _, err := unix.FcntlInt(uintptr(file), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		return Answer{}, fmt.Errorf("keep connect from waiting: %w", err)
	}
	begun := unix.Connect(file, sockaddr.Of(to))
	if begun != nil && !errors.Is(begun, unix.EINPROGRESS) {
		return answerFor(refusal(begun))
	}
	if err := copyFlags(s, file); err != nil {
		return Answer{}, err
	}
	if err := e.install6(p, number, s, file); err != nil {
		return answerFor(err)
	}
	switch {
	case begun == nil:
		return Answer{Action: Succeed}, nil
	case flags&unix.O_NONBLOCK != 0:
		return fail(unix.EINPROGRESS), nil
	}
	return Answer{}, nil
}

// bind6 binds an IPv6 socket to the address that a rule gives an IPv4 program, and replaces s by
// it.
func (e call) bind6(p Program, number int, s *socket, rule policy.Ingress, view netip.AddrPort) (Answer, error) {
	at := netip.AddrPortFrom(rule.Endpoint.Addr, rule.HostPort(view.Port()))
	if s.typ != unix.SOCK_STREAM {
		return e.publish(p, s, at, view)
	}
	file, err := e.make6(s, rebind{wanted: true, exact: true, to: at, view: view, ingress: true, rule: rule.Number, call: p.Call()})
	if err != nil {
		return answerFor(err)
	}
	defer unix.Close(file)
	if err := e.install6(p, number, s, file); err != nil {
		return answerFor(err)
	}
	return Answer{Action: Succeed}, nil
}

// bindOwn4 binds a socket to the container's IPv4 address, which no link of the host has. The socket
// is bound to the wildcard, and the program sees the address.
func (e call) bindOwn4(p Program, s *socket, addr netip.AddrPort) error {
	b := policy.Binding{Host: netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()), View: addr, Call: p.Call()}
	if addr.Port() == 0 {
		return e.bindHost(s.file, e.places[s.netns], b)
	}
	if err := e.mayBind(p, addr.Port()); err != nil {
		return err
	}
	return e.bindPrivate(s, b)
}

// make6 makes an IPv6 socket with the state of s.
func (e call) make6(s *socket, name rebind) (int, error) {
	k, err := e.host.Maker()
	if err != nil {
		return -1, err
	}
	file, err := k.Socket(keeper.Kind{Family: unix.AF_INET6, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	if err == nil {
		err = e.Enforcer.NoteTranslated(file)
	}
	if err == nil {
		err = e.prepare(s, file, e.host, name)
	}
	if err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

func (e call) install6(p Program, number int, s *socket, file int) error {
	k, err := e.host.Maker()
	if err != nil {
		return err
	}
	if err := e.replaceAll(p, k, number, s, file); err != nil {
		return err
	}
	e.Log.Debug("translated", "pid", p.Thread(), "fd", number)
	return nil
}

// Name returns the IPv4 name of a program's translated socket, or of its peer, and a zero answer.
// For any other socket it returns Proceed and no name: the kernel knows the name.
func (e *Engine) Name(p Program, number int, peer bool) (netip.AddrPort, Answer, error) {
	file, err := p.File(number)
	if err != nil {
		return netip.AddrPort{}, Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(file)
	s, err := inspect(file)
	if err != nil || !s.translated() {
		return netip.AddrPort{}, Answer{}, err
	}
	if !peer {
		return e.ownName(s.local), Answer{}, nil
	}
	to, err := nameByCall(unix.SYS_GETPEERNAME, file)
	if err != nil {
		answer, err := answerFor(refusal(err))
		return netip.AddrPort{}, answer, err
	}
	return e.peerName4(to), Answer{}, nil
}

// ownName returns the IPv4 name of an address of the host. For a bound socket, the kernel programs
// show the address that the program asked for.
func (e *Engine) ownName(at netip.AddrPort) netip.AddrPort {
	addr := at.Addr().Unmap()
	switch {
	case addr == netip.IPv6Unspecified():
		addr = netip.IPv4Unspecified()
	case addr.Is6():
		addr = e.Translation.Own
	}
	return netip.AddrPortFrom(addr, at.Port())
}

// peerName4 returns the IPv4 name of a peer: its virtual address. The name is Nobody if the peer is the
// host, which has no virtual address, or if all virtual addresses are in use.
func (e *Engine) peerName4(peer netip.AddrPort) netip.AddrPort {
	if peer.Addr().Is4In6() { // by the kernel programs, or of the container's loopback
		return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	}
	v4, err := e.Translator.Map(peer.Addr(), 0)
	if err != nil {
		v4 = e.Nobody
	}
	return netip.AddrPortFrom(v4, peer.Port())
}

// PeerName returns the IPv4 name of a peer, by the name that the kernel has for it.
func (e *Engine) PeerName(peer netip.AddrPort) netip.Addr { return e.peerName4(peer).Addr() }

// NameSocket returns the UDP socket of a DNS proxy, for ServeNames. The caller closes it.
func (e *Engine) NameSocket() (udp int, err error) {
	return e.makeOwn(unix.SOCK_DGRAM, unix.IPPROTO_UDP)
}

// ServeNames binds the socket of NameSocket to port 53 of the container's loopback on the host, and
// returns a TCP socket that listens there. The caller closes it. From the bind on, the kernel
// programs let datagrams for virtual addresses leave: whoever translates them must be there.
func (e *Engine) ServeNames(udp int) (tcp int, err error) {
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), resolverPort)
	if tcp, err = e.makeOwn(unix.SOCK_STREAM, unix.IPPROTO_TCP); err != nil {
		return -1, err
	}
	if err = e.bindOwn(tcp, at); err == nil {
		err = unix.Listen(tcp, unix.SOMAXCONN)
	}
	if err == nil {
		err = e.bindOwn(udp, at)
	}
	if err != nil {
		unix.Close(tcp)
		return -1, fmt.Errorf("listen at %s: %w", at, err)
	}
	return tcp, nil
}

// makeOwn makes an IPv6 socket of the engine, which may be bound for IPv4 too.
func (e *Engine) makeOwn(typ, protocol int) (int, error) {
	k, err := e.host.Maker()
	if err != nil {
		return -1, err
	}
	file, err := k.Socket(keeper.Kind{Family: unix.AF_INET6, Type: typ, Protocol: protocol})
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// bindOwn binds a socket of the engine to a port of the container's loopback on the host.
func (e *Engine) bindOwn(file int, at netip.AddrPort) error {
	s, err := inspect(file)
	if err != nil {
		return err
	}
	return e.begin().bindPrivate(s, policy.Binding{Host: at, View: at})
}

// translated tells whether the socket is an IPv6 socket that replaces an IPv4 socket.
func (s *socket) translated() bool { return s.family == unix.AF_INET && s.local.Addr().Is6() }
