package notify

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
)

// waiting are the calls of accept(2) that wait for a connection, by the cookie of their listener. An
// epoll says when there is one. It has the listeners without a descriptor of ours: so a listener ends
// when its program does, and with it what the epoll knows of it.
//
// One event takes one call, the oldest that is still valid: however many processes wait on a listener, a
// connection costs one call of each. So while calls of a listener wait, either its entry of the epoll is
// armed, or a call that was taken is being handled, and arms it however it ends (await, passOn).
type waiting struct {
	mu     sync.Mutex // guards what follows
	epoll  int        // 0: there is none yet; -1: it is closed
	stop   int        // an eventfd, which ends the wait
	number int        // a duplicate of stop; for a moment, of a listener
	queues map[uint64]*queue
	// limited is told when a call with a limit begins to wait.
	limited chan struct{}
}

// queue are the calls of one listener.
type queue struct {
	calls []*waitingCall // the oldest first
	armed bool           // the epoll tells of the next connection
}

// watched is the queue of calls that wait in the gate.
const watched = 0

// waitingCall is a call that waits.
type waitingCall struct {
	request gate.Request
	came    time.Time
	cookie  uint64     // of the listener; or watched
	end     time.Time  // by SO_RCVTIMEO, if the call waits here; zero: it has no limit
	signal  unix.Errno // what a signal does to the call
}

func (c *waitingCall) expired() bool { return !c.end.IsZero() && !time.Now().Before(c.end) }

// limitMax is the longest SO_RCVTIMEO that counts as a limit, as in gate/c/waiting.c.
const limitMax = 1e9 // seconds

// limitOf returns the time that SO_RCVTIMEO gives calls on a listener; 0: they have no limit.
func limitOf(listener int) time.Duration {
	t, err := unix.GetsockoptTimeval(listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO)
	if err != nil || t.Sec > limitMax {
		return 0
	}
	return time.Duration(t.Nano())
}

// newWaitingCall makes the call of a program that begins to wait, with a limit or 0. As in the kernel, a call with a
// limit is not started again after a signal.
func newWaitingCall(p *program, limit time.Duration) *waitingCall {
	c := &waitingCall{request: p.request, came: time.Now(), signal: restartSys}
	if limit > 0 {
		c.end, c.signal = c.came.Add(limit), unix.EINTR
	}
	return c
}

// errWaits says that a call waits, and is handled again.
var errWaits = errors.New("the call waits for a connection")

// await arranges that a call is handled again when its listener has a connection. Then the error is
// errWaits. If its time is over, it says how the call ends.
func (s *Supervisor) await(p *program) (graft.Answer, error) {
	file, err := p.File(p.request.Number)
	if err != nil {
		return graft.Answer{}, err
	}
	defer unix.Close(file)
	c := p.waited
	if c == nil {
		c = newWaitingCall(p, limitOf(file))
	}
	if c.expired() {
		return fail(unix.EAGAIN), nil
	}
	if c.cookie, err = identify(file); err != nil {
		return graft.Answer{}, err
	}
	w := &s.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := s.watch(); err != nil {
		return graft.Answer{}, err
	}
	if w.epoll < 0 {
		return graft.Answer{}, errWaits // for the next supervisor, which is asked again
	}
	q := w.queueOf(c.cookie)
	if err := w.arm(q, c.cookie, file); err != nil {
		return graft.Answer{}, err
	}
	place := len(q.calls)
	if p.waited != nil {
		place = 0
	}
	q.calls = slices.Insert(q.calls, place, c)
	if !c.end.IsZero() {
		select {
		case w.limited <- struct{}{}:
		default: // it is told already
		}
	}
	return graft.Answer{}, errWaits
}

func identify(listener int) (uint64, error) {
	cookie, err := unix.GetsockoptUint64(listener, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("identify listener: %w", err)
	}
	return cookie, nil
}

// lookForSignals has a call that waits in the gate interrupted by signals. It returns errWaits, whether it can or not:
// the gate answers the call.
func (s *Supervisor) lookForSignals(p *program) error {
	var limit time.Duration
	if file, err := p.File(p.request.Number); err == nil { // the number may be closed by now, or another file's
		limit = limitOf(file)
		unix.Close(file)
	}
	c := newWaitingCall(p, limit)
	c.cookie, c.end = watched, time.Time{} // the gate ends it
	w := &s.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := s.watch(); err != nil {
		s.log.Error("signals do not interrupt a call that waits for a connection", "pid", p.request.Thread, "err", err)
		return errWaits
	}
	q := w.queueOf(watched)
	q.calls = append(q.calls, c)
	return errWaits
}

// The caller of queueOf and of arm holds w.mu.
func (w *waiting) queueOf(cookie uint64) *queue {
	q := w.queues[cookie]
	if q == nil {
		q = &queue{}
		w.queues[cookie] = q
	}
	return q
}

// arm has the epoll tell of a connection of a listener.
func (w *waiting) arm(q *queue, cookie uint64, listener int) error {
	if q.armed {
		return nil
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(cookie), Pad: int32(cookie >> 32)}
	if err := w.set(listener, &event); err != nil {
		return fmt.Errorf("wait for a connection: %w", err)
	}
	q.armed = true
	return nil
}

// set has the epoll tell of an event of a listener. An entry of an epoll is that of a file and a number. With one
// number for all, a listener has one entry.
func (w *waiting) set(listener int, event *unix.EpollEvent) error {
	if w.epoll < 0 {
		return unix.EBADF
	}
	if err := unix.Dup3(listener, w.number, unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Dup3(w.stop, w.number, unix.O_CLOEXEC) //nolint:errcheck // both are open
	err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, w.number, event)
	if errors.Is(err, unix.EEXIST) {
		err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, w.number, event)
	}
	return err
}

// close closes the epoll.
func (w *waiting) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, file := range []int{w.epoll, w.number, w.stop} {
		unix.Close(file)
	}
	w.epoll = -1
}

// first returns the oldest call of a listener whose entry in the epoll is not armed; nil if there is
// none. With fired, the entry has just told of a connection, and the call is taken.
func (w *waiting) first(cookie uint64, fired bool) *waitingCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[cookie]
	if q == nil {
		return nil
	}
	q.armed = q.armed && !fired
	if q.armed || len(q.calls) == 0 {
		return nil
	}
	c := q.calls[0]
	if fired {
		w.remove(c)
	}
	return c
}

// take takes a call, and tells whether it was there.
func (w *waiting) take(c *waitingCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.remove(c)
}

// remove is take, for callers that hold w.mu.
func (w *waiting) remove(c *waitingCall) bool {
	q := w.queues[c.cookie]
	if q == nil {
		return false
	}
	at := slices.Index(q.calls, c)
	if at < 0 {
		return false
	}
	if q.calls = slices.Delete(q.calls, at, at+1); len(q.calls) == 0 {
		delete(w.queues, c.cookie)
	}
	return true
}

// all returns the calls.
func (w *waiting) all() (list []*waitingCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queues {
		list = append(list, q.calls...)
	}
	return list
}

// forget has a watched call not interrupted any more: the supervisor answers it.
func (w *waiting) forget(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[watched]; q != nil {
		q.calls = slices.DeleteFunc(q.calls, func(c *waitingCall) bool { return c.request.ID == id })
	}
}

// watch makes the epoll, if there is none, and has calls handled when it says so, until the supervisor
// ends. With s.waiting.mu held.
func (s *Supervisor) watch() error {
	if s.waiting.epoll != 0 {
		return nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("wait for connections: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	number := -1
	if err == nil {
		number, err = unix.FcntlInt(uintptr(stop), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err != nil {
		unix.Close(epoll)
		unix.Close(stop)
		unix.Close(number)
		return fmt.Errorf("wait for connections: %w", err)
	}
	w := &s.waiting
	w.stop, w.number = stop, number
	w.epoll, w.queues, w.limited = epoll, map[uint64]*queue{}, make(chan struct{}, 1)
	go func() {
		<-s.stop
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // there is room for one
	}()
	s.done.Go(s.lookAfterWaiting)
	s.done.Add(1) // calls begin until it has ended
	go func() {
		defer s.done.Done()
		defer w.close()
		for s.wake(epoll) {
			continue
		}
	}()
	return nil
}

// wake handles a call of each listener that has a connection. It returns false when the supervisor
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
		c := s.waiting.first(cookie, true)
		for c != nil && !s.listener.Valid(c.request.ID) {
			c = s.waiting.first(cookie, true)
		}
		if c != nil {
			s.begin(c.request, c.came, c)
		}
	}
	return true
}

// passOn has the calls that wait on a listener get the next connection, after one that was woken.
func (s *Supervisor) passOn(cookie uint64) {
	if cookie == watched {
		return
	}
	for next := s.waiting.first(cookie, false); next != nil; next = s.waiting.first(cookie, false) {
		err := s.armFor(next)
		if err == nil {
			return
		}
		if s.waiting.take(next) && !errors.Is(err, seccomp.ErrStale) {
			// What is wrong is found when the call is handled, which passes on.
			s.done.Go(func() { s.begin(next.request, next.came, next) })
			return
		}
	}
}

// armFor arms the entry of a listener by the descriptor of a call.
func (s *Supervisor) armFor(c *waitingCall) error {
	p := &program{s: s, request: c.request}
	file, err := p.File(c.request.Number)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	cookie, err := identify(file)
	if err != nil {
		return err
	}
	if cookie != c.cookie {
		return fmt.Errorf("descriptor %d is another file", c.request.Number)
	}
	s.waiting.mu.Lock()
	defer s.waiting.mu.Unlock()
	if q := s.waiting.queues[cookie]; q != nil {
		return s.waiting.arm(q, cookie, file)
	}
	return nil
}
