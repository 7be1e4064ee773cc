package host

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// path is where programs of the node are. Programs get it, and that a Go program that panics ends by a
// signal, as with the agent's unit.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// namespaces are those of the node. The pod has the node's processes, and its user namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Become has this process be what Run was told. It returns only with an error.
func Become(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("%s is for tsugiki-kube itself; there are install, agent, ready and uninstall", Command)
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := enter(pid); err != nil {
		return fmt.Errorf("enter the node's namespaces: %w; the container has to be privileged", err)
	}
	if args[1] == outside {
		if err := leavePod(); err != nil {
			return fmt.Errorf("leave the pod's cgroups: %w", err)
		}
	}
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	program, err := exec.LookPath(args[2])
	if err != nil {
		return err
	}
	err = syscall.Exec(program, args[2:], []string{"PATH=" + path, "GOTRACEBACK=crash"})
	return &os.PathError{Op: "execute", Path: program, Err: err}
}

// enter moves this thread into the namespaces of a process. A program that it executes is there, too. It
// needs CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE.
func enter(pid int) error {
	runtime.LockOSThread()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// A thread that shares its root with others cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(fd, namespaces); err != nil {
		return err
	}
	return unix.Chdir("/")
}
