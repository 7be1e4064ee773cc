package graft

import (
	"errors"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Rules are the rules of an engine. They do not change, but Engine.Update can replace them.
type Rules struct {
	Table *policy.Table
	// Host has the places of endpoints, by the endpoints' Netns; "" is the host's.
	Host map[string]Place
	// Former are places without an endpoint, in which the container may still have sockets.
	Former []Place
}

// SocketMaker makes sockets in one network namespace. A *keeper.Keeper is one.
type SocketMaker interface {
	// Socket makes a socket. If the kernel refuses, the error is a *keeper.SocketError.
	Socket(keeper.Kind) (file int, err error)
	// EpollAdd and EpollDel change the registration of a file in an epoll, under a number that need
	// not be open here.
	EpollAdd(epoll, file, number int, events uint32, data uint64) error
	EpollDel(epoll, file, number int) error
}

// Enforcer makes the kernel enforce the engine's decisions. A *enforcer.Enforcement is one, and its
// methods are documented there.
type Enforcer interface {
	Prove(sock int) error

	AllowBind(sock int, b policy.Binding) error
	ForgetBind(sock int) error
	Bound(sock int) bool
	BoundTo(sock int) (netip.AddrPort, bool)
	BoundBy(sock int, call uint64) bool
	BoundByIngress(sock int) bool
	NoteAnyPort(sock int, chosen bool) error
	NoteTranslated(sock int) error
	StandIn(sock int, port uint16, own, peer netip.AddrPort) error
	Publishes() bool
	Publish(private uint16, at netip.AddrPort) error
	Published() ([]netip.AddrPort, error)
	AnyPort(sock int) bool

	Serve(protocol int, b policy.Binding, netns uint64) error
	Services() ([]policy.Service, error)

	// Cgroup returns the id of the cgroup in which the container's host sockets are made.
	Cgroup() uint64
	Mark() uint32
	// Sourced tells whether a rule of the container has, or has had, sources.
	Sourced() bool

	// For servers that have an address of each family.
	Steer(netns uint64, in func(func() error) error) error
	Steered(netns uint64, at netip.AddrPort) (bool, error)
	EndSteering(netns uint64, at netip.AddrPort) error

	// For a container whose loopback is on the host.
	PrivatePort(protocol int, port, lost, offered uint16, inUse func(protocol int) (map[uint16]bool, error)) (uint16, error)
	IsPrivate(protocol int, port uint16) bool
	SharesLoopback(cgroup uint64) bool

	afgraft.Store
}

var _ SocketMaker = (*keeper.Keeper)(nil)

// ErrGone is the error of Maker for a place without an endpoint. A call that was about to use the
// place goes on unchanged.
var ErrGone = errors.New("no endpoint is in this network namespace any more")

// Config has the dependencies and constants of an engine.
type Config struct {
	Enforcer Enforcer
	// Endpoint returns the container's endpoint of a name; nil if there is none.
	Endpoint func(name string) *endpoint.Endpoint
	// Own is the container's own namespace.
	Own Place
	// Know is called before a Hint becomes true for the container. Gates and shims, which answer
	// calls without the engine, rely on it.
	Know func(Hint)
	// Serves is called before a port of the container's loopback leads to the host, and before the Hint
	// Services.
	Serves func(port uint16)
	// Ports says which ports of the host the container may bind.
	Ports Ports
	// Ephemeral are the ports that the host's kernel gives to sockets that ask for none. A client
	// that moves may keep a port of these, if it is free.
	Ephemeral endpoint.PortRange
	// Kept are the ports that the host's administrator keeps for programs that name them.
	Kept []endpoint.PortRange
	// Began is the table for which the container's front ends were made. It is nil if that is the table
	// of the first rules.
	Began *policy.Table
	// OwnIsLoopback says that the container's namespace has only a loopback, so that all else lies
	// on the host's side.
	OwnIsLoopback bool
	// Untrapped says that the container's loopback is on the host, and that the kernel programs
	// alone decide about connects, sends and listens (see NeedsTraps).
	Untrapped bool
	// Translation translates IPv4. It needs Untrapped.
	Translation
	// Work measures the CPU time used for servers that listen in the container's own namespace too.
	// It may be nil.
	Work *cputime.Meter
	// NoSymlinks refuses symbolic links in the paths of unix endpoints.
	NoSymlinks bool
	Log        *slog.Logger
}

// Place is a network namespace in which the engine can have sockets made.
type Place interface {
	// Maker returns the maker of sockets, and starts it if necessary.
	Maker() (SocketMaker, error)
	// Cookie is the namespace's SO_NETNS_COOKIE.
	Cookie() uint64
	// Addresses returns the addresses of the namespace's links.
	Addresses() ([]netip.Addr, error)
	// ListenerAt returns the TCP socket that would take a connection to an address, if there is one.
	ListenerAt(netip.AddrPort) (s netns.Socket, found bool, err error)
	// Do runs fn on a thread of its own that is in the namespace and ends with fn.
	Do(fn func() error) error
	// In runs fn on a thread that is in the namespace. fn must change nothing of its thread.
	In(fn func() error) error
}

// Program is the program's side of one call, as the front end sees it.
type Program interface {
	// Thread is the id of the calling thread, in the front end's pid namespace.
	Thread() int
	// Call is the id of the call. No other call of the container has it.
	Call() uint64
	// Again tells that an earlier supervisor may have begun to answer this call.
	Again() bool
	// File returns a duplicate of one of the program's descriptors. The error is EBADF if the
	// program does not have it open.
	File(number int) (int, error)
	// Descriptors lists all descriptors of the program's process that refer to
	// the same file as the duplicate, with their registrations in epolls.
	Descriptors(file int) ([]Descriptor, error)
	// User returns the effective user and group of the calling thread.
	User() (uid, gid int, err error)
	// Capable tells whether the calling thread has a capability, in its user namespace.
	Capable(capability int) (bool, error)
	// Install replaces a descriptor of the program by another file.
	Install(number, file int, closeOnExec bool) error
}

// Descriptor is one number under which a program has a file.
type Descriptor struct {
	Number      int
	CloseOnExec bool
	Watches     []Watch
}

// Watch is the registration of a descriptor in an epoll.
type Watch struct {
	Epoll  int // a duplicate; the receiver has to close it
	Events uint32
	Data   uint64
}

// Action says how a call goes on.
type Action int

// The actions.
const (
	Proceed Action = iota // the kernel carries on with the call
	Fail                  // the call fails with Errno
	Succeed               // the call returns Value
	// Give: the call returns a new descriptor of File. Whoever answers the call closes File. Both are one step
	// for the program: else a signal in between leaves it a descriptor that it does not know of.
	Give
)

// Answer is the engine's answer to a call.
type Answer struct {
	Action Action
	Errno  unix.Errno // of Fail: the kernel's errno for a call of the engine
	Value  int        // of Succeed
	File   int        // of Give
}

func fail(errno unix.Errno) Answer { return Answer{Action: Fail, Errno: errno} }

// Hint is a fact about a container. It is false at first, and stays true once it is true.
type Hint int

// The hints.
const (
	// OwnSockets: a socket has been moved to the container's own namespace. Until then, all sockets
	// that were created on the host first are still there.
	OwnSockets Hint = iota
	// Services: the container serves a port on the host. Until then, no destination on its loopback
	// leads to the host.
	Services
	// BoundClients: a client's socket is bound on the host, and the endpoint through which it will
	// connect may need another source address.
	BoundClients
	// AFGraftSockets: the program has got an AF_GRAFT socket.
	AFGraftSockets
	// Expects: a listener of the program may get a marker (expect.go).
	Expects

	Hints // the number of hints
)
