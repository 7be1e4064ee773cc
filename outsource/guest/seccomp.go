package guest

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
)

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// trap is a call that the supervisor sees. With levels, only for these levels of options; SOL_SOCKET's
// are only those of names.
type trap struct {
	nr    uint32
	names []uint32 // of SOL_SOCKET; nil: the call has no level
}

// traps are the calls of supervisor.handle. Options of SOL_SOCKET that are not listed are the vsock
// socket's own.
var traps = []trap{
	{nr: unix.SYS_CONNECT},
	{nr: unix.SYS_BIND},
	{nr: unix.SYS_LISTEN},
	{nr: unix.SYS_ACCEPT},
	{nr: unix.SYS_ACCEPT4},
	{nr: unix.SYS_GETSOCKNAME},
	{nr: unix.SYS_GETPEERNAME},
	{unix.SYS_GETSOCKOPT, []uint32{unix.SO_ERROR, unix.SO_DOMAIN, unix.SO_PROTOCOL, unix.SO_KEEPALIVE}},
	{unix.SYS_SETSOCKOPT, []uint32{unix.SO_KEEPALIVE}},
}

// levels are those of IP.
var levels = []uint32{unix.SOL_IP, unix.SOL_IPV6, unix.SOL_TCP}

const ioUringSetup = 425

// filter returns the program that traps calls. Calls of other ABIs are not trapped: such programs
// have the guest's own network. io_uring is refused, because its requests pass no filter.
func filter() []unix.SockFilter {
	p := []unix.SockFilter{
		load(offArch), jump(archToken, 1, 0), ret(unix.SECCOMP_RET_ALLOW),
		load(offNumber), jump(ioUringSetup, 0, 1), ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
	}
	for _, t := range traps {
		body := []unix.SockFilter{ret(unix.SECCOMP_RET_USER_NOTIF)}
		if t.names != nil {
			body = []unix.SockFilter{load(offArgs + 8)}
			for _, level := range levels {
				body = append(body, jump(level, 0, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
			}
			body = append(body, jump(unix.SOL_SOCKET, 1, 0), ret(unix.SECCOMP_RET_ALLOW), load(offArgs+16))
			for _, name := range t.names {
				body = append(body, jump(name, 0, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
			}
			body = append(body, ret(unix.SECCOMP_RET_ALLOW))
		}
		p = append(p, jump(t.nr, 0, uint8(len(body))))
		p = append(p, body...)
	}
	return append(p, ret(unix.SECCOMP_RET_ALLOW))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(k uint32, ifTrue, ifFalse uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: ifTrue, Jf: ifFalse, K: k}
}

func ret(value uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
}

// install puts the calling thread under the filter, and returns the listener.
func install() (seccomp.Listener, error) {
	code := filter()
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, fmt.Errorf("install seccomp filter: %w", errno)
	}
	return seccomp.Listener(fd), nil
}
