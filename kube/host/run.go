// Package host has a container of a pod start programs of its node, outside of the pod.
//
// The agent has processes that serve the containers of other pods, and have to outlive it. The
// processes of a pod end with the pod: the kubelet has its cgroups killed. So the agent is started in
// the namespaces of the container's parent, which is containerd's shim and sees the node as containerd
// does, and in a cgroup beside those of all pods.
//
// The container needs hostPID, and all capabilities, without a seccomp filter (privileged). Linux 5.8.
package host

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoHostPID says that the pod has processes of its own.
var ErrNoHostPID = errors.New("the node's processes are not to be seen; the pod needs hostPID: true")

// Self is the path of this program, also where the node has no such file.
const Self = "/proc/self/exe"

// Command is the first argument with which this program calls itself. Become is to be called with
// the others: the id of a process of the node, outside or inside, and the program with its arguments.
const (
	Command = "on-node"
	outside = "outside"
	inside  = "inside"
)

// Run starts a program in the node's namespaces and outside of the pod's cgroups, for children that
// outlive the pod. It returns its exit status when it has ended. What the program
// writes, Run writes to w. SIGTERM, SIGINT and SIGHUP of this process are passed on. If this process
// ends otherwise, the program is killed. The program's own children are not.
func Run(w io.Writer, program string, args ...string) (int, error) {
	return run(w, outside, program, args)
}

// RunInside is Run for a program that ends with the pod.
func RunInside(w io.Writer, program string, args ...string) (int, error) {
	return run(w, inside, program, args)
}

func run(w io.Writer, where, program string, args []string) (int, error) {
	parent := os.Getppid()
	if parent == 0 {
		return 0, ErrNoHostPID
	}
	out, theirs, err := lasting()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)

	// The kernel sends the signal of Pdeathsig when the thread ends that has started the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(Self, append([]string{Command, strconv.Itoa(parent), where, program}, args...)...)
	cmd.Stdout, cmd.Stderr = theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	copied := make(chan struct{})
	go func() {
		_, _ = io.Copy(w, out) // until the deadline
		close(copied)
	}()
	err = cmd.Wait()
	if late := out.SetReadDeadline(past); late != nil {
		return 0, late
	}
	<-copied
	rest(w, out)
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		err = nil
	}
	if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return 128 + int(status.Signal()), err
	}
	return cmd.ProcessState.ExitCode(), err
}
