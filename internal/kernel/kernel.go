// Package kernel tells whether this machine can do what Tsugiki needs, in words
// that say what is missing and what to do.
//
// It asks by trying, not by version, wherever trying changes nothing. It needs
// no privilege to tell that some are missing.
package kernel

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotSupported is wrapped by every UnsupportedError.
var ErrNotSupported = errors.New("not supported by this kernel")

// UnsupportedError is a kernel feature that is missing.
type UnsupportedError struct {
	Feature    string
	MinVersion string // the first kernel that has it, if configured
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is %s; it needs Linux %s or later, built with it", e.Feature, ErrNotSupported, e.MinVersion)
}

// Unwrap makes it an ErrNotSupported.
func (e *UnsupportedError) Unwrap() error { return ErrNotSupported }

// ErrPrivilege says that the caller may not do what grafting takes.
var ErrPrivilege = errors.New("not enough privilege")

// needed are the capabilities that grafting takes, and for what.
var needed = []struct {
	bit  int
	name string
	what string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "network namespaces and seccomp filters"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "cgroup BPF programs"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "the program's sockets"},
	{unix.CAP_SETPCAP, "CAP_SETPCAP", "limiting the program's capabilities"},
}

// Require returns why containers cannot be grafted here, or nil.
func Require() error {
	if err := requirePrivilege(); err != nil {
		return err
	}
	if err := requireFiles(); err != nil {
		return err
	}
	if !actionAvailable(unix.SECCOMP_RET_USER_NOTIF) {
		return &UnsupportedError{"seccomp user notification", "5.14"}
	}
	if _, err := unix.PidfdGetfd(-1, 0, 0); errors.Is(err, unix.ENOSYS) {
		return &UnsupportedError{"pidfd_getfd(2)", "5.6"}
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(s)
	if _, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return &UnsupportedError{"SO_NETNS_COOKIE", "5.14"}
	}
	return nil
}

// filesMin is how many files a container may have open at once here, with some
// room. At the limit the kernel's answers no longer tell what is missing.
const filesMin = 64

// ErrFiles says that too few files may be open.
var ErrFiles = errors.New("too many open files")

func requireFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < filesMin {
		return fmt.Errorf("%w: the limit is %d, at least %d are needed; raise it with ulimit -n", ErrFiles, limit.Cur, filesMin)
	}
	return nil
}

func requirePrivilege() error {
	have, err := effective()
	if err != nil {
		return err
	}
	for _, c := range needed {
		if have&(1<<c.bit) == 0 {
			return fmt.Errorf("%w: %s is needed for %s; run it as root", ErrPrivilege, c.name, c.what)
		}
	}
	return nil
}

func effective() (uint64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
		}
	}
	return 0, errors.New("read capabilities: /proc/self/status has no CapEff")
}

func actionAvailable(action uint32) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}
