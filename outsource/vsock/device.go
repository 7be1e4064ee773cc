package vsock

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
)

// Limits of a device.
const (
	connsMax    = 4096      // connections of a guest
	wideWindows = 256       // so many connections at once have windowWide
	windowWide  = 256 << 10 // bytes that a connection's guest may send ahead
	windowSmall = 16 << 10
	repliesMax  = 256 // resets that wait for the guest
	txBatch     = 64  // packets that are handled before others have their turn
	turnsMax    = 64
	owedMax     = 64 // turns of the thread after which the driver is told what was sent
	chainsMax   = 32 // buffers of the guest that one call fills

	dialPatience    = 10 * time.Second // for the guest's answer
	lingerPatience  = time.Minute      // for a peer that does not read what a guest had sent before it closed
	messagePatience = 10 * time.Second // for the rest of a VMM's message
)

// Rings of the device. The third is for the event that says that all connections are gone. QEMU keeps that
// ring for itself.
const (
	rxQueue = iota
	txQueue
	eventQueue
	queueCount
)

// Device is the vsock device of one guest.
type Device struct {
	cid     uint64
	handler Handler
	counts  *Counters
	meter   *cputime.Meter // of the thread; may be nil
	vmm     *net.UnixConn
	vmmFile int
	epoll   int
	wake    int // an eventfd

	mu     sync.Mutex
	posted []func() // guarded by mu
	over   bool     // guarded by mu: the thread takes no more

	// The rest belongs to the thread.
	memory   memory
	queues   [queueCount]queue
	features uint64
	replier  int // SET_SLAVE_REQ_FD; -1: none
	conns    map[key]*conn
	bySock   map[int]*conn
	count    int // connections with a socket or a request, also lingering ones
	wide     int // of those, with windowWide
	timed    int // of those, dialing or lingering
	ready    []*conn
	starved  []*conn // wait for more buffers of the guest
	replies  []header
	ending   bool
	owed     int  // turns since the driver was not told what was sent
	resumed  bool // the driver has used the rings with another device, and was not told so
	known    *known
	toldOf   []key        // connections of whose end the guest is being told
	keeper   Keeper       // may be nil
	begin    func() error // what the thread does first; may be nil
	leaving  bool
	expired  time.Time // when expire last looked

	// Scratch memory of the thread.
	chain  chain
	chains [chainsMax]chain
	parts  [][]byte
	sizes  []int
	iov    []unix.Iovec
}

// Serve speaks with a VMM over a connection until the VMM ends, Close is called, or the guest breaks
// the rules. It closes the connection. started is called before the first connection.
func Serve(vmm *net.UnixConn, cid uint64, started func(*Device) Handler) error {
	d := newDevice(vmm, cid)
	var err error
	if d.known, err = newKnown(); err != nil {
		d.free()
		return err
	}
	return d.serve(started)
}

func newDevice(vmm *net.UnixConn, cid uint64) *Device {
	d := &Device{
		cid: cid, vmm: vmm, vmmFile: -1, epoll: -1, wake: -1, replier: -1,
		counts: &Counters{}, conns: map[key]*conn{}, bySock: map[int]*conn{},
	}
	for i := range d.queues {
		d.queues[i].kick, d.queues[i].call = -1, -1
	}
	return d
}

func (d *Device) serve(started func(*Device) Handler) error {
	defer d.free()
	if err := d.prepare(); err != nil {
		return err
	}
	d.handler = started(d)
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends
		var err error
		d.meter.Follow(func() { err = d.run() })
		ended <- err
	}()
	return <-ended
}

func (d *Device) prepare() (err error) {
	raw, err := d.vmm.SyscallConn()
	if err == nil {
		// The thread waits in its own epoll, and makes the calls.
		cerr := raw.Control(func(fd uintptr) { d.vmmFile, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, cerr)
	}
	if err == nil {
		err = unix.SetNonblock(d.vmmFile, false) // see read
	}
	if err == nil {
		patience := unix.NsecToTimeval(messagePatience.Nanoseconds())
		err = unix.SetsockoptTimeval(d.vmmFile, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	}
	if err == nil {
		d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	if err == nil {
		d.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		err = errors.Join(d.watch(d.vmmFile, unix.EPOLLIN), d.watch(d.wake, unix.EPOLLIN))
	}
	if err != nil {
		return fmt.Errorf("prepare a vsock device: %w", err)
	}
	return nil
}

func (d *Device) watch(file int, events uint32) error {
	return unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, file, &unix.EpollEvent{Events: events, Fd: int32(file)})
}

// unwatch takes a file out of epoll. A file that is not there is left alone.
func (d *Device) unwatch(file int) {
	_ = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_DEL, file, nil)
}

// run is the thread. A fault in the guest's memory is an error of this device.
func (d *Device) run() (err error) {
	debug.SetPanicOnFault(true)
	defer func() {
		if r := recover(); r != nil {
			fault, is := r.(interface{ Addr() uintptr })
			if !is {
				panic(r) //nolint:forbidigo // a fault of ours ends the process, with its trace
			}
			err = fmt.Errorf("%w: its memory at %#x is gone", ErrGuest, fault.Addr())
		}
	}()
	if d.begin != nil {
		if err := d.begin(); err != nil {
			return err
		}
	}
	var events [64]unix.EpollEvent
	busy := false
	handling := d.known.handling()
	for !d.ending {
		patience := d.patience(busy)
		handling.Store(0)
		n, err := unix.EpollWait(d.epoll, events[:], patience)
		handling.Store(1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a guest: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if err := d.event(int(e.Fd), e.Events); err != nil {
				return err
			}
		}
		if busy, err = d.work(); err != nil {
			return err
		}
		d.tellSent(n == 0 && patience > 0)
		d.expire()
	}
	if d.leaving {
		err = d.resetAll()
		handling.Store(0)
	}
	return err
}

// patience is how long epoll may wait, in milliseconds.
func (d *Device) patience(busy bool) int {
	switch {
	case busy:
		return 0
	case d.owed > 0:
		return 1
	case d.timed > 0:
		return 1000
	}
	return -1
}

func (d *Device) event(file int, events uint32) error {
	switch file {
	case d.vmmFile:
		return d.message()
	case d.wake:
		drain(file)
		d.runPosted()
		return nil
	case d.queues[rxQueue].kick:
		drain(file)
		for _, c := range d.starved {
			c.queued = false
			d.enqueue(c)
		}
		d.starved = nil
		return nil
	case d.queues[txQueue].kick, d.queues[eventQueue].kick:
		drain(file)
		return nil
	}
	c := d.bySock[file]
	if c == nil {
		return nil
	}
	c.hung = c.hung || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLPRI) != 0
	c.readable = c.readable || events&^unix.EPOLLOUT != 0
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		c.writable = true
		if !c.backlog.empty() {
			d.flush(c)
		}
	}
	d.enqueue(c)
	return nil
}

func drain(file int) {
	var b [8]byte
	_, _ = unix.Read(file, b[:])
}

// work moves bytes both ways. busy says that there is more to do.
func (d *Device) work() (busy bool, err error) {
	if err := d.tellReset(); err != nil {
		return false, err
	}
	d.queues[txQueue].hushIfRunning(true)
	moreIn, err := d.transmit()
	if err != nil {
		return false, err
	}
	moreOut, err := d.receive()
	if err != nil {
		return false, err
	}
	if !moreIn {
		q := &d.queues[txQueue]
		q.hushIfRunning(false)
		if q.running() { // once more, because the guest may have looked before
			n, err := q.waiting()
			if err != nil {
				return false, err
			}
			moreIn = n > 0
		}
	}
	return moreOut || moreIn && len(d.replies) < repliesMax, nil
}

func (q *queue) hushIfRunning(quiet bool) {
	if q.running() {
		q.hush(quiet)
	}
}

// post has the thread call f; false if the device has ended.
func (d *Device) post(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return false
	}
	d.posted = append(d.posted, f)
	one := [8]byte{1}
	_, _ = unix.Write(d.wake, one[:]) // EAGAIN: it will wake anyway
	return true
}

func (d *Device) runPosted() {
	d.mu.Lock()
	list := d.posted
	d.posted = nil
	d.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// Close implements Guest.
func (d *Device) Close() error {
	d.post(func() { d.ending = true })
	return d.vmm.CloseRead() // the thread may wait for the rest of a message
}

// free ends all that the device has, after its thread has ended.
func (d *Device) free() {
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
	d.runPosted() // what it was given is let go of
	for _, c := range d.bySock {
		d.drop(c)
	}
	d.stop()
	d.memory.unmap()
	d.known.close()
	for _, file := range []*int{&d.replier, &d.vmmFile, &d.wake, &d.epoll} {
		d.closeFile(file)
	}
	d.vmm.Close()
}
