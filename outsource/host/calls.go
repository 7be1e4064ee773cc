package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// stream is a control stream.
type stream struct {
	vm    *VM
	conn  net.Conn
	slots chan struct{} // one for each request that has no reply

	writing sync.Mutex // held to write a message

	mu    sync.Mutex // guards what follows
	mine  map[uint32]*handle
	alive map[uint32]chan bool // questions to the supervisor, by id
	asked uint32
	over  bool
}

func newStream(v *VM, conn net.Conn) *stream {
	return &stream{
		vm: v, conn: conn, slots: make(chan struct{}, wire.RequestsMax),
		alive: map[uint32]chan bool{}, mine: map[uint32]*handle{},
	}
}

// forget takes a handle out of the stream's.
func (s *stream) forget(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mine, id)
}

// serve answers requests until the stream ends, or a fault of ours ends it.
func (s *stream) serve() error {
	defer s.end()
	for {
		m, err := wire.Read(s.conn)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Flags&wire.FlagReply != 0 {
			s.hear(m)
			continue
		}
		select {
		case s.slots <- struct{}{}:
		default:
			return fmt.Errorf("more than %d requests wait for their reply", wire.RequestsMax)
		}
		go func() {
			if err := s.answer(m); err != nil {
				s.vm.Log.Error("request of a guest", "op", m.Op, "err", err)
				s.conn.Close()
			}
		}()
	}
}

// end ends what belongs to the stream.
func (s *stream) end() {
	s.conn.Close()
	s.mu.Lock()
	s.over = true
	var list []*handle
	for _, h := range s.mine {
		list = append(list, h)
	}
	for id, answer := range s.alive {
		close(answer)
		delete(s.alive, id)
	}
	s.mu.Unlock()
	s.vm.datagrams.end(s)
	removeAll(slices.DeleteFunc(list, func(h *handle) bool { return h.in(joined) }))
}

// writePatience bounds how long the guest may leave an answer unread.
const writePatience = 30 * time.Second

// write writes a message. A reply gives its request's slot back before the guest can see it.
func (s *stream) write(m *wire.Message) error {
	b, err := m.Append(nil)
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if m.Flags&wire.FlagReply != 0 {
		<-s.slots
		if h := s.vm.find(m.Handle); h != nil {
			h.told.Store(true) // a question about it comes behind this
		}
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	_, err = s.conn.Write(b)
	return err
}

// answer answers a request. An errno that is an error is the program's; any other error is a fault
// of ours.
func (s *stream) answer(m *wire.Message) error {
	reply := &wire.Message{Op: m.Op, Flags: wire.FlagReply, ID: m.ID, Handle: m.Handle}
	err := s.do(m, reply)
	if errno, is := errnoFor(err); is {
		reply.Errno = uint32(errno)
	} else if err != nil {
		return err
	}
	if err := s.write(reply); err != nil {
		s.conn.Close() // the guest does not read
	}
	return nil
}

func (s *stream) do(m, reply *wire.Message) error {
	if m.Op == wire.Hello {
		reply.Number = wire.Version
		if s.vm.Shared {
			reply.Flags |= wire.FlagShared
		}
		if own := s.vm.Own; own.IsValid() {
			reply.Name = addrPort(own)
		}
		if own := s.vm.Own6; own.IsValid() {
			reply.Peer = addrPort(own)
		}
		return nil
	}
	if m.Type == unix.SOCK_DGRAM {
		return s.datagram(m, reply)
	}
	if m.Op == wire.Bind && !s.vm.Covers(unix.IPPROTO_TCP, m.Name) {
		reply.Flags |= wire.FlagLocal
		return nil
	}
	if m.Op == wire.Which {
		var err error
		reply.Handle, err = s.vm.which(alias{m.Handle, m.Number})
		return err
	}
	h, err := s.handle(m)
	if err != nil {
		return err
	}
	reply.Handle = h.id
	switch m.Op {
	case wire.Connect:
		err = s.connect(h, m)
	case wire.Bind:
		if err = s.bind(h, m); err == nil {
			reply.Name, _, err = h.names()
		}
	case wire.Listen:
		if err = h.listen(int(int32(m.Number))); err == nil {
			reply.Name, _, err = h.names()
		}
	case wire.Names:
		h.mu.Lock()
		reply.Errno = uint32(h.errno)
		h.mu.Unlock()
		reply.Name, reply.Peer, err = h.names()
	case wire.Get:
		reply.Options, err = h.get(m.Options)
	case wire.Set:
		err = h.set(m.Options)
	case wire.Close:
		h.remove()
	default:
		err = unix.EOPNOTSUPP
	}
	if err != nil && m.Handle == 0 && !errors.Is(err, unix.EINPROGRESS) {
		h.remove() // the guest does not know it
	}
	return err
}

// handle finds the handle of a request, or makes one with the options of the program's socket.
func (s *stream) handle(m *wire.Message) (*handle, error) {
	if m.Handle != 0 {
		if h := s.vm.find(m.Handle); h != nil {
			return h, nil
		}
		return nil, unix.EBADF
	}
	if m.Op != wire.Connect && m.Op != wire.Bind || m.Type != unix.SOCK_STREAM {
		return nil, unix.EOPNOTSUPP
	}
	sock, err := s.vm.socket(m)
	if err != nil {
		return nil, err
	}
	h, err := s.vm.add(sock, s)
	if err != nil {
		unix.Close(sock)
		return nil, err
	}
	s.mu.Lock()
	over := s.over
	s.mine[h.id] = h
	s.mu.Unlock()
	if over {
		h.remove()
		return nil, unix.EBADF
	}
	h.setKnown(m.Options)
	return h, nil
}

// finish makes an answer of the engine's an error: nil if the call was made, errCarryOn if the kernel
// has to make it.
func finish(a graft.Answer, err error) error {
	switch {
	case err != nil:
		return err
	case a.Action == graft.Fail:
		return a.Errno
	case a.Action == graft.Proceed:
		return errCarryOn
	}
	return nil
}

var errCarryOn = errors.New("the kernel carries on")

// connect begins a connect. The error is EINPROGRESS while it is under way.
func (s *stream) connect(h *handle, m *wire.Message) error {
	h.calls.Lock()
	defer h.calls.Unlock()
	if !m.Name.IsValid() {
		return unix.EAFNOSUPPORT
	}
	switch {
	case h.in(connecting):
		return unix.EALREADY
	case !h.in(idle) && !h.in(failed):
		return unix.EISCONN
	}
	err := finish(s.vm.Engine.Connect(h.program(), int(h.id), m.Name))
	if errors.Is(err, errCarryOn) {
		h.mu.Lock()
		err = unix.EBADF
		if h.sock >= 0 {
			err = unix.Connect(h.sock, sockaddr.Of(m.Name))
		}
		h.mu.Unlock()
	}
	switch {
	case err == nil:
		h.settle(0)
	case errors.Is(err, unix.EINPROGRESS):
		if err := h.begin(); err != nil {
			return fmt.Errorf("wait for a connect: %w", err)
		}
	}
	return err
}

// bind binds a server by a rule. If the port is taken, it may be by a program that has gone.
func (s *stream) bind(h *handle, m *wire.Message) error {
	h.calls.Lock()
	defer h.calls.Unlock()
	if !h.in(idle) {
		return unix.EINVAL
	}
	bind := func() error {
		err := finish(s.vm.Engine.Bind(h.program(), int(h.id), m.Name))
		if errors.Is(err, errCarryOn) { // the rule has gone
			return unix.EADDRNOTAVAIL
		}
		return err
	}
	err := bind()
	if errors.Is(err, unix.EADDRINUSE) && s.vm.sweep(h) {
		err = bind()
	}
	return err
}
