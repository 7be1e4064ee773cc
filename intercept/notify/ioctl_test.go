package notify

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unprivileged runs fn on a thread of its own, without capabilities, in a network
// namespace that has nothing but a loopback.
func unprivileged(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			err = unix.Capset(&header, &none[0])
		}
		if err == nil {
			fn()
		}
		done <- err
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skip("skip: needs root")
	} else if err != nil {
		t.Fatal(err)
	}
}

// Requests with which the kernel carries on fail without CAP_NET_ADMIN, on each kind of
// socket that there may be on the host, and tell nothing.
func TestRequestsThatProceed(t *testing.T) {
	tried := 0
	unprivileged(t, func() {
		for _, kind := range []struct{ family, typ int }{
			{unix.AF_INET, unix.SOCK_STREAM},
			{unix.AF_INET, unix.SOCK_DGRAM},
			{unix.AF_INET6, unix.SOCK_STREAM},
			{unix.AF_INET6, unix.SOCK_DGRAM},
			{unix.AF_UNIX, unix.SOCK_STREAM},
			{unix.AF_UNIX, unix.SOCK_DGRAM},
		} {
			fd, err := unix.Socket(kind.family, kind.typ|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for number := uint32(0); number < 1<<16; number++ {
				if treatmentOf(number) != proceeds {
					continue
				}
				tried++
				arg := [256]byte{'l', 'o'}
				before := arg
				_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(number), uintptr(unsafe.Pointer(&arg)))
				if errno == 0 || arg != before {
					t.Errorf("request %#x of a socket of family %d: %v, and %q was written", number, kind.family, errno, arg)
				}
			}
			_ = unix.Close(fd)
		}
	})
	if tried < 6*40 {
		t.Errorf("only %d requests were tried", tried)
	}
}

// Every request that is trapped and that the kernel knows without CAP_NET_ADMIN is made
// by us, or refused: unknown ones are unknown to the kernel as well.
func TestUnknownRequests(t *testing.T) {
	unprivileged(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		for number := uint32(0x8910); number < 0x8c00; number++ {
			if number>>8 == 0x8a || number == unix.SIOCOUTQNSD || treatmentOf(number) != unknown {
				continue
			}
			arg := [256]byte{'l', 'o'}
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(number), uintptr(unsafe.Pointer(&arg)))
			if errno != unix.ENOTTY {
				t.Errorf("request %#x: the kernel says %v", number, errno)
			}
		}
	})
}
