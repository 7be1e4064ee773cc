package run

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that others send to us but mean for the program: all that would end or
// stop us and can be caught, and those that programs use.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGWINCH,
}

// catchSignals begins to collect signals before the program exists. Without it, an early signal
// would end us with the container half made.
func catchSignals() chan os.Signal {
	signals := make(chan os.Signal, 32)
	var caught []os.Signal
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // else the program ignores it too
			caught = append(caught, sig)
		}
	}
	signal.Notify(signals, caught...)
	// The terminal stops the program. We stop after it has stopped, see waitForEnd. These signals
	// are caught, not ignored, because the program would inherit that they are ignored.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	return signals
}

// wait waits for a process to end, and passes signals on to it meanwhile.
func wait(pid int, signals chan os.Signal) (unix.WaitStatus, error) {
	ended := make(chan struct{})
	forwarding := make(chan struct{})
	go func() {
		defer close(forwarding)
		for {
			select {
			case sig := <-signals:
				if !fromTerminal(sig) {
					_ = unix.Kill(pid, sig.(unix.Signal))
				}
			case <-ended:
				return
			}
		}
	}()
	status, err := waitForEnd(pid)
	close(ended)
	<-forwarding
	signal.Stop(signals)
	return status, err
}

// waitForEnd stops this process when the program is stopped, so that a shell's job control sees the
// stop. When this process is continued, waitForEnd continues the program, unless it has been
// continued with us: by now it may have been stopped again.
func waitForEnd(child int) (unix.WaitStatus, error) {
	// A stop takes effect at once only on the thread that it is sent to.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const next, now = unix.WUNTRACED, unix.WUNTRACED | unix.WCONTINUED | unix.WNOHANG
	options := next
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(child, &status, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for program: %w", err)
		case pid == 0: // it is still stopped
			_ = unix.Kill(child, unix.SIGCONT)
			options = next
		case status.Continued():
			options = next
		case status.Stopped():
			_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
			options = now
		default:
			return status, nil
		}
	}
}

// fromTerminal tells whether the terminal sends a signal to the whole foreground process group. The
// program is in our group, so it then has the signal already.
func fromTerminal(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH, unix.SIGHUP:
	default:
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// sigaction is the kernel's struct on amd64 and arm64; all zero is SIG_DFL.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// Exit ends this process as the program ended: with its status, or by the signal that killed it.
// Go's runtime handles some signals even if nobody asked for them, so Exit restores the kernel's
// default by hand.
func Exit(status unix.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	sig := status.Signal()
	// The program has dumped its core, if any. A core of this process would not help anybody.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	runtime.LockOSThread()
	var act sigaction
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, unsafe.Sizeof(act.mask), 0, 0)
	mask := uint64(1) << (sig - 1)
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_UNBLOCK, uintptr(unsafe.Pointer(&mask)), 0, unsafe.Sizeof(mask), 0, 0)
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
	os.Exit(128 + int(sig)) // as a shell does
}
