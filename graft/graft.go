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
// A socket is of the namespace that it was made in, for good. So:
//
//   - socket(2) is answered with a host socket at once, by the front end, where
//     most of what the program can reach lies on the host's side (HostFirst). Such a
//     socket is created there: options, dup, fork and epoll work on it as on any
//     other.
//   - bind(2), listen(2) and connect(2) tell where the socket belongs. If that
//     is not where it is, a new one is made there, everything that the old one
//     was told is copied, and the program's descriptors are replaced: a swap.
//   - bind(2) by a rule is made by the engine, to the host's address; connect(2)
//     is left to the kernel, so that blocking, signals and errnos are its own.
package graft

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

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

	// What the front end was built with, which later rules do not change.
	hostFirst4, hostFirst6 bool

	// defaultValues has, by valuesKey, the values of a new socket.
	defaultValues sync.Map

	// served has, by service, the Place where it is.
	served sync.Map

	// namedMu has, by cookie, who may change what belongs to an AF_GRAFT socket. Most
	// containers have none, nor it.
	namedMu     *[namedLocks]sync.Mutex
	makeNamedMu sync.Once

	// paths are the unix sockets that were made in the file system.
	pathsMu sync.Mutex
	paths   []madeSocket

	// accepting is held while a listener that waits is kept from waiting.
	accepting sync.Mutex
	// guards are the sockets that have the ports of second addresses.
	guardsMu sync.Mutex
	guards   map[Port]int

	// own are the sockets that listen in the container's own namespace, by the host's listener.
	ownMu sync.Mutex
	own   map[Port]*ownListener
	// ownRoom has an entry for each marker.
	ownRoom chan struct{}

	// sent remembers, by socket cookie, the UDP sockets whose place was decided
	// by the first datagram.
	sentMu sync.Mutex
	sent   map[uint64]struct{}
}

// sentMax bounds Engine.sent. Where more sockets than that send, some are
// decided anew, which costs time and changes nothing.
const sentMax = 4096

// rules are Rules with what follows from them.
type rules struct {
	Rules
	places map[uint64]Place // by cookie, the host's side
}

// call is the engine with the rules by which one call is answered, from its
// beginning to its end.
type call struct {
	*Engine
	*rules
}

// New makes an engine that begins with the rules r.
func New(c Config, r Rules) *Engine {
	e := &Engine{Config: c, host: r.Host[""], sent: map[uint64]struct{}{}, guards: map[Port]int{}, own: map[Port]*ownListener{}, ownRoom: make(chan struct{}, markersMax)}
	e.Update(r)
	e.hostFirst4, e.hostFirst6 = hostFirst(r.Table, c.OwnIsLoopback, false), hostFirst(r.Table, c.OwnIsLoopback, true)
	return e
}

// Update makes the engine decide by other rules. A call that is being answered is
// answered by those that it began with.
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

// Recover learns from the kernel what an earlier engine of the container knew.
func (e *Engine) Recover() error {
	services, err := e.Enforcer.Services()
	if err != nil {
		return err
	}
	e.recoverGuards(services)
	if e.Untrapped {
		return nil // the kernel programs alone need the rest
	}
	e.recoverOwn(services)
	places := e.now.Load().places
	for _, s := range services {
		if place := places[s.Netns]; place != nil {
			e.served.Store(service{s.Protocol, s.Port, s.Is4}, place)
		}
	}
	return nil
}

// begin is to be called once for each call that is answered.
func (e *Engine) begin() call { return call{e, e.now.Load()} }

func hostFirst(t *policy.Table, ownIsLoopback, ip6 bool) bool {
	if ownIsLoopback {
		return len(t.Endpoints()) > 0
	}
	return t.Default(ip6) != nil
}

// HostFirst tells whether sockets of a family are made on the host's side from the
// start: where a default route led there when the engine was made, or where the
// container has nothing but a loopback of its own and some rule.
func (e *Engine) HostFirst(family int) bool {
	if family == unix.AF_INET6 {
		return e.hostFirst6
	}
	return e.hostFirst4
}

// SeesDatagrams tells whether the front end has to ask about each datagram that
// is sent to an address: where UDP sockets of a family are not created on the host's
// side but some of that family's destinations lie there. ownIsLoopback is that of
// Config.
func SeesDatagrams(t *policy.Table, ownIsLoopback bool) bool {
	return t.HasEgress(false) && !hostFirst(t, ownIsLoopback, false) || t.HasEgress(true) && !hostFirst(t, ownIsLoopback, true)
}

func isTCP(protocol int) bool {
	return protocol == 0 || protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP
}

func isUDP(protocol int) bool { return protocol == 0 || protocol == unix.IPPROTO_UDP }

// reach tells where a destination lies: the endpoint, or nil where none is
// needed, and the place. The container's own loopback has its servers too that
// an ingress rule has brought to the host: the kernel programs lead there. The
// kernel takes the wildcard for the loopback.
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

// Connect answers connect(2), which the kernel then carries on with, on a socket
// that is where the destination lies.
func (e *Engine) Connect(p Program, number int, to netip.AddrPort) (Answer, error) {
	return e.begin().move(p, "connect", number, to)
}

// Send answers a datagram that is sent to an address, and a TCP Fast Open. The
// first decides about the socket.
func (e *Engine) Send(p Program, number int, to netip.AddrPort) (Answer, error) {
	return e.begin().move(p, "send", number, to)
}

// move brings the socket of a call to where its destination lies.
func (e call) move(p Program, syscall string, number int, to netip.AddrPort) (Answer, error) {
	if e.Untrapped && e.Translator != nil && syscall == "connect" && to.Addr().Is4() {
		return e.connectTranslated(p, number, to)
	}
	if e.Untrapped {
		return Answer{}, nil // the kernel programs lead it, and report it
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
		return Answer{}, nil // a server, which answers from where it is
	}
	ep, place := e.reach(s, to)
	e.logDecision(p, syscall, number, to, ep)
	if ep != nil && s.local.Addr().Unmap().IsLoopback() && !to.Addr().Unmap().IsLoopback() {
		// What is bound to the container's loopback would be the host's there.
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

// hasOtherSource tells whether a client's socket that is bound on the host already
// has not the address from which the endpoint is to be left. The kernel programs
// give an address only to sockets without a port.
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

// hasSources tells whether some endpoint is an address that the host does not
// choose.
func (e call) hasSources() bool {
	return slices.ContainsFunc(e.Table.Endpoints(), func(ep *endpoint.Endpoint) bool {
		return ep.Type != endpoint.Unix && !ep.Addr.IsUnspecified()
	})
}

// nameAt is what a socket that was bound already shall be bound to in its new
// place, or the zero value. On the host it keeps only a port that the kernel chose, and
// if the host's kernel could have: whose any other is, a rule says. One that was bound to
// a loopback address stays so, and reaches from there what the kernel says it does.
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

// decided tells whether a UDP socket has sent before, and notes that it has.
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
