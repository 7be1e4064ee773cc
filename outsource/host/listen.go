package host

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// # Listeners
//
// A program's listener is a vsock socket in the guest, and one of the host's kernel. The host accepts
// a connection and dials the guest. Of each listener there is one dial at a time: the rest waits in the
// kernel's queue, which has the program's backlog.
//
// If the guest refuses, the program's queue is full, or the program has gone: its socket is closed
// without a word to anybody. So the supervisor is asked (wire.Alive). It is also asked when a program
// finds the port taken, or that another one listens there.

// The pauses between dials to a listener whose queue is full.
const (
	againFirst = 5 * time.Millisecond
	againMax   = 500 * time.Millisecond
)

// listen begins to accept.
func (h *handle) listen(backlog int) error {
	h.calls.Lock()
	defer h.calls.Unlock()
	if h.in(listening) { // another backlog
		return h.listenAgain(backlog)
	}
	if !h.in(idle) {
		return unix.EINVAL
	}
	begin := func() error {
		err := finish(h.vm.Engine.Listen(h.program(), int(h.id), backlog))
		if errors.Is(err, errCarryOn) {
			err = h.listenAgain(backlog)
		}
		return err
	}
	err := begin()
	if errors.Is(err, unix.EADDRINUSE) && h.vm.sweep(h) { // one that shares the port listened, and has gone
		err = begin()
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	if h.state == idle {
		h.state = listening
	}
	h.mu.Unlock()
	return h.watch(false, h.acceptAll, func(err error) {
		if err != nil && !h.in(removed) {
			h.vm.Log.Error("accept for a guest", "err", err)
		}
		h.remove()
	})
}

func (h *handle) listenAgain(backlog int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sock < 0 {
		return unix.EBADF
	}
	return unix.Listen(h.sock, backlog)
}

// acceptAll accepts until there is no connection; true says that the listener has ended.
func (h *handle) acceptAll(uintptr) (over bool) {
	for {
		sock, err := h.accept()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		case graft.Lacks(err):
			time.Sleep(againMax)
			continue
		case err != nil:
			if !h.in(removed) {
				h.vm.Log.Error("accept for a guest", "handle", h.id, "err", err)
			}
			return true
		}
		if !h.hand(sock) {
			h.vm.Log.Debug("a guest's server has gone", "handle", h.id)
			return true
		}
	}
}

// accept accepts one connection, without waiting.
func (h *handle) accept() (int, error) {
	h.calls.Lock()
	defer h.calls.Unlock()
	var sock int
	conn, waits, answer, err := h.vm.Engine.Accept(h.program(), int(h.id))
	switch {
	case err != nil:
		return -1, err
	case waits:
		return -1, unix.EAGAIN
	case conn != nil:
		sock = conn.File
	case answer.Action == graft.Fail:
		return -1, answer.Errno
	default:
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.sock < 0 {
			return -1, unix.EBADF
		}
		if sock, _, err = unix.Accept4(h.sock, unix.SOCK_CLOEXEC); err != nil {
			return -1, err
		}
	}
	return sock, unix.SetNonblock(sock, true)
}

// hand gives the guest an accepted connection; false if the listener has gone.
func (h *handle) hand(sock int) bool {
	c, err := h.vm.add(sock, nil)
	if err != nil {
		unix.Close(sock)
		h.vm.Log.Debug("a connection for a guest was dropped", "err", err)
		return true
	}
	for pause := againFirst; ; pause = min(2*pause, againMax) {
		err := c.dial(h)
		switch {
		case err == nil:
			return true
		case errors.Is(err, vsock.ErrRefused) && h.isAlive():
			time.Sleep(pause)
			if !h.in(listening) {
				c.remove()
				return false
			}
		default:
			c.remove()
			return !errors.Is(err, vsock.ErrRefused) && !errors.Is(err, vsock.ErrGone)
		}
	}
}

// alias names a connection in the guest where the host's port does not: by the listener, and by the port.
type alias struct{ listener, port uint32 }

// nameIt notes the name of a handle in the guest.
func (h *handle) nameIt(a alias) {
	h.vm.mu.Lock()
	defer h.vm.mu.Unlock()
	if h.vm.handles[h.id] == h {
		h.alias = a
		h.vm.aliases[a] = h.id
	}
}

// which finds the handle of a name in the guest. The guest may know of a connection before the host does.
func (v *VM) which(a alias) (uint32, error) {
	find := func() uint32 {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.aliases[a]
	}
	if h := v.find(a.listener); find() == 0 && h != nil {
		h.dialing.Lock()
		h.dialing.Unlock() //nolint:staticcheck // the dial is over
	}
	if id := find(); id != 0 {
		return id, nil
	}
	return 0, unix.EBADF
}

// dial joins a connection with one to the guest.
func (h *handle) dial(listener *handle) error {
	listener.dialing.Lock()
	defer listener.dialing.Unlock()
	file, err := h.dup()
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.state = joined
	h.mu.Unlock()
	done := make(chan error, 1)
	s := vsock.Socket{
		File: file, Ended: func() { go h.remove() },
		Named: func(port uint32) { h.nameIt(alias{listener.id, port}) },
	}
	h.vm.guest.Dial(vsock.Stream, wire.DataPort(h.id), wire.DataPort(listener.id), s, func(err error) { done <- err })
	if err = <-done; err != nil {
		unix.Close(file)
	}
	return err
}

// isAlive asks the supervisor whether a program still has the socket of a handle.
func (h *handle) isAlive() bool {
	ctx, cancel := context.WithTimeout(context.Background(), alivePatience)
	defer cancel()
	return h.stream != nil && h.stream.isAlive(ctx, wire.Message{Handle: h.id})
}

// alivePatience is how long a supervisor may take to answer. A program counts as there until its
// supervisor says that it has gone, or has gone itself.
const alivePatience = 5 * time.Second

// isAlive asks about a handle or a UDP port.
func (s *stream) isAlive(ctx context.Context, about wire.Message) bool {
	answer := make(chan bool, 1)
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return false
	}
	s.asked++
	question := s.asked
	s.alive[question] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.alive, question)
	}()
	about.Op, about.ID = wire.Alive, question
	if err := s.write(&about); err != nil {
		s.conn.Close() // the guest does not read
		return false
	}
	select {
	case alive, open := <-answer:
		return alive && open
	case <-ctx.Done():
		return true
	}
}

// hear takes a supervisor's answer.
func (s *stream) hear(m *wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := s.alive[m.ID]; answer != nil && m.Op == wire.Alive {
		answer <- m.Errno == 0
		delete(s.alive, m.ID)
	}
}

// sweep removes servers of the guest whose programs have gone, except one; false if there was none. It
// asks all supervisors at once, and all of them have alivePatience together. So has a sweep that waits
// for another one.
func (v *VM) sweep(except *handle) bool {
	ctx, cancel := context.WithTimeout(context.Background(), alivePatience)
	defer cancel()
	select {
	case v.sweeping <- struct{}{}:
		defer func() { <-v.sweeping }()
	case <-ctx.Done():
		return false
	}
	var some atomic.Bool
	var all sync.WaitGroup
	for s, servers := range v.servers(except) {
		all.Go(func() {
			for _, h := range servers {
				if ctx.Err() == nil && !s.isAlive(ctx, wire.Message{Handle: h.id}) {
					some.Store(true)
					all.Go(h.remove)
				}
			}
		})
	}
	all.Wait()
	return some.Load()
}

// servers returns the handles that may have a port, except one, by their streams. Of a handle that the guest
// does not know yet, it would say that no program has it.
func (v *VM) servers(except *handle) map[*stream][]*handle {
	v.mu.Lock()
	defer v.mu.Unlock()
	servers := map[*stream][]*handle{}
	for _, h := range v.handles {
		if h != except && h.stream != nil && h.told.Load() && (h.in(listening) || h.in(idle)) {
			servers[h.stream] = append(servers[h.stream], h)
		}
	}
	return servers
}

func addrPort(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 0) }
