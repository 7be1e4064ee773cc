// Package graft is the engine: for one socket call of a program it decides
// which host socket takes the place of the program's own, with which options
// and which source address, and whether the kernel then carries on with the
// call or the engine has acted on the program's behalf.
//
// It does not know which front end asked, and it enforces nothing: a wrong
// answer, or a program that changes its mind behind the engine's back, meets
// the kernel programs of package policy/enforcer. It needs CAP_SYS_PTRACE over the
// program (to duplicate its descriptors), CAP_NET_BIND_SERVICE, and for Place.Do
// CAP_SYS_ADMIN and CAP_SETUID.
//
// # How a socket gets its place
//
// A socket stays in the namespace in which it was made. So:
//
//   - Where most destinations of the program lie on the host's side (HostFirst), the front end
//     answers socket(2) with a host socket at once. Options, dup, fork and epoll work on it as on
//     any other socket.
//   - bind(2), listen(2) and connect(2) tell in which namespace the socket belongs. If it is in
//     another one, the engine makes a new socket in the right one, copies the state of the old
//     socket, and replaces the program's descriptors: a swap.
//   - The engine makes a bind(2) by a rule, to the host's address. It leaves connect(2) to the
//     kernel, so that blocking, signals and errnos are the kernel's.
package graft

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Engine answers the socket calls of one container. Its methods may be called
// by many goroutines at once; none of them waits for a peer.
type Engine struct {
	Config
	host Place
	now  atomic.Pointer[rules]

	// Constants of the front end, which later rules do not change.
	hostFirst4, hostFirst6 bool

	// defaultValues has, by valuesKey, the defaultValues of a new socket.
	defaultValues sync.Map
	clock         func() time.Time

	// served has the Place of each service.
	served sync.Map

	// namedMu has locks for the states of AF_GRAFT sockets, by cookie. It is nil until there is
	// such a socket, which most containers never have.
	namedMu     *[namedLocks]sync.Mutex
	makeNamedMu sync.Once

	// paths are the sockets that were made in the file system for unix endpoints.
	pathsMu sync.Mutex
	paths   []madeSocket

	// accepting is held while a blocking listener has O_NONBLOCK set.
	accepting sync.Mutex
	// guards are the sockets that hold the ports of second addresses.
	guardsMu sync.Mutex
	guards   map[Port]int

	// own are the sockets that listen in the container's own namespace, by the host's listener.
	ownMu sync.Mutex
	own   map[Port]*ownListener
	// ownRoom has an entry for each marker.
	ownRoom chan struct{}

	relays relays

	// sent remembers, by socket cookie, the UDP sockets whose place was decided
	// by the first datagram.
	sentMu sync.Mutex
	sent   map[uint64]struct{}
}

// sentMax bounds Engine.sent. If more sockets than that send, the engine decides again about some
// of them, which costs time and changes nothing.
const sentMax = 4096

// rules are Rules with data that is derived from them.
type rules struct {
	Rules
	places map[uint64]Place // by cookie, the host's side
}

// call is the engine with the rules that hold during one call, from its beginning to its end.
type call struct {
	*Engine
	*rules
}

// New makes an engine that begins with the rules r.
func New(c Config, r Rules) *Engine {
	e := &Engine{Config: c, host: r.Host[""], clock: time.Now, sent: map[uint64]struct{}{}, guards: map[Port]int{}, own: map[Port]*ownListener{}, ownRoom: make(chan struct{}, markersMax)}
	e.relays.make()
	e.Update(r)
	began := cmp.Or(c.Began, r.Table)
	e.hostFirst4, e.hostFirst6 = HostFirst(began, c.OwnIsLoopback, false), HostFirst(began, c.OwnIsLoopback, true)
	return e
}

// Update makes the engine decide by other rules. A call that is being answered keeps the rules with
// which it began.
func (e *Engine) Update(r Rules) {
	now := &rules{r, map[uint64]Place{}}
	for _, p := range r.Host {
		now.places[p.Cookie()] = p
	}
	for _, p := range r.Former {
		now.places[p.Cookie()] = p
	}
	e.now.Store(now)
	e.sentMu.Lock()
	defer e.sentMu.Unlock()
	clear(e.sent)
}

// Recover restores the state of an earlier engine of the container from the kernel.
func (e *Engine) Recover() error {
	services, err := e.Enforcer.Services()
	if err != nil {
		return err
	}
	e.recoverGuards(services)
	if err := e.recoverPublished(); err != nil {
		return err
	}
	if e.Untrapped {
		return nil // only the kernel programs need the rest
	}
	e.recoverOwn(services)
	places := e.now.Load().places
	for _, s := range services {
		if place := places[s.Netns]; place != nil {
			e.leadPort(service{s.Protocol, s.Port, s.Is4}, place)
		}
	}
	return nil
}

// begin has to be called once for each call that is answered.
func (e *Engine) begin() call { return call{e, e.now.Load()} }

// HostFirst tells whether front ends that are made for a table make sockets of a family on the host's
// side from the start. ownIsLoopback is Config's OwnIsLoopback.
func HostFirst(t *policy.Table, ownIsLoopback, ip6 bool) bool {
	if ownIsLoopback {
		return len(t.Endpoints()) > 0
	}
	return t.Default(ip6) != nil
}

// HostFirst tells whether sockets of a family are made on the host's side from the start. They are
// if a rule led a default route there when the engine was made, or if the container has some rule
// and nothing but a loopback of its own.
func (e *Engine) HostFirst(family int) bool {
	if family == unix.AF_INET6 {
		return e.hostFirst6
	}
	return e.hostFirst4
}

// SeesDatagrams tells whether the front end has to ask about each datagram that is sent to an
// address. It has to if UDP sockets of a family are not created on the host's side, but some
// destinations of that family lie there. ownIsLoopback is Config's OwnIsLoopback.
func SeesDatagrams(t *policy.Table, ownIsLoopback bool) bool {
	return t.HasEgress(false) && !HostFirst(t, ownIsLoopback, false) || t.HasEgress(true) && !HostFirst(t, ownIsLoopback, true)
}

func isTCP(protocol int) bool {
	return protocol == 0 || protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP
}

func isUDP(protocol int) bool { return protocol == 0 || protocol == unix.IPPROTO_UDP }

// reach returns the endpoint of a destination, or nil if none is needed, and its place. Servers
// that an ingress rule has moved to the host are reached on the container's own loopback too: the
// kernel programs lead there. The kernel takes the wildcard for the loopback.
func (e call) reach(s *socket, to netip.AddrPort) (*endpoint.Endpoint, Place) {
	if ep := e.Table.Egress(policy.Protocol(s.kind().Protocol), to); ep != nil {
		return ep, e.Host[ep.Netns]
	}
	if addr := to.Addr().Unmap(); addr.IsLoopback() || addr.IsUnspecified() {
		if place, ok := e.served.Load(service{s.kind().Protocol, to.Port(), addr.Is4()}); ok {
			return nil, place.(Place)
		}
	}
	return nil, e.Own
}

// service is a port that the container serves on the host by an ingress rule.
type service struct {
	protocol int
	port     uint16
	is4      bool
}

// leadPort makes a port of the container's loopback lead to a server on the host. Front ends learn it
// first: an engine that recovers has none of those that its predecessor told.
func (e *Engine) leadPort(s service, place Place) {
	e.Serves(s.port)
	e.Know(Services)
	e.served.Store(s, place)
}

// Connect answers connect(2). The kernel then carries on with the call, on a socket in the
// namespace of the destination.
func (e *Engine) Connect(p Program, number int, to netip.AddrPort) (Answer, error) {
	return e.begin().move(p, "connect", number, to)
}

// Send answers a datagram that is sent to an address, and a TCP Fast Open. The first such call
// decides the socket's place.
func (e *Engine) Send(p Program, number int, to netip.AddrPort) (Answer, error) {
	return e.begin().move(p, "send", number, to)
}

// move moves the socket of a call to the place of its destination.
func (e call) move(p Program, syscall string, number int, to netip.AddrPort) (Answer, error) {
	if e.Untrapped && e.Translator != nil && syscall == "connect" && to.Addr().Is4() {
		return e.connectTranslated(p, number, to)
	}
	if e.Untrapped {
		return Answer{}, nil // the kernel programs lead and report the call
	}
	file, err := p.File(number)
	if err != nil {
		return Answer{}, ignoreBadFile(err)
	}
	defer unix.Close(file)
	s, err := inspect(file)
	if err != nil || !s.movable() {
		return s.again(p), err
	}
	if g, is, err := e.Enforcer.AFGraft(file); err != nil {
		return Answer{}, err
	} else if is {
		return e.leaveFrom(p, number, g)
	}
	if syscall == "send" && s.typ == unix.SOCK_DGRAM && e.decided(s) {
		return Answer{}, nil
	}
	if s.typ == unix.SOCK_DGRAM && e.places[s.netns] != nil && e.Enforcer.BoundByIngress(s.file) {
		return Answer{}, nil // a server answers from its place
	}
	ep, place := e.reach(s, to)
	e.logDecision(p, syscall, number, to, ep)
	if ep != nil && s.local.Addr().Unmap().IsLoopback() && !to.Addr().Unmap().IsLoopback() {
		// On the host, a socket bound to the container's loopback address would be on the host's
		// loopback.
		return fail(unix.EINVAL), nil
	}
	if ep != nil && ep.Type == endpoint.Unix {
		return e.connectUnix(p, number, s, ep)
	}
	inPlace := s.netns == place.Cookie() || (place == e.Own && e.places[s.netns] == nil)
	rebound := syscall == "connect" && e.hasOtherSource(s, ep)
	if inPlace && !rebound {
		return Answer{}, nil
	}
	name := e.nameAt(s, ep, place)
	if syscall == "send" && ep != nil && s.local.Addr().IsUnspecified() {
		// The next datagram may leave by another endpoint.
		name.to = netip.AddrPortFrom(e.clientSource(s), name.to.Port())
	}
	moved, err := e.swap(p, number, s, place, name)
	if err != nil {
		return answerFor(err)
	}
	unix.Close(moved)
	return Answer{}, nil
}

// hasOtherSource tells whether a client's socket is bound on the host already, but not to the
// source address of the endpoint. The kernel programs give an address only to sockets without a
// port.
func (e call) hasOtherSource(s *socket, ep *endpoint.Endpoint) bool {
	if ep == nil || ep.Addr.IsUnspecified() || s.local.Port() == 0 {
		return false
	}
	addr := s.local.Addr()
	if bound, known := e.Enforcer.BoundTo(s.file); known {
		addr = bound.Addr()
	}
	return addr.Unmap() != ep.Addr
}

// hasSources tells whether some endpoint has a source address that is not the host's choice.
func (e call) hasSources() bool {
	return slices.ContainsFunc(e.Table.Endpoints(), func(ep *endpoint.Endpoint) bool {
		return ep.Type != endpoint.Unix && !ep.Addr.IsUnspecified()
	})
}

// nameAt returns the address to which a bound socket is bound in its new place, or the zero value
// for an unbound one. On the host the socket keeps its port only if the kernel chose it and the
// host's kernel could have chosen it: rules decide about all other ports. A socket that was bound
// to a loopback address stays bound to it. The kernel decides what it reaches from there.
func (e call) nameAt(s *socket, ep *endpoint.Endpoint, place Place) rebind {
	addr, port := s.local.Addr(), s.local.Port()
	if port == 0 {
		return rebind{}
	}
	if place == e.Own {
		return rebind{wanted: true, to: s.local}
	}
	if !e.Ephemeral.Contains(port) || !e.Enforcer.AnyPort(s.file) && e.places[s.netns] == nil {
		port = 0
	}
	switch {
	case addr.Unmap().IsLoopback() && (ep == nil || ep.Addr.IsUnspecified()):
	case ep == nil:
		addr = e.clientSource(s)
	default:
		addr = s.shape(ep.Addr)
	}
	return rebind{wanted: true, to: netip.AddrPortFrom(addr, port), view: s.local}
}

// decided tells whether a UDP socket has sent before, and notes that it has sent.
func (e *Engine) decided(s *socket) bool {
	e.sentMu.Lock()
	defer e.sentMu.Unlock()
	_, seen := e.sent[s.cookie]
	if !seen {
		if len(e.sent) >= sentMax {
			clear(e.sent)
		}
		e.sent[s.cookie] = struct{}{}
	}
	return seen
}
