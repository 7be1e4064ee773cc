package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/shim"
)

// IsChild reports whether this process is the child that Start makes. A program that uses Start
// calls IsChild first in main, and Child if it returns true.
func IsChild() bool { return len(os.Args) == 4 && os.Args[0] == argv0 }

// Namespace, filter and credentials belong to a thread. The child's is its first, which is the one
// that others see as the process: main may run on another thread unless an init locks it.
func init() {
	if IsChild() {
		runtime.LockOSThread()
	}
}

// Child does the work of the child, see Start. It does not return.
func Child() {
	var files [3]*os.File
	for i := range files {
		fd, err := strconv.Atoi(os.Args[1+i])
		if err != nil {
			os.Exit(1)
		}
		unix.CloseOnExec(fd)
		files[i] = os.NewFile(uintptr(fd), "launch")
	}
	control := files[0]
	err := become(control, files[1], files[2])
	r := report{Error: err.Error()}
	if e := new(ExecError); errors.As(err, &e) {
		r.Errno = e.Errno
	}
	_ = json.NewEncoder(control).Encode(r)
	os.Exit(1)
}

// become executes the program in this process. It returns only with an error.
func become(control, orders, ns *os.File) error {
	var o order
	if err := json.NewDecoder(orders).Decode(&o); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	// Install the filter before dropping privileges. Without no_new_privs, a filter needs
	// CAP_SYS_ADMIN. With no_new_privs, set-user-ID programs would not work in the container.
	listener, err := installFilter(o.Filter)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(control).Encode(report{Listener: listener}); err != nil {
		return err
	}
	if _, err := bufio.NewReader(control).ReadByte(); err != nil {
		return fmt.Errorf("wait for parent: %w", err)
	}
	if err := unix.Close(listener); err != nil {
		return fmt.Errorf("close listener: %w", err)
	}
	if err := dropPrivileges(o); err != nil {
		return err
	}
	env, err := environment(o)
	if err != nil {
		return err
	}
	var args []string
	for _, arg := range o.Args {
		args = append(args, string(arg))
	}
	err = syscall.Exec(string(o.Path), args, env)
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &ExecError{string(o.Path), errno}
}

// environment returns the environment of the program, with the library in LD_PRELOAD. Without
// NeedsPreload it leaves out a library that the program's user cannot read: the dynamic loader
// would print an error for each program.
func environment(o order) ([]string, error) {
	if len(o.Preload) == 0 {
		return os.Environ(), nil
	}
	preload := string(o.Preload)
	if err := preloadable(preload); err != nil {
		if o.NeedsPreload {
			return nil, err
		}
		return os.Environ(), nil
	}
	return shim.Preload(os.Environ(), preload), nil
}

func preloadable(path string) error {
	if strings.ContainsAny(path, " :") {
		return fmt.Errorf("the dynamic loader splits the path %q at its spaces and colons; install the library at another path", path)
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return fmt.Errorf("the program's user cannot read %s: %w; install it where all users can read it", path, err)
	}
	return nil
}

// filterFlags: with WAIT_KILLABLE_RECV (5.19, kernel commit c2aa2dfef243) signals do not
// interrupt a call that the supervisor has received. Otherwise the call restarts, and the
// supervisor does its work twice. With SPEC_ALLOW (4.17) the filter does not switch on
// mitigations of speculation, as it does before 5.16; they cost more than the filter.
const (
	filterFlags       = filterFlagsOldest | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	filterFlagsOldest = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
)

func installFilter(filter []unix.SockFilter) (listener int, err error) {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, errno := seccomp(filterFlags, &prog)
	if errno == unix.EINVAL {
		fd, errno = seccomp(filterFlagsOldest, &prog)
	}
	if errno != 0 {
		return -1, fmt.Errorf("install seccomp filter: %w", errno)
	}
	return fd, nil
}

func seccomp(flags uintptr, prog *unix.SockFprog) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(prog)))
	return int(fd), errno
}

// dropPrivileges changes the credentials of this thread only. This thread executes the program.
func dropPrivileges(o order) error {
	if err := o.Caps.limit(); err != nil {
		return err
	}
	if u := o.User; u != nil {
		groups := make([]uint32, len(u.Groups)+1) // never empty, because its address is taken
		for i, g := range u.Groups {
			groups[i] = uint32(g)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return fmt.Errorf("set groups: %w", errno)
		}
		gid, uid := uintptr(u.GID), uintptr(u.UID)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
			return fmt.Errorf("set group %d: %w", u.GID, errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return fmt.Errorf("set user %d: %w", u.UID, errno)
		}
	}
	return o.Caps.set()
}
