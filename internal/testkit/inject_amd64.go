package testkit

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Inject has another process make a system call, as a debugger does, and returns its
// errno. What the process waited for goes on. The caller's seccomp filters play no
// part in it; the process's do. A call that creates or ends something has to get
// arguments with which it fails.
func Inject(t TB, pid int, number uintptr, arguments ...uint64) unix.Errno {
	t.Helper()
	runtime.LockOSThread() // only the thread that traces may give orders
	defer runtime.UnlockOSThread()
	try := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s process %d: %v", what, pid, err)
		}
	}
	await := func(signal unix.Signal) {
		t.Helper()
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		try("await", err)
		if !status.Stopped() || status.StopSignal() != signal {
			t.Fatalf("process %d: status %#x, want it stopped by %v", pid, status, signal)
		}
	}
	var before, during unix.PtraceRegs
	stop := func() (behindCall bool) {
		try("trace", unix.PtraceAttach(pid))
		await(unix.SIGSTOP)
		try("read registers of", unix.PtraceGetRegs(pid, &before))
		var instruction [2]byte
		_, err := unix.PtracePeekText(pid, uintptr(before.Rip-2), instruction[:])
		try("read memory of", err)
		return int64(before.Orig_rax) >= 0 && instruction == [2]byte{0x0f, 0x05} // syscall
	}
	// It may be on its way from one call to the next, or about to make a call again that was
	// interrupted: then it is still before the instruction.
	for !stop() {
		try("let go of", unix.PtraceDetach(pid))
	}
	defer func() { try("let go of", unix.PtraceDetach(pid)) }()
	during = before
	during.Rip -= 2              // the instruction that it waits behind is syscall
	during.Orig_rax = ^uint64(0) // it is not started again now
	during.Rax = uint64(number)
	for i, to := range []*uint64{&during.Rdi, &during.Rsi, &during.Rdx, &during.R10, &during.R8, &during.R9} {
		*to = 0
		if i < len(arguments) {
			*to = arguments[i]
		}
	}
	try("write registers of", unix.PtraceSetRegs(pid, &during))
	try("step", unix.PtraceSingleStep(pid))
	await(unix.SIGTRAP)
	var after unix.PtraceRegs
	try("read registers of", unix.PtraceGetRegs(pid, &after))
	try("write registers of", unix.PtraceSetRegs(pid, &before))
	if result := int64(after.Rax); result < 0 && result > -4096 {
		return unix.Errno(-result)
	}
	return 0
}
