package helper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alarmSignal is the signal that the timers send to the one thread that waits for it. C libraries
// reserve the first two or three signals from 32 on.
const alarmSignal = 40

// alarms has the timers on processes' CPU clocks of this program. The kernel lets any process set a
// timer on any process's clock. It checks the timer at each tick in which that process runs. While
// a timer is set, the kernel sums up the process's CPU time as it runs, so reading the clock does
// not need to visit all threads.
type alarms struct {
	thread int // waits for the signals
	err    error

	mu   sync.Mutex // guards the fields below
	of   map[uint64]*Process
	last uint64
}

var startAlarms = sync.OnceValue(func() *alarms {
	a := &alarms{of: map[uint64]*Process{}}
	started := make(chan struct{})
	go a.run(started)
	<-started
	return a
})

// run waits for the timers' signals until the program ends.
func (a *alarms) run(started chan<- struct{}) {
	runtime.LockOSThread()
	set := unix.Sigset_t{Val: [len(unix.Sigset_t{}.Val)]uint64{1 << (alarmSignal - 1)}}
	a.thread, a.err = unix.Gettid(), unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
	close(started)
	for a.err == nil {
		var info struct { // siginfo_t of a timer
			signal, errno, code, _ int32
			timer, overrun         int32
			value                  uint64
			_                      [96]byte
		}
		_, _, errno := unix.Syscall6(unix.SYS_RT_SIGTIMEDWAIT,
			uintptr(unsafe.Pointer(&set)), uintptr(unsafe.Pointer(&info)), 0, 8, 0, 0)
		if errno == 0 && info.code == timerSignal {
			a.ring(info.value)
		}
	}
}

// never is a CPU time that no process reaches.
const never = 100 * 365 * 24 * time.Hour

const (
	timerSignal    = -2 // SI_TIMER
	signalToThread = 4  // SIGEV_THREAD_ID
)

func (a *alarms) ring(value uint64) {
	a.mu.Lock()
	p := a.of[value]
	a.mu.Unlock()
	if p == nil {
		return // Close came first
	}
	p.mu.Lock()
	call := p.alarm.call
	p.alarm.call = nil
	if p.alarm.made {
		_ = p.setAlarm(never) // a set timer makes reading the clock cheaper
	}
	p.mu.Unlock()
	if call != nil {
		call()
	}
}

// alarm is the timer on one process's clock.
type alarm struct {
	made  bool
	timer int32
	value uint64 // the key in alarms.of, which the signal carries
	call  func() // nil: not set
}

// Wake calls call once, after the process has used that much more CPU time. The call comes at the
// next tick of the clock in which the process runs. If a call is already set, Wake changes nothing.
// After an error the caller must read the clock instead: the process has ended, or the kernel gives
// no timer (RLIMIT_SIGPENDING limits their number).
func (p *Process) Wake(after time.Duration, call func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return fmt.Errorf("set alarm of process %d: %w", p.pid, os.ErrClosed)
	}
	if p.alarm.call != nil {
		return nil
	}
	if err := p.makeAlarm(); err != nil {
		return fmt.Errorf("set alarm of process %d: %w", p.pid, err)
	}
	p.alarm.call = call
	if err := p.setAlarm(after); err != nil {
		p.alarm.call = nil
		return fmt.Errorf("set alarm of process %d: %w", p.pid, err)
	}
	return nil
}

// makeAlarm makes the timer, once. The caller holds mu.
func (p *Process) makeAlarm() error {
	all := startAlarms()
	if all.err != nil || p.alarm.made {
		return all.err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.last++
	event := struct { // struct sigevent
		value          uint64
		signal, notify int32
		thread         int32
		_              [44]byte
	}{value: all.last, signal: alarmSignal, notify: signalToThread, thread: int32(all.thread)}
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE,
		uintptr(p.clock), uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&p.alarm.timer)))
	if errno != 0 {
		return errno
	}
	// The timer belongs to the process that had the pid when it was made. That is the right process
	// if it still exists now.
	if err := unix.PidfdSendSignal(p.fd, 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return errors.Join(err, deleteTimer(p.alarm.timer))
	}
	p.alarm.made, p.alarm.value = true, all.last
	all.of[all.last] = p
	return nil
}

func (p *Process) setAlarm(after time.Duration) error {
	ts := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(after, 1)))}
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(p.alarm.timer), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// closeAlarm deletes the timer. The caller holds mu.
func (p *Process) closeAlarm() error {
	if !p.alarm.made {
		return nil
	}
	p.alarm.made, p.alarm.call = false, nil
	all := startAlarms()
	all.mu.Lock()
	delete(all.of, p.alarm.value)
	all.mu.Unlock()
	return deleteTimer(p.alarm.timer)
}

func deleteTimer(timer int32) error {
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(timer), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
