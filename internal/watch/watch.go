// Package watch waits until files can be read, with one goroutine for all files. A goroutine per
// file would take 5 KiB of stack, and most files of most containers never become readable.
//
// It reads nothing and owns no file. It needs no privilege and Linux 2.6.
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

// Start calls ready on a new goroutine whenever the file can be read, until ready returns false.
// Calls do not overlap. The caller closes the file after Stop, or ready closes it and returns
// false. The file need not be one that Go's poller can wait for.
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

// Stop ends the calls of ready, and must come before the file is closed. A call that is under way
// continues. Stop may be called twice.
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

// control asks the kernel for one event when the file can be read, or for none. The caller holds mu.
func (w *Watch) control(op int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(w.id), Pad: int32(w.id >> 32)}
	var err error
	eerr := w.loop.raw.Control(func(epoll uintptr) {
		cerr := w.raw.Control(func(fd uintptr) { err = unix.EpollCtl(int(epoll), op, int(fd), &event) })
		err = errors.Join(err, cerr)
	})
	return errors.Join(err, eerr)
}

// mu guards current and its content. A loop is created for the first watch, and ends with the
// last one.
var (
	mu      sync.Mutex
	current *loop
)

// loop is an epoll that Go's poller waits for.
type loop struct {
	file *os.File
	raw  syscall.RawConn
	// watches has the watches by id. No id is used twice, so an event of a watch that was
	// stopped meanwhile finds none.
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

// dispatch starts a call of ready for each file that can be read.
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

// remove deletes a watch. The caller holds mu.
func (l *loop) remove(w *Watch) {
	delete(l.watches, w.id)
	if len(l.watches) == 0 {
		go l.file.Close() // which waits for dispatch, and that for mu
		current = nil
	}
}
