package notify

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
)

// waiting are the calls of accept(2) that wait for a connection, by the cookie of their listener. An
// epoll says when there is one. It has the listeners without a descriptor of ours: so a listener ends
// when its program does, and with it what the epoll knows of it.
type waiting struct {
	mu    sync.Mutex // guards what follows
	epoll int        // 0: there is none yet
	calls map[uint64][]waitingCall
	// watched are calls that wait in the gate.
	watched []waitingCall
	room    int // for so many listeners, before those are forgotten that nobody waits for
}

// waitingRoom is the least number of listeners for which there is room. If a signal interrupts the
// call on a listener, nothing tells when the listener is closed.
const waitingRoom = 1 << 10

// makeRoom forgets listeners without waiting calls, once there are many. The caller holds w.mu.
func (w *waiting) makeRoom(waits func(waitingCall) bool) {
	if len(w.calls) < w.room {
		return
	}
	for cookie, calls := range w.calls {
		if !slices.ContainsFunc(calls, waits) {
			delete(w.calls, cookie)
		}
	}
	w.room = max(waitingRoom, 2*len(w.calls))
}

type waitingCall struct {
	request gate.Request
	came    time.Time
}

// errWaits says that a call waits, and is handled again.
var errWaits = errors.New("the call waits for a connection")

// await arranges that a call is handled again when its listener has a connection. It returns
// errWaits.
func (s *Supervisor) await(p *program) error {
	file, err := p.File(p.request.Number)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	cookie, err := unix.GetsockoptUint64(file, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return fmt.Errorf("identify listener: %w", err)
	}
	w := &s.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll == 0 {
		if err := s.watch(); err != nil {
			return err
		}
	}
	// No program waits for a call that a signal has interrupted.
	waits := func(c waitingCall) bool { return s.listener.valid(c.request.ID) }
	w.makeRoom(waits)
	calls := slices.DeleteFunc(w.calls[cookie], func(c waitingCall) bool { return !waits(c) })
	w.calls[cookie] = append(calls, waitingCall{p.request, time.Now()})
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(cookie), Pad: int32(cookie >> 32)}
	err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, file, &event)
	if errors.Is(err, unix.EEXIST) {
		err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, file, &event)
	}
	if err != nil {
		return fmt.Errorf("wait for a connection: %w", err)
	}
	return errWaits
}

// lookForSignals has a call that waits in the gate interrupted by signals. It returns errWaits.
func (s *Supervisor) lookForSignals(p *program) error {
	w := &s.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll == 0 {
		if err := s.watch(); err != nil {
			return err
		}
	}
	w.watched = append(w.watched, waitingCall{request: p.request})
	return errWaits
}

// watch makes the epoll, and has calls handled when it says so, until the supervisor ends. With
// s.waiting.mu held.
func (s *Supervisor) watch() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("wait for connections: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err != nil {
		unix.Close(epoll)
		return fmt.Errorf("wait for connections: %w", err)
	}
	s.waiting.epoll, s.waiting.calls = epoll, map[uint64][]waitingCall{}
	go func() {
		<-s.stop
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // there is room for one
	}()
	s.done.Go(s.interruptWaiting)
	s.done.Add(1) // calls begin until it has ended
	go func() {
		defer s.done.Done()
		defer unix.Close(epoll)
		defer unix.Close(stop)
		for s.wake(epoll) {
			continue
		}
	}()
	return nil
}

// wake handles the calls of listeners that have a connection. It returns false when the supervisor
// ends.
func (s *Supervisor) wake(epoll int) bool {
	var events [16]unix.EpollEvent
	n, err := unix.EpollWait(epoll, events[:], -1)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil {
		s.log.Error("wait for connections", "err", err)
		return false
	}
	for _, e := range events[:n] {
		cookie := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
		if cookie == 0 {
			return false
		}
		s.waiting.mu.Lock()
		calls := s.waiting.calls[cookie]
		delete(s.waiting.calls, cookie)
		s.waiting.mu.Unlock()
		for _, c := range calls {
			s.begin(c.request, c.came)
		}
	}
	return true
}
