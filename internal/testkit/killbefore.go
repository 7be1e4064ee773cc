package testkit

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Step is a system call that a program is about to make.
type Step struct {
	Number   uint64 // as in unix.SYS_BPF
	Argument [6]uint64
	thread   int
}

// Read copies the program's memory to b, as far as there is any.
func (s Step) Read(address uint64, b []byte) {
	_, _ = unix.PtracePeekData(s.thread, uintptr(address), b)
}

// KillBefore starts a program and kills it before the step of this number, from 1, is made; steps
// are the calls for which is says so. What the program itself starts is not killed. The results say
// whether the program was killed, or else how it ended. It needs root, or CAP_SYS_PTRACE.
func KillBefore(cmd *exec.Cmd, number int, is func(Step) bool) (killed bool, err error) {
	type result struct {
		killed bool
		err    error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: with the tracing thread the trace ends
		k := &killer{number: number, is: is}
		err := k.run(cmd)
		done <- result{k.killed, err}
	}()
	r := <-done
	return r.killed, r.err
}

type killer struct {
	number int
	is     func(Step) bool
	killed bool
}

func (k *killer) run(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	if err := k.follow(pid); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		_ = cmd.Wait()
		return fmt.Errorf("trace process %d: %w", pid, err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if k.killed && errors.As(err, &exit) {
		return nil
	}
	return err
}

// follow has the process run until it is about to end: its status is left to whoever waits for it.
func (k *killer) follow(pid int) error {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	for first := true; ; first = false {
		var info unix.Siginfo
		// A look first: the end of the process is not taken.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		thread := int(pidOf(&info))
		if thread == pid && (info.Code == cldExited || info.Code == cldKilled || info.Code == cldDumped) {
			return nil
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(thread, &status, unix.WALL, nil); err != nil {
			return err
		}
		if !status.Stopped() {
			continue // another thread has ended
		}
		if first {
			if err := unix.PtraceSetOptions(pid, options); err != nil {
				return err
			}
		}
		signal := 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if err := k.atCall(pid, thread); err != nil {
				return err
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP:
			signal = int(stop)
		}
		if err := unix.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// atCall looks at the beginning of a call, where the process can be killed before the call is made.
func (k *killer) atCall(pid, thread int) error {
	if k.killed {
		return nil
	}
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return errno
	}
	if info.op != atEntry || !k.is(Step{info.number, info.argument, thread}) {
		return nil
	}
	if k.number--; k.number > 0 {
		return nil
	}
	k.killed = true
	return unix.Kill(pid, unix.SIGKILL)
}

// Reasons in Siginfo.Code of waitid(2).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// pidOf is si_pid of waitid(2), which is behind three numbers, aligned.
func pidOf(info *unix.Siginfo) int32 {
	const offset = 16 // on machines of 64 bits
	return *(*int32)(unsafe.Add(unsafe.Pointer(info), offset))
}
