package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/wire"
)

// hostCID is the host's context id.
const hostCID = unix.VMADDR_CID_HOST

// control is the control stream. If it ends, for example because the host's agent starts anew, the
// next call opens another.
type control struct {
	slots chan struct{} // one for each request that waits for its reply

	mu      sync.Mutex // guards what follows; held to write
	file    *os.File   // nil: there is none
	waiting map[uint32]chan *wire.Message
	last    uint32
	own     []netip.Addr // of the guest's own UDP sockets, as the host says
	// given are the handles of a Bind whose socket no program has yet: they count as there.
	given   map[uint32]bool
	binding map[uint16]time.Time // see noteBind
	shared  bool                 // data connections go to one port: see wire.FlagShared

	probe  sync.Mutex               // held for isFree, which takes the port while it looks
	isFree func(handle uint32) bool // a variable for tests
}

// isShared tells whether data connections go to one port of the host's.
func (c *control) isShared() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shared
}

func newControl() *control {
	return &control{slots: make(chan struct{}, wire.RequestsMax), given: map[uint32]bool{}, binding: map[uint16]time.Time{}, isFree: isFree}
}

var errEnded = errors.New("the control stream has ended")

// dial connects to a port of the host. It waits for the answer of the host at most patience.
func dial(port uint32, patience time.Duration) (int, error) {
	for end := time.Now().Add(patience); ; {
		fd, err := dialOnce(port, time.Until(end))
		// A signal, such as Go's own, ends a connect(2) that waits (vsock_connect), and with it the socket's
		// connection.
		if !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return fd, err
		}
	}
}

func dialOnce(port uint32, patience time.Duration) (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, errors.New("this kernel has no vsock; load the module vmw_vsock_virtio_transport")
	}
	if err != nil {
		return -1, fmt.Errorf("make a vsock socket: %w", err)
	}
	if err = setConnectTimeout(fd, patience); err == nil {
		err = unix.Connect(fd, &unix.SockaddrVM{CID: hostCID, Port: port})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// vsockConnectTimeout is SO_VM_SOCKETS_CONNECT_TIMEOUT of linux/vm_sockets.h, at level AF_VSOCK.
const vsockConnectTimeout = 6

func setConnectTimeout(fd int, d time.Duration) error {
	t := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.AF_VSOCK, vsockConnectTimeout, &t); err != nil {
		return fmt.Errorf("set the time to connect: %w", err)
	}
	return nil
}

const helloPatience = 10 * time.Second

// open opens the stream. The caller holds mu.
func (c *control) open() error {
	fd, err := dial(wire.ControlPort, helloPatience)
	if err != nil {
		return fmt.Errorf("connect to the host: %w; run tsugiki guest attach there", err)
	}
	f := os.NewFile(uintptr(fd), "control")
	reply, err := greet(f, fd, helloPatience)
	if err != nil {
		f.Close()
		return err
	}
	c.own = nil
	for _, own := range []netip.Addr{reply.Name.Addr(), reply.Peer.Addr()} {
		if own.IsValid() {
			c.own = append(c.own, own)
		}
	}
	c.file, c.waiting = f, map[uint32]chan *wire.Message{}
	c.shared = reply.Flags&wire.FlagShared != 0
	clear(c.given)
	go c.read(f, c.waiting)
	return nil
}

// greet says Hello by a stream, and returns the host's answer. It waits for it at most patience.
func greet(f *os.File, fd int, patience time.Duration) (*wire.Message, error) {
	hello, err := (&wire.Message{Op: wire.Hello, Number: wire.Version}).Append(nil)
	if err == nil {
		err = setPatience(fd, patience)
	}
	if err == nil {
		_, err = f.Write(hello)
	}
	var reply *wire.Message
	if err == nil {
		reply, err = wire.Read(f)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil, errors.New("the host does not answer; run tsugiki guest attach there")
	case err != nil:
		return nil, err
	case reply.Op != wire.Hello || reply.Number != wire.Version:
		return nil, fmt.Errorf("the host has version %d of the protocol, and the guest version %d; install the same tsugiki in both", reply.Number, wire.Version)
	}
	return reply, setPatience(fd, 0)
}

// setPatience bounds how long a read or a write of a socket may wait; 0: for ever.
func setPatience(fd int, d time.Duration) error {
	t := unix.NsecToTimeval(d.Nanoseconds())
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, name, &t); err != nil {
			return fmt.Errorf("set the time to answer: %w", err)
		}
	}
	return nil
}

// read takes replies, and answers the host's requests, until the stream ends.
func (c *control) read(f *os.File, waiting map[uint32]chan *wire.Message) {
	for {
		m, err := wire.Read(f)
		c.mu.Lock()
		switch {
		case err != nil:
			if c.file == f {
				c.file = nil
			}
			f.Close()
			for _, reply := range waiting {
				close(reply)
			}
			c.mu.Unlock()
			return
		case m.Flags&wire.FlagReply != 0 && waiting[m.ID] != nil:
			if m.Op == wire.Bind && m.Handle != 0 && m.Errno == 0 {
				c.given[m.Handle] = true // before a question about it is read
			}
			waiting[m.ID] <- m
			delete(waiting, m.ID)
		case m.Op == wire.Alive && m.Flags&wire.FlagReply == 0:
			go c.tellAlive(m)
		}
		c.mu.Unlock()
	}
}

// call makes a request, and waits for the reply. An errno in the reply is no error.
func (c *control) call(m *wire.Message) (*wire.Message, error) {
	c.slots <- struct{}{}
	defer func() { <-c.slots }()
	reply := make(chan *wire.Message, 1)
	if err := c.send(m, reply); err != nil {
		return nil, err
	}
	got, ok := <-reply
	if !ok {
		return nil, errEnded
	}
	return got, nil
}

func (c *control) send(m *wire.Message, reply chan *wire.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		if err := c.open(); err != nil {
			return err
		}
	}
	c.last++
	m.ID = c.last
	c.waiting[m.ID] = reply
	return c.write(m)
}

// write writes a message. The caller holds mu.
func (c *control) write(m *wire.Message) error {
	b, err := m.Append(nil)
	if err != nil {
		return err
	}
	if c.file == nil {
		return errEnded
	}
	if _, err := c.file.Write(b); err != nil {
		delete(c.waiting, m.ID)
		return fmt.Errorf("ask the host: %w", err)
	}
	return nil
}

// tellAlive tells the host whether a program has the socket of a handle, or of a UDP port.
func (c *control) tellAlive(m *wire.Message) {
	reply := &wire.Message{Op: wire.Alive, Flags: wire.FlagReply, ID: m.ID, Handle: m.Handle}
	alive := false
	if m.Type == unix.SOCK_DGRAM {
		alive = c.hasDatagrams(uint16(m.Number), m.Flags&wire.Flag6 != 0)
	} else {
		alive = c.hasHandle(m.Handle)
	}
	if !alive {
		reply.Errno = uint32(unix.ENOENT)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.write(reply) // without an answer, the host takes it for gone
}

// hasHandle tells whether a program has the socket of a handle, or will get it. The port is taken as long
// as some process has it.
func (c *control) hasHandle(handle uint32) bool {
	c.mu.Lock()
	given := c.given[handle]
	c.mu.Unlock()
	if given {
		return true
	}
	c.probe.Lock()
	defer c.probe.Unlock()
	return !c.isFree(handle)
}

// isFree tells whether no socket has the port of a handle.
func isFree(handle uint32) bool {
	fd, err := bound(handle)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// got notes that a program has got the socket of a handle, or never will.
func (c *control) got(handle uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.given, handle)
}

// bound makes a vsock socket that has the port of a handle.
func bound(handle uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("make a vsock socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: wire.DataPort(handle)})
	if err == nil {
		err = widen(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind a vsock socket: %w", err)
	}
	return fd, nil
}

// Options of vsock sockets (linux/vm_sockets.h), at level AF_VSOCK. The values are u64.
const (
	vsockBufferSize    = 0
	vsockBufferMaxSize = 2
)

// bufferSize is how many bytes the host may send ahead of the program, for all that the program's kernel
// accepts. It is the guest's memory, and is used only while the program does not read. Linux has 256 KiB,
// and tells the host what was read when three quarters of that were: the host would have to wait for it,
// and then the program for the host.
const bufferSize = 1 << 20

// widen gives a vsock socket, and those that it accepts, room for more bytes.
func widen(fd int) error {
	for _, option := range []int{vsockBufferMaxSize, vsockBufferSize} { // the size is at most the other one
		if err := unix.SetsockoptUint64(fd, unix.AF_VSOCK, option, bufferSize); err != nil {
			return fmt.Errorf("set its buffer's size: %w", err)
		}
	}
	return nil
}
