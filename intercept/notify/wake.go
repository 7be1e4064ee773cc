package notify

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wakeSignal interrupts a receiver that waits for a notification. It is a
// real-time signal that neither Go nor the C libraries use.
const wakeSignal = unix.Signal(62)

// sigaction is the kernel's struct on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const saRestart = 0x10000000

// handleWakeSignal lets wakeSignal do nothing but interrupt. Go's handlers ask
// for system calls to be restarted, which NOTIF_RECV then would be.
var handleWakeSignal = sync.OnceValue(func() error {
	signal.Notify(make(chan os.Signal, 1), wakeSignal)
	var act sigaction
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(wakeSignal), 0, uintptr(unsafe.Pointer(&act)), 8, 0, 0); errno != 0 {
		return fmt.Errorf("read handler of signal %d: %w", wakeSignal, errno)
	}
	act.flags &^= saRestart
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(wakeSignal), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); errno != 0 {
		return fmt.Errorf("set handler of signal %d: %w", wakeSignal, errno)
	}
	return nil
})

// hearOnlyWakeSignal makes the goroutine's thread its own and deaf to all else.
// An ADDFD that a signal interrupts can leave the program with a call that
// returned 0 instead of a descriptor: the kernel takes the file back but not the
// reply that SECCOMP_ADDFD_FLAG_SEND made of it (seen on 6.18). Go's scheduler
// signals threads as it likes, and manages without.
func hearOnlyWakeSignal() {
	runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
	mask := ^(uint64(1) << (wakeSignal - 1))
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&mask)), 0, unsafe.Sizeof(mask), 0, 0)
}
