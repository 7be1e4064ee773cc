// Package host is the host's front end for the sockets of a guest: it answers the requests of
// package wire by the engine that containers have, and joins the sockets with vsock connections.
//
// It decides nothing about destinations and ports: the engine does, and the kernel programs at the
// guest's cgroup enforce it. It makes no sockets but by the engine's SocketMaker. It needs what
// package graft needs.
//
// # Theory of operation
//
// A VM has a table of handles. A handle is a program's descriptor for the engine, which may replace
// its socket by another. It goes through these states:
//
//	idle        made, perhaps bound                → connecting, listening
//	connecting  the kernel connects                → connected, failed
//	connected   waits for its data connection      → joined
//	joined      the device moves its bytes         → removed, when the connection ends
//	failed      waits for someone who asks why     → connecting; removed, when many fail
//	listening   each connection becomes a handle   → removed
//
// A control stream is a net.Conn: the VM accepts it with one end of a socket pair. Each request is
// answered by a goroutine of its own. A connect that waits takes none. The reader of a stream never
// waits for them, because they may wait for an answer of the supervisor's, which it reads: a stream with
// more requests than wire.RequestsMax ends. When the stream ends, its handles that are not joined end with it.
package host

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// Limits of a guest.
const (
	handlesMax = 8192
	failedMax  = 1024 // handles whose connect has failed and that nobody has asked about
	streamsMax = 64   // control streams
)

// Engine is the part of *graft.Engine that a guest needs. Its methods are documented there.
type Engine interface {
	Connect(p graft.Program, number int, to netip.AddrPort) (graft.Answer, error)
	Send(p graft.Program, number int, to netip.AddrPort) (graft.Answer, error)
	Bind(p graft.Program, number int, addr netip.AddrPort) (graft.Answer, error)
	Listen(p graft.Program, number, backlog int) (graft.Answer, error)
	Accept(p graft.Program, number int) (c *graft.Connection, waits bool, answer graft.Answer, err error)
	Name(p graft.Program, number int, peer bool) (netip.AddrPort, graft.Answer, error)
}

var _ Engine = (*graft.Engine)(nil)

// Config has what a VM depends on.
type Config struct {
	Engine Engine
	// Maker returns who makes the guest's sockets, in its cgroup.
	Maker func() (graft.SocketMaker, error)
	// Covers tells whether a rule covers what a guest's server of a protocol (IPPROTO_TCP, IPPROTO_UDP)
	// binds. What no rule covers stays in the guest.
	Covers func(protocol int, at netip.AddrPort) bool
	// UID and GID are those of the VMM. Unix sockets of endpoints see them.
	UID, GID int
	// Own is the IPv4 address of a guest's own UDP sockets, and Own6 the IPv6 address. It is not valid
	// where no rule leads to IPv6 hosts.
	Own, Own6 netip.Addr
	// Virtual returns the address by which programs know a host that the kernel names in the error of a
	// datagram. It is nil where both are the same.
	Virtual func(netip.Addr) netip.Addr
	// Shared says that the guest has no data ports of the host but DataPort(0): see package stream.
	Shared bool
	Log    *slog.Logger
}

// VM has the sockets of one guest. It is a vsock.Handler.
type VM struct {
	Config
	guest vsock.Guest
	calls atomic.Uint64
	// sweeping is full while a sweep is under way.
	sweeping  chan struct{}
	datagrams datagrams

	mu      sync.Mutex // guards what follows
	handles map[uint32]*handle
	aliases map[alias]uint32 // handles by the names that they have in the guest
	last    uint32           // handle that was given
	failed  []uint32
	streams int
	over    bool
}

// New returns a VM whose connections a guest has.
func New(c Config, g vsock.Guest) *VM {
	v := &VM{
		Config: c, guest: g, handles: map[uint32]*handle{}, aliases: map[alias]uint32{}, sweeping: make(chan struct{}, 1),
		// Sockets of the guest may have handles of an earlier process.
		last: rand.Uint32N(wire.HandleMax),
	}
	v.datagrams.vm, v.datagrams.ports, v.datagrams.ending = v, map[portKey]*port{}, map[portKey]chan struct{}{}
	v.datagrams.change.L = &v.datagrams.mu
	return v
}

// Close ends all handles.
func (v *VM) Close() {
	v.mu.Lock()
	v.over = true
	var list []*handle
	for _, h := range v.handles {
		list = append(list, h)
	}
	v.mu.Unlock()
	v.datagrams.close()
	removeAll(list)
}

// Request implements vsock.Handler.
func (v *VM) Request(r *vsock.Request) {
	if handle, is := wire.HandleOf(r.To); is && r.Type == vsock.Stream {
		if h := v.find(handle); h != nil {
			h.request(r)
			return
		}
	}
	if r.To == wire.ControlPort && r.Type == vsock.Stream {
		go v.control(r)
		return
	}
	if r.To == wire.DatagramPort && r.Type == vsock.Stream {
		go v.datagrams.serve(r)
		return
	}
	r.Refuse()
}

// control serves a control stream.
func (v *VM) control(r *vsock.Request) {
	if !v.enter() {
		v.Log.Debug("guest has too many control streams")
		r.Refuse()
		return
	}
	defer v.leave()
	conn, theirs, err := streamPair()
	if err != nil {
		v.Log.Error("control stream of a guest", "err", err)
		r.Refuse()
		return
	}
	r.Accept(vsock.Socket{File: theirs})
	if err := newStream(v, conn).serve(); err != nil {
		v.Log.Debug("control stream of a guest has ended", "err", err)
	}
}

func (v *VM) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || v.streams >= streamsMax {
		return false
	}
	v.streams++
	return true
}

func (v *VM) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.streams--
}

// streamPair returns the ends of a connection: for us, and for the device.
func streamPair() (net.Conn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a socket pair: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "control")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, err
	}
	return conn, fds[1], nil
}

// errFull says that the guest has too many handles.
var errFull = errors.New("the guest has too many sockets")

// add gives a socket a handle, and owns the socket unless it fails.
func (v *VM) add(sock int, s *stream) (*handle, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || len(v.handles) >= handlesMax {
		return nil, errFull
	}
	for used := true; used; {
		v.last = v.last%wire.HandleMax + 1
		_, used = v.handles[v.last]
	}
	h := &handle{vm: v, id: v.last, stream: s, sock: sock}
	v.handles[h.id] = h
	return h, nil
}

func (v *VM) find(id uint32) *handle {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.handles[id]
}

// noteFailed lets go of the oldest of too many failed handles.
func (v *VM) noteFailed(id uint32) {
	v.mu.Lock()
	v.failed = append(v.failed, id)
	var old *handle
	if len(v.failed) > failedMax {
		old, v.failed = v.handles[v.failed[0]], v.failed[1:]
	}
	v.mu.Unlock()
	if old != nil && old.in(failed) {
		old.remove()
	}
}

// socket makes a socket of a guest's program.
func (v *VM) socket(m *wire.Message) (int, error) {
	maker, err := v.Maker()
	if err != nil {
		return -1, err
	}
	kind := keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP}
	if m.Flags&wire.Flag6 != 0 {
		kind.Family = unix.AF_INET6
	}
	sock, err := maker.Socket(kind)
	if err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(sock, true); err != nil {
		unix.Close(sock)
		return -1, err
	}
	return sock, nil
}
