// Package watch waits until files can be read, with one goroutine for all of them: one
// for each takes 5 KiB of stack, and most files of most containers never have anything.
//
// It reads nothing, and owns no file. It needs no privilege, and Linux 2.6.
package watch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watch is a file that is watched.
type Watch struct {
	raw   syscall.RawConn
	loop  *loop
	id    uint64
	ready func() bool
	calls sync.WaitGroup // of ready
}

// Start calls ready when a file can be read, on a goroutine of its own, and again until it
// returns false; one call after another. The file is closed after Stop, or by a ready that
// then returns false. It need not be one that Go's poller waits for.
func Start(f syscall.Conn, ready func() (again bool)) (*Watch, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if current == nil {
		if current, err = newLoop(); err != nil {
			return nil, fmt.Errorf("watch files: %w", err)
		}
	}
	w := &Watch{raw: raw, loop: current, id: current.last + 1, ready: ready}
	w.loop.last++
	w.loop.watches[w.id] = w
	if err := w.control(unix.EPOLL_CTL_ADD); err != nil {
		w.loop.remove(w)
		return nil, fmt.Errorf("watch file: %w", err)
	}
	return w, nil
}

// Stop is to be called before the file is closed; ready is not called again. A call that
// is under way goes on. It may be called twice.
func (w *Watch) Stop() {
	mu.Lock()
	defer mu.Unlock()
	if w.loop.watches[w.id] == w {
		_ = w.control(unix.EPOLL_CTL_DEL) // or it is closed
		w.loop.remove(w)
	}
}

// Wait waits for a call of ready that is under way, after Stop.
func (w *Watch) Wait() { w.calls.Wait() }

func (w *Watch) call() {
	defer w.calls.Done()
	if !w.ready() {
		w.Stop()
		return
	}
	mu.Lock()
	defer mu.Unlock()
	if w.loop.watches[w.id] == w {
		_ = w.control(unix.EPOLL_CTL_MOD) // what has come meanwhile counts too
	}
}

// control has the kernel tell once that the file can be read, or never. With mu held.
func (w *Watch) control(op int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(w.id), Pad: int32(w.id >> 32)}
	var err error
	eerr := w.loop.raw.Control(func(epoll uintptr) {
		cerr := w.raw.Control(func(fd uintptr) { err = unix.EpollCtl(int(epoll), op, int(fd), &event) })
		err = errors.Join(err, cerr)
	})
	return errors.Join(err, eerr)
}

// mu guards current and what is in it: loops are made when there is something to watch,
// and end when there is nothing any more.
var (
	mu      sync.Mutex
	current *loop
)

// loop is an epoll that Go's poller waits for.
type loop struct {
	file *os.File
	raw  syscall.RawConn
	// watches are by an id that none has twice: what the kernel tells of one that is
	// stopped meanwhile is nobody's.
	watches map[uint64]*Watch
	last    uint64
}

func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	err = unix.SetNonblock(fd, true) // as NewFile wants it of what is waited for
	l := &loop{file: os.NewFile(uintptr(fd), "epoll"), watches: map[uint64]*Watch{}}
	if err == nil {
		l.raw, err = l.file.SyscallConn()
	}
	if err != nil {
		l.file.Close()
		return nil, err
	}
	go func() { _ = l.raw.Read(l.dispatch) }() // until it is closed
	return l, nil
}

// dispatch hands on all that can be read.
func (l *loop) dispatch(epoll uintptr) bool {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(int(epoll), events[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return false
		}
		mu.Lock()
		for _, e := range events[:n] {
			if w := l.watches[uint64(uint32(e.Pad))<<32|uint64(uint32(e.Fd))]; w != nil {
				w.calls.Add(1)
				go w.call()
			}
		}
		mu.Unlock()
	}
}

// remove is for who holds mu.
func (l *loop) remove(w *Watch) {
	delete(l.watches, w.id)
	if len(l.watches) == 0 {
		go l.file.Close() // which waits for dispatch, and that for mu
		current = nil
	}
}
