// Package notify is the seccomp front end: it takes the notifications of a
// container's filter (seccomp_unotify(2)), reads the calls' arguments, asks the
// engine and passes its answer on.
//
// It decides no policy. It needs CAP_SYS_PTRACE over the container's processes
// and Linux 5.15.
//
// # Theory of operation
//
// Several threads wait for notifications. When the last one picks one up it
// first starts another, so that no call waits for another call's answer, up to
// receiversMax.
//
// A notification names its caller by thread id, which may be reused the moment
// the caller dies. So everything that is read by that id is believed only after
// NOTIF_ID_VALID has been asked *afterwards*, and answers go by notification id,
// which is never reused.
//
// What a pointer argument points to may change at any time, also between our
// look and the kernel's. Each handler says why that is safe.
package notify

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/intercept/filter"
)

const (
	// receiversMin threads are there even when nothing is asked for.
	receiversMin = 2
	// receiversMax bounds the threads that a container whose memory is slow to
	// read can make us have.
	receiversMax = 64
	// idleMax is how many may have nothing to do before one that is done ends.
	idleMax = 4
)

// Supervisor serves the listener of one container.
type Supervisor struct {
	listener  listener
	engine    *graft.Engine
	log       *slog.Logger
	processes processes

	stopping atomic.Bool
	idle     atomic.Int32
	count    atomic.Int32
	done     sync.WaitGroup

	mu      sync.Mutex
	threads map[int]struct{} // ids of the receivers' threads
}

// New makes a supervisor for a listener, which stays the caller's.
func New(l *os.File, engine *graft.Engine, log *slog.Logger) (*Supervisor, error) {
	if err := handleWakeSignal(); err != nil {
		return nil, err
	}
	s := &Supervisor{
		listener: listener{int(l.Fd())},
		engine:   engine,
		log:      log,
		threads:  map[int]struct{}{},
	}
	s.listener.wakeSynchronously()
	return s, nil
}

// Start begins to serve.
func (s *Supervisor) Start() {
	for range receiversMin {
		s.addReceiver()
	}
}

// Stop ends all receivers and waits for them. It is meant for a container whose
// processes are gone or about to be killed: a call that is being answered may be
// answered wrongly, see hearOnlyWakeSignal, and later ones wait.
func (s *Supervisor) Stop() {
	s.stopping.Store(true)
	ended := make(chan struct{})
	go func() {
		s.done.Wait()
		close(ended)
	}()
	// A signal that comes just before the wait for a notification is lost, so it
	// is sent until it has worked.
	for {
		s.mu.Lock()
		for tid := range s.threads {
			_ = unix.Tgkill(os.Getpid(), tid, wakeSignal)
		}
		s.mu.Unlock()
		select {
		case <-ended:
			s.processes.mu.Lock()
			s.processes.closeAll()
			s.processes.mu.Unlock()
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *Supervisor) addReceiver() {
	if s.count.Add(1) > receiversMax {
		s.count.Add(-1)
		return
	}
	s.idle.Add(1)
	s.done.Add(1)
	go s.receive()
}

// receiver is what one thread works with, so that nothing is allocated for a
// notification.
type receiver struct {
	s    *Supervisor
	n    notification
	p    program
	addr [sockaddrRead]byte
}

func (s *Supervisor) receive() {
	hearOnlyWakeSignal()
	tid := unix.Gettid()
	s.mu.Lock()
	s.threads[tid] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.threads, tid)
		s.mu.Unlock()
		s.idle.Add(-1)
		s.count.Add(-1)
		s.done.Done()
	}()
	r := &receiver{s: s}
	for !s.stopping.Load() && s.idle.Load() <= idleMax {
		err := s.listener.receive(&r.n)
		switch {
		case err == nil:
			if s.idle.Add(-1) == 0 {
				s.addReceiver()
			}
			r.handle()
			s.idle.Add(1)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOENT):
			// The caller died before we had woken up; or all are gone (6.11,
			// kernel commit 95036a79e707), and there is nothing more to receive.
			if s.listener.abandoned() {
				return
			}
		default:
			s.log.Error("receive notification", "err", err)
			return
		}
	}
}

func (r *receiver) handle() {
	call, known := filter.Lookup(r.n.data.arch, r.n.data.number)
	if !known {
		r.answer(graft.Answer{})
		return
	}
	r.p = program{s: r.s, id: r.n.id, tid: int(r.n.pid)}
	answer, err := r.ask(call)
	switch {
	case errors.Is(err, errStale), errors.Is(err, unix.ESRCH):
		r.s.log.Debug("caller is gone", "pid", r.n.pid, "syscall", call)
	case err != nil:
		// A fault of ours. The call goes on as it is: in the container's own
		// namespace, or as far as the kernel programs let it.
		r.s.log.Error("call not grafted", "pid", r.n.pid, "syscall", call, "err", err)
	}
	if err != nil {
		answer = graft.Answer{}
	}
	r.answer(answer)
}

func (r *receiver) ask(call filter.Call) (graft.Answer, error) {
	a := &r.n.data.args
	switch call {
	case filter.Socket:
		// All arguments are values.
		return r.s.engine.Socket(&r.p, int(int32(a[0])), int(int32(a[1])), int(int32(a[2])))
	case filter.Connect:
		return r.connect(a[1], uint32(a[2]))
	case filter.Bind:
		return r.bind(a[1], uint32(a[2]))
	case filter.Listen:
		// All arguments are values.
		return r.s.engine.Listen(&r.p, int(int32(a[0])), int(int32(a[1])))
	case filter.SocketcallListen:
		return r.socketcallListen(a[1])
	case filter.SendTo:
		return r.send(a[4], uint32(a[5]))
	case filter.SendMsg, filter.SendMMsg:
		return r.sendMsg(a[1])
	}
	return graft.Answer{}, nil
}

// readAddr reads a sockaddr of the length that the program gives. An address
// that cannot be read, or is longer than the kernel takes, is the kernel's to
// refuse.
func (r *receiver) readAddr(ptr uint64, length uint32) ([]byte, error) {
	if length > sockaddrMax {
		return nil, nil
	}
	buf := r.addr[:min(int(length), sockaddrRead)]
	n := readMemory(int(r.n.pid), ptr, buf)
	return buf[:n], r.p.valid()
}

// connect looks at an address that the kernel reads again. If it is another one
// by then, the socket is in the wrong place for it: on the host's side the
// kernel programs refuse what no rule allows, in the container's own namespace
// it reaches what the container reaches anyway.
func (r *receiver) connect(ptr uint64, length uint32) (graft.Answer, error) {
	b, err := r.readAddr(ptr, length)
	if err != nil {
		return graft.Answer{}, err
	}
	to, ok := parseSockaddr(b)
	if !ok {
		return graft.Answer{}, nil
	}
	return r.s.engine.Connect(&r.p, r.number(), to)
}

// bind looks at an address once: the engine binds what was read here. Where it
// leaves the call to the kernel, a host socket is bound only to what the kernel
// programs were told to allow.
func (r *receiver) bind(ptr uint64, length uint32) (graft.Answer, error) {
	b, err := r.readAddr(ptr, length)
	if err != nil {
		return graft.Answer{}, err
	}
	addr, ok := parseBindAddr(b)
	if !ok {
		return graft.Answer{}, nil
	}
	return r.s.engine.Bind(&r.p, r.number(), addr)
}

// send looks at an address that the kernel reads again, see connect.
func (r *receiver) send(ptr uint64, length uint32) (graft.Answer, error) {
	b, err := r.readAddr(ptr, length)
	if err != nil {
		return graft.Answer{}, err
	}
	to, ok := parseSockaddr(b)
	if !ok {
		return graft.Answer{}, nil
	}
	return r.s.engine.Send(&r.p, r.number(), to)
}

// sendMsg takes the address of the first message: struct mmsghdr begins with a
// struct msghdr, and that with the pointer to the address and its length.
func (r *receiver) sendMsg(ptr uint64) (graft.Answer, error) {
	var head [12]byte
	n := readMemory(int(r.n.pid), ptr, head[:])
	if err := r.p.valid(); err != nil || n < len(head) {
		return graft.Answer{}, err
	}
	name := binary.NativeEndian.Uint64(head[:])
	length := binary.NativeEndian.Uint32(head[8:])
	if name == 0 {
		return graft.Answer{}, nil
	}
	return r.send(name, length)
}

// socketcallListen reads the two 32-bit arguments of a listen(2) made by i386's
// socketcall(2). They are read once and acted on.
func (r *receiver) socketcallListen(ptr uint64) (graft.Answer, error) {
	var args [8]byte
	n := readMemory(int(r.n.pid), uint64(uint32(ptr)), args[:])
	if err := r.p.valid(); err != nil || n < len(args) {
		return graft.Answer{}, err
	}
	number := int(int32(binary.NativeEndian.Uint32(args[:])))
	backlog := int(int32(binary.NativeEndian.Uint32(args[4:])))
	return r.s.engine.Listen(&r.p, number, backlog)
}

func (r *receiver) number() int { return int(int32(r.n.data.args[0])) }

func (r *receiver) answer(a graft.Answer) {
	resp := response{id: r.n.id}
	switch a.Action {
	case graft.Proceed:
		resp.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	case graft.Fail:
		resp.errno = -int32(a.Errno)
	case graft.Give:
		if r.give(a, &resp) {
			return
		}
	}
	if err := r.s.listener.send(&resp); err != nil && !errors.Is(err, errStale) {
		r.s.log.Error("answer notification", "err", err)
	}
}

// give installs the file and answers with its number in one step, so that no
// descriptor is left behind in a program that was interrupted meanwhile. Where
// the program has no room for a descriptor, that is its own limit's answer.
func (r *receiver) give(a graft.Answer, resp *response) bool {
	add := addFd{id: r.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcFd: uint32(a.File)}
	if a.CloseOnExec {
		add.newFdFlags = unix.O_CLOEXEC
	}
	err := r.s.listener.addFd(&add)
	unix.Close(a.File)
	switch {
	case err == nil, errors.Is(err, errStale):
		return true
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		resp.errno = -int32(err.(unix.Errno)) //nolint:errorlint // addFd returns it bare
	default:
		r.s.log.Error("give descriptor", "pid", r.n.pid, "err", err)
		resp.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	return false
}
