package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

type state int

const (
	idle state = iota
	connecting
	connected
	joined
	failed
	listening
	removed
)

// joinPatience is how long a connected socket waits for its data connection.
const joinPatience = 30 * time.Second

// handle is a socket of a guest's program.
type handle struct {
	vm     *VM
	id     uint32
	stream *stream // whose end ends the handle, unless it is joined

	told atomic.Bool // the guest knows the handle

	calls sync.Mutex // held during a call of the engine or on the socket, which changes neither meanwhile

	mu      sync.Mutex // guards what follows
	state   state
	sock    int // -1 once it is removed
	errno   unix.Errno
	waiting *os.File       // a duplicate that waits in Go's poller: for a connect, or for connections
	data    *vsock.Request // has come before the socket is connected
	late    *time.Timer    // ends a handle that is not joined

	alias   alias      // its name in the guest, if it has one; guarded by vm.mu
	dialing sync.Mutex // of a listener: held while the guest is dialed
}

func (h *handle) in(s state) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state == s
}

// dup returns a duplicate of the socket.
func (h *handle) dup() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sock < 0 {
		return -1, unix.EBADF
	}
	return unix.FcntlInt(uintptr(h.sock), unix.F_DUPFD_CLOEXEC, 0)
}

// replace puts a duplicate of a file in the socket's place.
func (h *handle) replace(file int) error {
	file, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sock < 0 {
		unix.Close(file)
		return unix.EBADF
	}
	unix.Close(h.sock)
	h.sock = file
	return nil
}

// removeAll removes handles. Each may have to wait for its own acceptAll, which may wait for the guest.
func removeAll(list []*handle) {
	var all sync.WaitGroup
	for _, h := range list {
		all.Go(h.remove)
	}
	all.Wait()
}

// remove ends the handle. When it returns, the port of a listener is free.
func (h *handle) remove() {
	h.mu.Lock()
	if h.state == removed {
		h.mu.Unlock()
		return
	}
	h.state = removed
	unix.Close(h.sock)
	h.sock = -1
	waiting, data, late := h.waiting, h.data, h.late
	h.waiting, h.data = nil, nil
	h.mu.Unlock()
	if late != nil {
		late.Stop()
	}
	if waiting != nil {
		waiting.Close()
	}
	if data != nil {
		data.Refuse()
	}
	h.vm.mu.Lock()
	delete(h.vm.handles, h.id)
	if h.vm.aliases[h.alias] == h.id { // a later connection may have the port by now
		delete(h.vm.aliases, h.alias)
	}
	h.vm.mu.Unlock()
	if h.stream != nil {
		h.stream.forget(h.id)
	}
}

// watch has a goroutine wait for the socket. ready is called when the socket may be so; true ends
// the wait. over is called at the end, unless the handle was removed.
func (h *handle) watch(write bool, ready func(file uintptr) bool, over func(error)) error {
	file, err := h.dup()
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(file), "socket") // in the poller, because it does not block
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return err
	}
	h.mu.Lock()
	if h.state == removed {
		h.mu.Unlock()
		f.Close()
		return unix.EBADF
	}
	h.waiting = f
	h.mu.Unlock()
	wait := raw.Read
	if write {
		wait = raw.Write
	}
	go func() {
		err := wait(ready)
		h.mu.Lock()
		mine := h.waiting == f
		if mine {
			h.waiting = nil
		}
		f.Close() // before remove, which does not know of it any more, says that the port is free
		h.mu.Unlock()
		if mine {
			over(err)
		}
	}()
	return nil
}

// begin notes that a connect is under way, and waits for its end.
func (h *handle) begin() error {
	h.mu.Lock()
	h.state, h.errno = connecting, 0
	h.mu.Unlock()
	return h.watch(true, func(file uintptr) bool {
		return !isConnecting(int(file))
	}, func(err error) {
		errno := unix.Errno(0)
		if err == nil {
			errno, err = h.result()
		}
		if err != nil {
			h.vm.Log.Error("wait for a connect of a guest", "err", err)
			h.remove()
			return
		}
		h.settle(errno)
	})
}

// isConnecting tells whether a socket still connects.
func isConnecting(file int) bool {
	list := []unix.PollFd{{Fd: int32(file), Events: unix.POLLOUT}}
	n, err := unix.Poll(list, 0)
	return err == nil && n == 0
}

// result is how the connect has ended.
func (h *handle) result() (unix.Errno, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sock < 0 {
		return 0, unix.EBADF
	}
	value, err := unix.GetsockoptInt(h.sock, unix.SOL_SOCKET, unix.SO_ERROR)
	return unix.Errno(value), err
}

// settle notes how a connect has ended: the data connection is answered, or waited for.
func (h *handle) settle(errno unix.Errno) {
	h.mu.Lock()
	if h.state != connecting && h.state != idle && h.state != failed {
		h.mu.Unlock()
		return
	}
	h.errno = errno
	data := h.data
	h.data = nil
	if errno != 0 {
		h.state = failed
		h.mu.Unlock()
		if data != nil {
			data.Refuse()
		}
		h.vm.noteFailed(h.id)
		return
	}
	h.state = connected
	h.late = time.AfterFunc(joinPatience, func() {
		if h.in(connected) {
			h.remove()
		}
	})
	h.mu.Unlock()
	if data != nil {
		h.request(data)
	}
}

// request takes the data connection.
func (h *handle) request(r *vsock.Request) {
	h.mu.Lock()
	if h.state == connecting && h.data == nil {
		h.data = r
		h.mu.Unlock()
		return
	}
	if h.state != connected {
		h.mu.Unlock()
		r.Refuse()
		return
	}
	h.late.Stop()
	h.state = joined
	h.mu.Unlock()
	file, err := h.dup()
	if err != nil {
		r.Refuse()
		h.remove()
		return
	}
	r.Accept(vsock.Socket{File: file, Ended: func() { go h.remove() }})
}

// program is a handle's program, for the engine. The guest is one subject: who asks in it is nothing to
// the host.
type program struct {
	h    *handle
	call uint64
}

func (h *handle) program() *program { return &program{h, h.vm.calls.Add(1)} }

func (p *program) Thread() int  { return 0 }
func (p *program) Call() uint64 { return p.call }
func (p *program) Again() bool  { return false }

func (p *program) File(number int) (int, error) {
	if number != int(p.h.id) {
		return -1, unix.EBADF
	}
	return p.h.dup()
}

func (p *program) Descriptors(int) ([]graft.Descriptor, error) {
	return []graft.Descriptor{{Number: int(p.h.id)}}, nil
}

func (p *program) User() (uid, gid int, err error) { return p.h.vm.UID, p.h.vm.GID, nil }

// Capable says no: ports of the host are given by rules alone.
func (p *program) Capable(int) (bool, error) { return false, nil }

func (p *program) Install(number, file int, _ bool) error {
	if number != int(p.h.id) {
		return unix.EBADF
	}
	return p.h.replace(file)
}

// Add is for AF_GRAFT, which guests do not have.
func (p *program) Add(int, bool) (int, error) {
	return -1, fmt.Errorf("add a socket to a guest: %w", errors.ErrUnsupported)
}

// names returns the names of the socket and of its peer, as its program sees them. A socket without a peer
// has none.
func (h *handle) names() (own, peer netip.AddrPort, err error) {
	h.calls.Lock()
	defer h.calls.Unlock()
	if own, err = h.name(false); err != nil {
		return own, peer, err
	}
	peer, err = h.name(true)
	if errors.Is(err, unix.ENOTCONN) {
		err = nil
	}
	return own, peer, err
}

func (h *handle) name(peer bool) (netip.AddrPort, error) {
	name, answer, err := h.vm.Engine.Name(h.program(), int(h.id), peer)
	if err != nil || name.IsValid() {
		return name, err
	}
	if answer.Action == graft.Fail {
		return name, answer.Errno
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sock < 0 {
		return name, unix.EBADF
	}
	call := unix.Getsockname
	if peer {
		call = unix.Getpeername
	}
	sa, err := call(h.sock)
	return nameOf(sa), err
}

// nameOf returns an IP name; that of any other socket is the zero value.
func nameOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
