package graft

import (
	"errors"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// Rules are what an engine decides by. They do not change; others may take their
// place, see Engine.Update.
type Rules struct {
	Table *policy.Table
	// Host has the places of endpoints, by their Netns; "" is the host's.
	Host map[string]Place
	// Former are those that no endpoint has any more, in which the container may
	// still have sockets.
	Former []Place
}

// SocketMaker makes sockets in one network namespace. A *keeper.Keeper is one.
type SocketMaker interface {
	// Socket makes a socket. What the kernel refuses is a *keeper.SocketError.
	Socket(keeper.Kind) (file int, err error)
	// EpollAdd and EpollDel change the registration of a file, under a number that need
	// not be open here, in an epoll.
	EpollAdd(epoll, file, number int, events uint32, data uint64) error
	EpollDel(epoll, file, number int) error
}

// Enforcer has the kernel hold sockets to what the engine decides. A
// *enforcer.Enforcement is one, and says what each method does.
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
	Publishes() bool
	Publish(private uint16, at netip.AddrPort) error
	AnyPort(sock int) bool

	Serve(protocol int, b policy.Binding, netns uint64) error
	Services() ([]policy.Service, error)

	// Cgroup is the id of the one in which the container's host sockets are made.
	Cgroup() uint64

	// Of servers that have an address of each family.
	Steer(netns uint64, in func(func() error) error) error
	Steered(netns uint64, at netip.AddrPort) (bool, error)
	EndSteering(netns uint64, at netip.AddrPort) error

	// Of a container whose loopback is on the host.
	PrivatePort(protocol int, port, lost, offered uint16, inUse func(protocol int) (map[uint16]bool, error)) (uint16, error)
	SharesLoopback(cgroup uint64) bool

	afgraft.Store
}

var _ SocketMaker = (*keeper.Keeper)(nil)

// ErrGone is what the maker of a place is refused with when no endpoint is there
// any more. A call that was about to use it goes on as it is.
var ErrGone = errors.New("no endpoint is in this network namespace any more")

// Config is what an engine works with.
type Config struct {
	Enforcer Enforcer
	// Endpoint finds an endpoint that the container was given; nil if there is
	// none of that name.
	Endpoint func(name string) *endpoint.Endpoint
	// Own is the container's own namespace.
	Own Place
	// Know is called before something comes true of the container on which those rely
	// who answer calls without the engine.
	Know func(Hint)
	// Ports says which ports of the host the container may bind.
	Ports Ports
	// Ephemeral are the ports that the host's kernel gives to whoever asks for
	// none: a client may keep the one that it got of those, where it is free.
	Ephemeral endpoint.PortRange
	// Kept are those that the host's administrator keeps for who names them.
	Kept []endpoint.PortRange
	// OwnIsLoopback says that the container's namespace has nothing but a
	// loopback, so that all else lies on the host's side.
	OwnIsLoopback bool
	// Untrapped says that the container's loopback is on the host, and that the kernel programs
	// alone decide about connects, sends and listens (see NeedsTraps).
	Untrapped bool
	// Translation is that of IPv4, which needs Untrapped.
	Translation
	// Work measures what is done for servers that listen in the container's own namespace too; or it
	// is nil.
	Work *cputime.Meter
	// NoSymlinks has the path of a unix endpoint lead through no symbolic link.
	NoSymlinks bool
	Log        *slog.Logger
}

// Place is a network namespace in which the engine can have sockets made.
type Place interface {
	// Maker returns the maker of sockets, which it starts if need be.
	Maker() (SocketMaker, error)
	// Cookie is the namespace's SO_NETNS_COOKIE.
	Cookie() uint64
	// Do runs fn on a thread of its own that is in the namespace, and ends with fn.
	Do(fn func() error) error
}

// Program is the program's side of one call, as the front end sees it.
type Program interface {
	// Thread is the id of the calling thread, in the front end's pid namespace.
	Thread() int
	// Call is an id of the call, which no other of the container has.
	Call() uint64
	// Again tells that an earlier supervisor may have begun to answer this call.
	Again() bool
	// File returns a duplicate of one of the program's descriptors. One that
	// the program has not open is EBADF.
	File(number int) (int, error)
	// Descriptors lists all descriptors of the program's process that refer to
	// the same file as the duplicate, with their registrations in epolls.
	Descriptors(file int) ([]Descriptor, error)
	// User is the effective user and group of the calling thread.
	User() (uid, gid int, err error)
	// Capable tells whether the calling thread has a capability, in its user namespace.
	Capable(capability int) (bool, error)
	// Install replaces a descriptor of the program by another file.
	Install(number, file int, closeOnExec bool) error
	// Add gives the program a file under a new number, as socket(2) would. Where
	// the program has no room for it, that is the error.
	Add(file int, closeOnExec bool) (number int, err error)
}

// Descriptor is one number under which a program has a file.
type Descriptor struct {
	Number      int
	CloseOnExec bool
	Watches     []Watch
}

// Watch is the registration of a descriptor in an epoll.
type Watch struct {
	Epoll  int // a duplicate, which the receiver has to close
	Events uint32
	Data   uint64
}

// Action is what is to become of a call.
type Action int

// The actions.
const (
	Proceed Action = iota // the kernel carries on with the call
	Fail                  // the call fails with Errno
	Succeed               // the call returns Value
)

// Answer is what the engine says of a call.
type Answer struct {
	Action Action
	Errno  unix.Errno // of Fail: the kernel's own, from a call of the engine
	Value  int        // of Succeed
}

func fail(errno unix.Errno) Answer { return Answer{Action: Fail, Errno: errno} }

// Hint is something that is not so of a container at first. Once it is, it stays so.
type Hint int

// The hints.
const (
	// OwnSockets: a socket has been moved to the container's own namespace. Until the
	// first, sockets that were created on the host first are known to be there.
	OwnSockets Hint = iota
	// Services: the container serves a port on the host. Until then, its loopback is
	// its own alone.
	Services
	// BoundClients: a client's socket is bound on the host where the endpoint that it
	// will connect through may want another source.
	BoundClients
	// AFGraftSockets: the program has got an AF_GRAFT socket.
	AFGraftSockets

	Hints // how many there are
)
