package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PTRACE_GET_SYSCALL_INFO (5.3), and what it says of a stop.
const (
	ptraceGetSyscallInfo = 0x420e
	atEntry, atExit      = 1, 2
)

// syscallInfo is the beginning of struct ptrace_syscall_info, linux/ptrace.h.
type syscallInfo struct {
	op       uint8
	_        [7]byte
	_, _     uint64 // where the thread is
	number   uint64 // at the entry
	argument [6]uint64
}

// PauseAfter pauses a thread of another process where the scheduler too could: at the end of the next
// ioctl(2) with the request. The thread has not run on. paused is closed when it is there, and resume lets
// it go on; so does the test's end. It needs root, or CAP_SYS_PTRACE.
func PauseAfter(t TB, thread int, request uint) (paused <-chan struct{}, resume func()) {
	t.Helper()
	there, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	seized := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: with the tracing thread the trace ends
		err := unix.PtraceSeize(thread)
		seized <- err
		if err != nil {
			return
		}
		if err := runToEndOf(thread, request); err != nil {
			ended <- err
			return
		}
		close(there)
		<-goOn
		ended <- unix.PtraceDetach(thread)
	}()
	if err := <-seized; err != nil {
		t.Fatalf("trace thread %d: %v", thread, err)
	}
	resume = sync.OnceFunc(func() {
		close(goOn)
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, unix.ESRCH) {
				t.Errorf("let go of thread %d: %v", thread, err)
			}
		case <-time.After(Patience):
			t.Errorf("thread %d has not made the call", thread)
		}
	})
	t.Cleanup(resume)
	return there, resume
}

// runToEndOf has a seized thread run until an ioctl(2) with the request ends.
func runToEndOf(thread int, request uint) error {
	if err := unix.PtraceInterrupt(thread); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	for first, within := true, false; ; first = false {
		var status unix.WaitStatus
		if _, err := unix.Wait4(thread, &status, unix.WALL, nil); err != nil || !status.Stopped() {
			return fmt.Errorf("await a stop: status %#x, %w", status, err)
		}
		if first { // or the kernel does not say what the others are
			if err := unix.PtraceSetOptions(thread, unix.PTRACE_O_TRACESYSGOOD); err != nil {
				return fmt.Errorf("set options: %w", err)
			}
		}
		var info syscallInfo
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
		switch {
		case errno != 0:
			return fmt.Errorf("ask about a stop: %w", errno)
		case info.op == atEntry:
			within = info.number == unix.SYS_IOCTL && info.argument[1] == uint64(request)
		case info.op == atExit && within:
			return nil
		}
		if err := unix.PtraceSyscall(thread, 0); err != nil { // no signal is let through
			return fmt.Errorf("run on: %w", err)
		}
	}
}
