package launch

import (
	"bufio"
	"encoding/gob"
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

// IsChild tells whether this process is the child that Start makes. A program
// that uses Start calls it first thing in main, and then Child.
func IsChild() bool { return len(os.Args) == 4 && os.Args[0] == argv0 }

// Child does the child's part and does not return.
func Child() {
	runtime.LockOSThread() // namespaces, filter and credentials are the thread's
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

// become turns the process into the program, or returns why it cannot.
func become(control, orders, ns *os.File) error {
	var o order
	if err := gob.NewDecoder(orders).Decode(&o); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	// Before privileges are dropped: without no_new_privs, which would take
	// set-user-ID programs from the container, a filter needs CAP_SYS_ADMIN.
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
	err = syscall.Exec(o.Path, o.Args, env)
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &ExecError{o.Path, errno}
}

// environment is the program's, which is told to load the library. One that its
// user cannot read would only make the dynamic loader complain.
func environment(o order) ([]string, error) {
	if o.Preload == "" {
		return os.Environ(), nil
	}
	if err := preloadable(o.Preload); err != nil {
		if o.NeedsPreload {
			return nil, err
		}
		return os.Environ(), nil
	}
	return shim.Preload(os.Environ(), o.Preload), nil
}

func preloadable(path string) error {
	if strings.ContainsAny(path, " :") {
		return fmt.Errorf("the dynamic loader takes %q for several; install it where the path has no space or colon", path)
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return fmt.Errorf("the program's user cannot read %s: %w; install it where everybody can", path, err)
	}
	return nil
}

// filterFlags: WAIT_KILLABLE_RECV (5.19, kernel commit c2aa2dfef243) keeps
// signals from interrupting a call once the supervisor has it, so that what the
// supervisor did is not done again when the call is restarted. SPEC_ALLOW (4.17):
// before 5.16 a filter would else switch on mitigations of speculation that the
// program has not asked for, and that cost it more than the filter does.
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

// dropPrivileges works on this thread alone, which is the one that executes.
func dropPrivileges(o order) error {
	if err := o.Caps.limit(); err != nil {
		return err
	}
	if u := o.User; u != nil {
		groups := make([]uint32, len(u.Groups)+1) // never empty: its address is taken
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
