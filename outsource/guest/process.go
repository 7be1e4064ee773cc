package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

// caller is a trapped call.
//
// Time of check. What is found by the caller's number is the caller's if the call still waits
// afterwards, which valid asks. A program may change its memory and its descriptors at any time; then
// it gets another answer, and nobody else does: the host, not the supervisor, is the wall.
type caller struct {
	*seccomp.Notification
	listener seccomp.Listener
	pid      int            // of its process
	process  pidfd.FD       // of its process
	memory   *tracee.Memory // nil until it is needed
	watches  []watched      // registrations in epolls that were found
}

// openCaller finds the process of a call.
func openCaller(l seccomp.Listener, n *seccomp.Notification) (*caller, error) {
	c := &caller{Notification: n, listener: l, process: pidfd.None}
	status, err := proc.Status(int(n.Thread))
	var ids []int
	if err == nil {
		ids, err = status.Numbers("Tgid")
	}
	if err == nil && len(ids) > 0 {
		c.pid = ids[0]
		c.process, err = pidfd.OpenFD(c.pid)
	}
	if verr := c.valid(); verr != nil {
		err = verr
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *caller) close() {
	if c.process != pidfd.None {
		c.process.Close()
	}
	if c.memory != nil {
		c.memory.Close()
	}
	for _, w := range c.watches {
		unix.Close(w.epoll)
	}
}

func (c *caller) valid() error {
	if !c.listener.Valid(c.ID) {
		return seccomp.ErrStale
	}
	return nil
}

// number returns an argument that is a descriptor or another int.
func (c *caller) number(i int) int { return int(int32(c.Args[i])) }

// file duplicates the descriptor that is the call's first argument.
func (c *caller) file() (int, error) {
	fd, err := c.process.File(c.number(0))
	if verr := c.valid(); verr != nil {
		if err == nil {
			unix.Close(fd)
		}
		return -1, verr
	}
	return fd, err
}

// open opens the caller's memory.
func (c *caller) open() error {
	if c.memory != nil {
		return nil
	}
	m, err := tracee.OpenMemory(int(c.Thread))
	if verr := c.valid(); verr != nil {
		if err == nil {
			m.Close()
		}
		return verr
	}
	c.memory = m
	return faultOf(err)
}

// read reads the caller's memory; EFAULT if it is not there.
func (c *caller) read(at uint64, b []byte) error {
	return c.transfer(func() error { return c.memory.Read(at, b) })
}

func (c *caller) write(at uint64, b []byte) error {
	return c.transfer(func() error { return c.memory.Write(at, b) })
}

func (c *caller) transfer(call func() error) error {
	if err := c.open(); err != nil {
		return err
	}
	err := call()
	if errors.Is(err, tracee.ErrFault) {
		return unix.EFAULT // the program's
	}
	return faultOf(err)
}

const sockaddrMax = 128 // bytes of the longest sockaddr that the kernel takes

// name reads a sockaddr that the caller has passed; false if it is not one of IP.
func (c *caller) name(at uint64, size int) (netip.AddrPort, bool, error) {
	if size < sockaddr.Min4 || size > sockaddrMax {
		return netip.AddrPort{}, false, nil
	}
	b := make([]byte, size)
	if err := c.read(at, b); err != nil {
		return netip.AddrPort{}, false, err
	}
	name, is := sockaddr.Parse(b)
	return name, is, nil
}

// give writes a value where the caller has room for it, and its size, as the kernel does for names
// and options. whole says that the size is that of the value, and else of what was written.
func (c *caller) give(value []byte, at, sizeAt uint64, whole bool) error {
	var raw [4]byte
	if err := c.read(sizeAt, raw[:]); err != nil {
		return err
	}
	room := int(int32(binary.NativeEndian.Uint32(raw[:])))
	if room < 0 {
		return unix.EINVAL
	}
	n := min(room, len(value))
	if err := c.write(at, value[:n]); err != nil {
		return err
	}
	if whole {
		n = len(value)
	}
	binary.NativeEndian.PutUint32(raw[:], uint32(n))
	return c.write(sizeAt, raw[:])
}

// watched is a registration of a descriptor in an epoll.
type watched struct {
	epoll  int // a duplicate
	event  unix.EpollEvent
	number int
}

// replace puts a file in the place of another, under each number that the process has for it.
func (c *caller) replace(old, file int) error {
	list, err := tracee.Descriptors(int(c.Thread), old)
	if errors.Is(err, unix.ESRCH) {
		return seccomp.ErrStale
	}
	if err != nil {
		return err
	}
	for _, d := range list {
		for _, w := range d.Watches {
			epoll, err := c.process.File(w.Epoll)
			if err != nil {
				return err
			}
			event := unix.EpollEvent{Events: w.Events, Fd: int32(w.Data), Pad: int32(w.Data >> 32)}
			c.watches = append(c.watches, watched{epoll, event, d.Number})
		}
	}
	if err := c.register(file); err != nil {
		return err
	}
	for _, d := range list {
		if err := c.install(file, d); err != nil {
			return err
		}
	}
	return nil
}

// register enters a file into the epolls that were found, each under the number by which the program will
// know it: a thread with descriptors of its own gives it that number. Among those is none of another call's:
// a duplicate of a socket that is replaced meanwhile would stay in the epolls of its program as long as the
// thread does. So the thread has nothing but what it takes from this process, and closes that.
//
// Among what the thread has not is the epoll of Go's runtime. A cycle of the garbage collector that the thread begins or
// ends would ask that one, and end the process (netpoll: EBADF). So from CloseRange to its end the thread allocates no
// memory: errors are bare there.
func (c *caller) register(file int) error {
	if len(c.watches) == 0 {
		return nil
	}
	top := 0
	for _, w := range c.watches {
		top = max(top, w.number+1)
	}
	number := -1 // which could not be put into its epoll
	err := thread.Do(func() error {
		const first, last = 3, math.MaxUint32
		if err := unix.CloseRange(first, last, unix.CLOSE_RANGE_UNSHARE); err != nil {
			return err
		}
		err := c.registerAlone(file, top, &number)
		_ = unix.CloseRange(0, last, 0) // it has no other error than EINVAL
		return err
	})
	switch {
	case err == nil:
		return nil
	case number >= 0:
		return fmt.Errorf("put descriptor %d into its epoll: %w", number, err)
	}
	return fmt.Errorf("have descriptors of our own: %w", err)
}

// registerAlone is register on the thread that has descriptors of its own. It allocates no memory. number becomes the
// watched one of which an error is.
func (c *caller) registerAlone(file, top int, number *int) error {
	us, err := pidfd.OpenFD(os.Getpid())
	if err != nil {
		return err
	}
	moved, err := above(int(us), top)
	if err != nil {
		return err
	}
	for i := range c.watches {
		w := &c.watches[i]
		if err := w.add(pidfd.FD(moved), file, top); err != nil {
			*number = w.number
			return err
		}
	}
	return nil
}

// above moves a descriptor of the calling thread to a number from top on.
func above(fd, top int) (int, error) {
	defer unix.Close(fd)
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, top)
}

// add enters a file of a process into the epoll, under its number, which is below top. It allocates no memory.
func (w *watched) add(us pidfd.FD, file, top int) error {
	var numbers [2]int // of the calling thread
	for i, theirs := range []int{w.epoll, file} {
		fd, err := us.File(theirs)
		if err == nil {
			fd, err = above(fd, top)
		}
		if err != nil {
			return err
		}
		numbers[i] = fd
	}
	if err := unix.Dup3(numbers[1], w.number, unix.O_CLOEXEC); err != nil {
		return err
	}
	err := unix.EpollCtl(numbers[0], unix.EPOLL_CTL_ADD, w.number, &w.event)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// install puts a file under a number of the program's.
func (c *caller) install(file int, d tracee.Descriptor) error {
	a := seccomp.AddFD{ID: c.ID, Flags: unix.SECCOMP_ADDFD_FLAG_SETFD, File: uint32(file), Number: uint32(d.Number)}
	if d.CloseOnExec {
		a.NewFlags = unix.O_CLOEXEC
	}
	if _, err := c.listener.Add(&a); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", d.Number, err)
	}
	return nil
}
