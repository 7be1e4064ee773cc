package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that others send us and mean the program: all that
// would end or stop us and can be caught, and those that programs use.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGWINCH,
}

// Wait waits for the program to end, passes signals on to it meanwhile, and
// returns how it ended.
func (c *Container) Wait() (unix.WaitStatus, error) {
	signals := make(chan os.Signal, 32)
	var notify []os.Signal
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // else the program ignores it too
			notify = append(notify, sig)
		}
	}
	signal.Notify(signals, notify...)
	ended := make(chan struct{})
	forwarding := make(chan struct{})
	go func() {
		defer close(forwarding)
		for {
			select {
			case sig := <-signals:
				if !fromTerminal(sig) {
					_ = unix.Kill(c.process.PID, sig.(unix.Signal))
				}
			case <-ended:
				return
			}
		}
	}()
	status, err := c.waitForEnd()
	close(ended)
	<-forwarding
	signal.Stop(signals)
	return status, err
}

// waitForEnd stops when the program is stopped, so that a shell's job control
// sees it, and continues it when we are continued.
func (c *Container) waitForEnd() (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(c.process.PID, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for program: %w", err)
		case status.Stopped():
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			_ = unix.Kill(c.process.PID, unix.SIGCONT)
		default:
			return status, nil
		}
	}
}

// fromTerminal tells whether a signal is one that the terminal sends to the
// whole foreground process group: the program, which is in ours, then has it
// already.
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

// Exit ends this process as the program ended: with its status, or by the
// signal that killed it.
func Exit(status unix.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	sig := status.Signal()
	// The program has dumped its core, if any; ours is nobody's business.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	signal.Reset(sig)
	_ = unix.Kill(os.Getpid(), syscall.Signal(sig))
	select {} // until it is delivered
}
