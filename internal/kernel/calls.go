package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// calls are system calls and their flags.
var calls = []Feature{
	{
		Name: "seccomp user notification", Since: "5.14", Required: true, early: true, // CONFIG_SECCOMP_FILTER
		Lost:  "the kernel does not trap socket calls",
		Probe: func(*Scratch) (string, error) { return "", actionAvailable(unix.SECCOMP_RET_USER_NOTIF) },
	},
	{
		Name: "seccomp listener", Required: true,
		Lost: "tsugiki cannot receive trapped calls in this place",
		Probe: func(*Scratch) (string, error) {
			err := withListener(func(int) error { return nil })
			if errors.Is(err, errUntold) {
				err = errors.New("this process is itself supervised by a seccomp listener; start tsugiki outside of that container")
			}
			return "", err
		},
	},
	{
		// With this flag, one call adds the descriptor and answers.
		Name: "SECCOMP_ADDFD_FLAG_SEND", Since: "5.14", Required: true,
		Lost:  "programs cannot get host sockets",
		Probe: func(*Scratch) (string, error) { return "", withListener(addfdSend) },
	},
	{
		// With known flags the call fails at the missing filter (EFAULT). See package launch.
		Name: "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", Since: "5.19",
		Lost: "a signal can interrupt a trapped call while it is answered; the call then runs twice",
		Probe: func(*Scratch) (string, error) {
			const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
			_, errno := seccompFilter(flags, nil)
			return "", except(errno, unix.EFAULT)
		},
	},
	{
		Name: "SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP", Since: "6.6",
		Lost: "new connections of static programs are slower",
		Probe: func(*Scratch) (string, error) {
			return "", withListener(func(l int) error {
				_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
				return except(errno)
			})
		},
	},
	{
		Name: "pidfd_getfd(2)", Since: "5.6", Required: true, early: true,
		Lost: "the agent cannot inspect programs' sockets",
		Probe: func(*Scratch) (string, error) {
			p, err := unix.PidfdOpen(os.Getpid(), 0)
			if err != nil {
				return "", err
			}
			defer unix.Close(p)
			fd, err := unix.PidfdGetfd(p, p, 0)
			if err == nil {
				unix.Close(fd)
			}
			return "", err
		},
	},
	{
		Name: "PIDFD_THREAD", Since: "6.9",
		Lost: "threads other than a process's first: calls for which a socket is inspected are slower, 32-bit programs cannot set options, and descriptors of their own are taken for those of the process",
		Probe: func(*Scratch) (string, error) {
			const pidfdThread = unix.O_EXCL
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			p, err := unix.PidfdOpen(unix.Gettid(), pidfdThread)
			if err == nil {
				unix.Close(p)
			}
			return "", err
		},
	},
	{
		Name: "process_vm_readv(2)", Since: "3.2", Required: true, early: true, // CONFIG_CROSS_MEMORY_ATTACH
		Lost: "the gate cannot read the addresses of calls",
		Probe: func(*Scratch) (string, error) {
			from, to := byte(1), byte(0)
			remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&from)), Len: 1}}
			_, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &to, Len: 1}}, remote, 0)
			runtime.KeepAlive(&from)
			return "", err
		},
	},
	{
		Name: "/proc/PID/mem",
		Lost: "programs cannot use names and options of AF_GRAFT",
		Probe: func(*Scratch) (string, error) {
			f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
			if err == nil {
				f.Close()
			}
			return "", err
		},
	},
	{
		Name: "kcmp(2)", Since: "4.13", // KCMP_EPOLL_TFD; CONFIG_KCMP
		Lost:  "moving a socket that is registered with epoll takes longer, because all registrations are read",
		Probe: func(*Scratch) (string, error) { return "", compareEpoll() },
	},
	{
		Name: "SO_NETNS_COOKIE", Since: "5.14", Required: true, early: true,
		Lost: "the network namespace of a socket is unknown",
		Probe: func(*Scratch) (string, error) {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return "", fmt.Errorf("make socket: %w", err)
			}
			defer unix.Close(s)
			_, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			return "", err
		},
	},
	{
		Name: "SO_PEERPIDFD", Since: "6.5",
		Lost:  "if a caller of tsugiki graft ends at once, a new process with its PID may be taken for the caller",
		Probe: func(*Scratch) (string, error) { return "", peerPidfd() },
	},
	{
		Name: "F_SEAL_FUTURE_WRITE", Since: "5.1", Required: true, early: true,
		Lost:  "programs could change the shared page with their rules",
		Probe: func(*Scratch) (string, error) { return "", sealFutureWrite() },
	},
	{
		Name: "close_range(2)", Since: "5.9", Required: true, early: true,
		Lost: "the keeper and the gate cannot start",
		Probe: func(*Scratch) (string, error) {
			return "", unix.CloseRange(1<<31-1, 1<<31-1, 0) // no such descriptor
		},
	},
	{
		Name: "MADV_WIPEONFORK", Since: "4.14",
		Lost: "dynamic programs get no sockets in advance, and need more round trips",
		Probe: func(*Scratch) (string, error) {
			page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				return "", err
			}
			defer unix.Munmap(page) //nolint:errcheck // it is ours
			return "", unix.Madvise(page, unix.MADV_WIPEONFORK)
		},
	},
	{
		Name: "network namespaces", Since: "3.0", Required: true, // CONFIG_NET_NS
		Lost: "containers cannot have a network namespace",
		Probe: func(*Scratch) (string, error) {
			return "", thread.Do(func() error { return unix.Unshare(unix.CLONE_NEWNET) })
		},
	},
	{
		Name: "IPv6", Since: "2.6", // CONFIG_IPV6, ipv6.disable=0
		Lost: "endpoints of type ipv6 do not work",
		Probe: func(*Scratch) (string, error) {
			s, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.Close(s)
			}
			return "", err
		},
	},
}

// withListener calls fn with the listener of a filter that allows all calls, on a thread that
// ends after fn.
func withListener(fn func(listener int) error) error {
	return thread.Do(func() error {
		// Without no_new_privs, a filter needs CAP_SYS_ADMIN.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
		l, errno := seccompFilter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, &unix.SockFprog{Len: 1, Filter: &allow})
		if errno == unix.EBUSY { // there is one in the chain of filters
			return Untold("unknown, because it cannot be tried without a seccomp listener")
		}
		if errno != 0 {
			return errno
		}
		defer unix.Close(l)
		return fn(l)
	})
}

func seccompFilter(flags uintptr, prog *unix.SockFprog) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(prog)))
	return int(fd), errno
}

// except returns errno as an error, or nil for 0 and for the good ones.
func except(errno unix.Errno, good ...unix.Errno) error {
	for _, g := range append(good, 0) {
		if errno == g {
			return nil
		}
	}
	return errno
}

func actionAvailable(action uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return except(errno)
}

// addfdSend sends a descriptor that does not exist. The kernel checks the flags first, so EBADF
// means that it knows the flags.
func addfdSend(listener int) error {
	addfd := struct {
		id                            uint64
		flags, srcfd, newfd, newflags uint32
	}{flags: 2 /* SECCOMP_ADDFD_FLAG_SEND */, srcfd: 1<<31 - 1}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&addfd)))
	return except(errno, unix.EBADF)
}

func compareEpoll() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(epoll)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(event)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{}); err != nil {
		return err
	}
	const kcmpEpollTFD = 7
	slot := struct{ efd, tfd, toff uint32 }{efd: uint32(epoll), tfd: uint32(event)}
	pid := uintptr(os.Getpid())
	_, _, errno := unix.RawSyscall6(unix.SYS_KCMP, pid, pid, kcmpEpollTFD, uintptr(event), uintptr(unsafe.Pointer(&slot)), 0)
	return except(errno)
}

func peerPidfd() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const soPeerPidfd = 77 // of asm/socket.h
	p, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, soPeerPidfd)
	if err == nil {
		unix.Close(p)
	}
	return err
}

func sealFutureWrite() error {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	return err
}
