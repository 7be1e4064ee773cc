// Package notify is the supervisor's half of the seccomp front end: it takes the calls that the
// gate does not answer itself (seccomp_unotify(2), gate/c), asks the engine and answers the
// notification.
//
// It decides no policy. It reads and writes memory of programs only for the options and names of
// AF_GRAFT sockets, for the names of translated and of accepted sockets (names.go), and for the
// answers of ioctl(2) about interfaces (package tracee). It needs CAP_SYS_PTRACE over the container's
// processes and Linux 5.15.
//
// # Theory of operation
//
// A notification names its caller by thread id, which may be reused the moment the caller dies. So
// data that is found by that id counts only if NOTIF_ID_VALID holds *afterwards*. Answers go by
// notification id, which is never reused. Every call has its own goroutine, so that no call waits
// for another's answer.
package notify

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/sys/forks"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

// Supervisor serves the gate of one container.
type Supervisor struct {
	listener  seccomp.Listener
	gate      *gate.Gate
	ended     <-chan struct{} // closed when the gate has ended
	engine    *graft.Engine
	slots     *Slots
	log       *slog.Logger
	processes processes
	threads   *threads
	done      sync.WaitGroup
	closing   atomic.Bool
	waiting   waiting
	delivers  sync.RWMutex  // read-locked while a program has a connection of which we have a duplicate
	stop      chan struct{} // closed by End,
	stopping  sync.Once     // once
	gone      func(error)
	work      *cputime.Meter
	// openMemory is tracee.OpenMemory, but in tests.
	openMemory func(tid int) (*tracee.Memory, error)

	countMu sync.Mutex // guards counted
	// counted has only the calls that there were: the counters of all take 3 KiB.
	counted map[gate.Call]*gate.CallStats
}

// New makes a supervisor for a filter's listener and its gate, which stay the
// caller's: one that it has started, or adopted. What a former supervisor had not
// answered then comes first.
// slots are those of the container.
// gone is called if the gate ends before Close, as it does with the container's
// last process, or when it is killed. work, if it is not nil, measures what it takes
// to answer calls.
func New(l *os.File, g *gate.Gate, engine *graft.Engine, slots *Slots, log *slog.Logger, gone func(error), work *cputime.Meter) *Supervisor {
	return &Supervisor{
		listener: seccomp.Listener(l.Fd()), gate: g, ended: g.Ended(), engine: engine, slots: slots, log: log, threads: newThreads(),
		stop: make(chan struct{}), gone: gone, work: work, openMemory: tracee.OpenMemory,
	}
}

// End says that this process ends the gate: gone is not called any more, and calls that have no
// slot yet are not handled.
func (s *Supervisor) End() {
	s.closing.Store(true)
	s.stopping.Do(func() { close(s.stop) })
}

// Close ends the gate. Calls that are being handled then get no answer.
func (s *Supervisor) Close() error {
	s.End()
	return s.gate.Close()
}

// releaseWait bounds how long Release waits for calls that are being handled: a
// program's memory can take for ever to read.
const releaseWait = 2 * time.Second

// Release stops serving and lets go of the gate, which goes on. Calls that are being handled are
// finished, or go to the next supervisor like all others.
func (s *Supervisor) Release() error {
	s.End()
	s.gate.Stop()
	if !s.Await() {
		s.log.Warn("calls are still being handled; the next supervisor is asked again")
	}
	return s.gate.Release()
}

// Await waits until all calls that the gate has asked about have been handled, and tells whether
// they have. Once the container's processes and keepers are gone that takes no time, unless
// somebody else keeps what a program had for its memory: then Await gives up.
func (s *Supervisor) Await() bool {
	late := time.NewTimer(releaseWait)
	defer late.Stop()
	select {
	case <-s.Handled():
		return true
	case <-late.C:
		return false
	}
}

// Handled returns a channel that is closed when all calls have been handled.
func (s *Supervisor) Handled() <-chan struct{} {
	all := make(chan struct{})
	go func() {
		s.done.Wait()
		s.processes.closeAll()
		close(all)
	}()
	return all
}

// Start begins to serve, until the gate is closed or ends.
func (s *Supervisor) Start() {
	s.done.Add(1)
	s.gate.Serve(func(r gate.Request) {
		came := time.Now()
		switch {
		case r.Answered:
			s.tell(r) // in order
		case !s.closing.Load(): // else the next supervisor is asked, if there is one
			s.begin(r, came, nil)
		}
	}, s.listener.Valid, func(err error) {
		defer s.done.Done()
		if !s.closing.Load() && !errors.Is(err, os.ErrClosed) {
			s.gone(err)
		}
	})
	if err := s.gate.NamesPeers(); err != nil {
		s.log.Debug("the gate does not wait for names of peers", "err", err)
	}
}

// begin handles a request once there is a slot for it, if there will be one. waited is its call, if it has
// waited for a connection.
func (s *Supervisor) begin(r gate.Request, came time.Time, waited *waitingCall) {
	leave := s.slots.take(s.stop, s.ended)
	if leave == nil {
		return // it ends
	}
	s.done.Add(1)
	go func() {
		defer s.done.Done()
		defer leave()
		s.work.Do(func() { s.handle(r, came, waited) })
	}()
}

// Stats are the calls that this supervisor has answered, by the gate.Call, with how
// long that took from when the gate had asked; the rest of it is the gate's.
func (s *Supervisor) Stats() gate.Stats {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	var stats gate.Stats
	for call, c := range s.counted {
		stats.Calls[call] = *c
	}
	return stats
}

func (s *Supervisor) count(r gate.Request, answer graft.Answer, took time.Duration) {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	c := s.counted[r.Call]
	if c == nil {
		if s.counted == nil {
			s.counted = map[gate.Call]*gate.CallStats{}
		}
		c = &gate.CallStats{}
		s.counted[r.Call] = c
	}
	c.Answered++
	c.Time[gate.Bucket(took)]++
	if answer.Action == graft.Fail {
		c.Refused++
	}
}

// countRefusal counts that a call, which is counted, was refused in the end.
func (s *Supervisor) countRefusal(call gate.Call) {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	s.counted[call].Refused++
}

func (s *Supervisor) handle(r gate.Request, came time.Time, waited *waitingCall) {
	p := &program{s: s, request: r, call: r.ID, again: r.Again, waited: waited}
	if id, found := s.threads.begin(r); found {
		p.call, p.again = id, true
	}
	defer s.threads.end(r)
	answer, err := s.dispatch(p)
	if errors.Is(err, errWaits) {
		return // it is handled again
	}
	switch {
	case errors.Is(err, seccomp.ErrStale), errors.Is(err, unix.ESRCH):
		s.log.Debug("caller is gone", "pid", r.Thread, "syscall", r.Call)
	case errors.Is(err, graft.ErrClosed):
		s.log.Debug("call not grafted", "pid", r.Thread, "syscall", r.Call, "err", err)
	case err != nil && s.closing.Load():
		s.log.Debug("call not grafted at the end", "pid", r.Thread, "syscall", r.Call, "err", err)
	case err != nil:
		// A fault of ours. The call goes on as it is: in the container's own
		// namespace, or as far as the kernel programs let it.
		s.log.Error("call not grafted", "pid", r.Thread, "syscall", r.Call, "err", err)
	}
	if err != nil {
		answer = graft.Answer{}
	}
	// Before the program goes on, which may ask what has been counted, and denied.
	s.count(r, answer, time.Since(came))
	s.logOutcome(r, answer)
	stale := errors.Is(s.reply(p, answer), seccomp.ErrStale)
	if stale && p.carriedOut(answer) {
		s.threads.interrupt(r, p.call)
	}
}

// dispatch passes a request to the engine. The engine acts on the sockaddr that the gate has read.
// It makes bind and listen itself, so later changes by the program do not matter. If it lets the
// kernel carry on and read the address again, the program may have changed the address. On a host
// socket the kernel programs check the changed address; on a socket of the container's own
// namespace, it reaches only what the container reaches anyway.
func (s *Supervisor) dispatch(p *program) (graft.Answer, error) {
	r := p.request
	switch r.Call {
	case gate.Connect, gate.Send:
		to, ok := sockaddr.Parse(r.Address)
		if !ok {
			return graft.Answer{}, nil
		}
		if r.Call == gate.Connect {
			return s.engine.Connect(p, r.Number, to)
		}
		return s.engine.Send(p, r.Number, to)
	case gate.Bind:
		// A child that was forked while we had a socket of the program's has it, and its port,
		// even if the program has closed it since. So has a connection that is being delivered.
		forks.Await()
		s.awaitDeliveries()
		if afgraft.IsAddress(r.Address) {
			return s.bindNamed(p)
		}
		addr, ok := parseBindAddr(r.Address)
		if !ok {
			return graft.Answer{}, nil
		}
		return s.engine.Bind(p, r.Number, addr)
	case gate.Listen:
		return s.engine.Listen(p, r.Number, r.Backlog)
	case gate.Socket:
		return s.engine.Socket(p, int(int32(r.Args[1])), int(int32(r.Args[2])))
	case gate.SetOption, gate.GetOption, gate.GetName:
		if r.Call == gate.GetName && (r.Name == gate.AcceptName || s.engine.Translator != nil) {
			return s.name(p)
		}
		return s.optionOrName(p)
	case gate.Ioctl:
		return s.ioctl(p)
	}
	return graft.Answer{}, nil
}

// tell logs what the gate has answered.
func (s *Supervisor) tell(r gate.Request) {
	p := &program{s: s, request: r, call: r.ID}
	if r.Call == gate.Socket {
		s.log.Debug("created on the host", "pid", r.Thread, "syscall", r.Call, "family", r.Number)
		return
	}
	if to, ok := sockaddr.Parse(r.Address); ok {
		s.engine.LogDecision(p, r.Call.String(), r.Number, to)
	}
}

func (s *Supervisor) answer(r gate.Request, answer graft.Answer) error {
	reply := seccomp.Response{ID: r.ID}
	switch answer.Action {
	case graft.Proceed:
		reply.Flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	case graft.Fail:
		reply.Errno = -int32(answer.Errno)
	case graft.Succeed:
		reply.Value = int64(answer.Value)
	}
	err := s.listener.Answer(&reply)
	if err != nil && !errors.Is(err, seccomp.ErrStale) {
		s.log.Error("answer notification", "pid", r.Thread, "syscall", r.Call, "err", err)
	}
	return err
}
