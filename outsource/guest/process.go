package guest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// caller is a trapped call.
//
// Time of check. What is found by the caller's number is the caller's if the call still waits
// afterwards, which valid asks. A program may change its memory and its descriptors at any time; then
// it gets another answer, and nobody else does: the host, not the supervisor, is the wall.
type caller struct {
	*notification
	listener listener
	pid      int       // of its process
	process  pidfd.FD  // of its process
	memory   *os.File  // nil until it is needed
	watches  []watched // registrations in epolls that were found
}

// openCaller finds the process of a call.
func openCaller(l listener, n *notification) (*caller, error) {
	c := &caller{notification: n, listener: l, process: pidfd.None}
	status, err := proc.Status(int(n.tid))
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
	if !c.listener.valid(c.id) {
		return errStale
	}
	return nil
}

// number returns an argument that is a descriptor or another int.
func (c *caller) number(i int) int { return int(int32(c.args[i])) }

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

// open opens the caller's memory. It is the caller's also when it was killed meanwhile, because the
// call was valid after it was opened.
func (c *caller) open() error {
	if c.memory != nil {
		return nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.tid), os.O_RDWR, 0)
	if verr := c.valid(); verr != nil {
		if err == nil {
			f.Close()
		}
		return verr
	}
	c.memory = f
	return err
}

// read reads the caller's memory; EFAULT if it is not there.
func (c *caller) read(at uint64, b []byte) error {
	return c.transfer(at, len(b), func() (int, error) { return c.memory.ReadAt(b, int64(at)) })
}

func (c *caller) write(at uint64, b []byte) error {
	return c.transfer(at, len(b), func() (int, error) { return c.memory.WriteAt(b, int64(at)) })
}

func (c *caller) transfer(at uint64, size int, call func() (int, error)) error {
	if size == 0 {
		return nil
	}
	if at == 0 || at > math.MaxInt64-uint64(size) {
		return unix.EFAULT
	}
	if err := c.open(); err != nil {
		return err
	}
	if n, err := call(); n < size || err != nil {
		return unix.EFAULT
	}
	return nil
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

// watchesMax bounds the registrations of one socket.
const watchesMax = 1024

// replace puts a file in the place of another, under each number that the process has for it.
func (c *caller) replace(old, file int) error {
	want, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(old))
	if err != nil {
		return fmt.Errorf("identify socket: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd/", c.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errStale
	}
	var numbers, epolls []int
	for _, e := range entries {
		link, err := os.Readlink(dir + e.Name())
		number, nerr := strconv.Atoi(e.Name())
		switch {
		case err != nil || nerr != nil: // closed meanwhile
		case link == want:
			numbers = append(numbers, number)
		case link == "anon_inode:[eventpoll]":
			epolls = append(epolls, number)
		}
	}
	for _, epoll := range epolls {
		if err := c.findWatches(epoll, numbers); err != nil {
			return err
		}
	}
	if err := c.register(file); err != nil {
		return err
	}
	for _, number := range numbers {
		if err := c.install(file, number); err != nil {
			return err
		}
	}
	return nil
}

// findWatches finds the registrations of descriptors in an epoll: lines of its fdinfo (proc(5)) that
// begin with "tfd: N events: HEX data: HEX".
func (c *caller) findWatches(epoll int, numbers []int) error {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", c.pid, epoll))
	if err != nil {
		return nil //nolint:nilerr // closed meanwhile
	}
	for lines := bufio.NewScanner(bytes.NewReader(info)); lines.Scan(); {
		w, is := parseWatch(lines.Text())
		if !is {
			continue
		}
		for _, number := range numbers {
			if number != w.number {
				continue
			}
			if len(c.watches) >= watchesMax {
				return fmt.Errorf("the socket is in epolls more than %d times", watchesMax)
			}
			if w.epoll, err = c.process.File(epoll); err != nil {
				return err
			}
			c.watches = append(c.watches, w)
		}
	}
	return nil
}

func parseWatch(line string) (w watched, is bool) {
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "tfd:" || f[2] != "events:" || f[4] != "data:" {
		return w, false
	}
	number, err1 := strconv.Atoi(f[1])
	events, err2 := strconv.ParseUint(f[3], 16, 32)
	data, err3 := strconv.ParseUint(f[5], 16, 64)
	w.number = number
	w.event = unix.EpollEvent{Events: uint32(events), Fd: int32(data), Pad: int32(data >> 32)}
	return w, err1 == nil && err2 == nil && err3 == nil
}

// register enters a file into the epolls that were found, each under the number by which the program will
// know it: a thread with descriptors of its own gives it that number.
func (c *caller) register(file int) error {
	if len(c.watches) == 0 {
		return nil
	}
	return thread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return fmt.Errorf("have descriptors of our own: %w", err)
		}
		for _, w := range c.watches {
			epoll, err := unix.FcntlInt(uintptr(w.epoll), unix.F_DUPFD_CLOEXEC, w.number+1)
			if err != nil {
				return err
			}
			source, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, w.number+1)
			if err != nil {
				return err
			}
			if err := unix.Dup3(source, w.number, unix.O_CLOEXEC); err != nil {
				return err
			}
			err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, w.number, &w.event)
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("put descriptor %d into its epoll: %w", w.number, err)
			}
		}
		return nil
	})
}

// install puts a file under a number of the program's.
func (c *caller) install(file, number int) error {
	a := addFD{id: c.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, srcFD: uint32(file), newFD: uint32(number)}
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", c.pid, number))
	if err != nil {
		return nil //nolint:nilerr // closed meanwhile
	}
	if closesOnExec(string(info)) {
		a.newFDFlags = unix.O_CLOEXEC
	}
	if _, err := c.listener.add(&a); err != nil {
		return fmt.Errorf("replace descriptor %d: %w", number, err)
	}
	return nil
}

func closesOnExec(info string) bool {
	for line := range strings.Lines(info) {
		if value, is := strings.CutPrefix(line, "flags:"); is {
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
			return err == nil && flags&unix.O_CLOEXEC != 0
		}
	}
	return false
}
