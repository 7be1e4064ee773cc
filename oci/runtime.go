package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/programs"
)

// findRuntime returns the path of the real runtime: that of the configuration, of the
// environment, or of runc or crun. It never returns this program, which may be installed under
// such a name.
func findRuntime(configured, environment string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	for _, named := range []string{configured, environment} {
		if named == "" {
			continue
		}
		path, err := lookPath(named)
		if err != nil {
			return "", fmt.Errorf("find OCI runtime: %w", err)
		}
		if st, err := os.Stat(path); err == nil && os.SameFile(st, self) {
			return "", fmt.Errorf("find OCI runtime: %s is tsugiki-runtime itself; set runtime.path in /etc/tsugiki/agent.toml to the real runtime", path)
		}
		return path, nil
	}
	for _, name := range []string{"runc", "crun"} {
		path, err := lookPath(name)
		if err != nil {
			continue
		}
		if st, err := os.Stat(path); err == nil && !os.SameFile(st, self) {
			return path, nil
		}
	}
	return "", errors.New("find OCI runtime: neither runc nor crun is installed; install one, or set runtime.path in /etc/tsugiki/agent.toml")
}

// lookPath finds a program in PATH or in the usual folders. Podman calls runtimes without PATH.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || strings.ContainsRune(name, '/') {
		return path, err
	}
	if found, missing := programs.FindIn(name, usualDirs); missing == nil {
		return found, nil
	}
	return "", err
}

// The last one is where the packages of the CRI-O project have runc and crun.
var usualDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/libexec/crio"}

// become executes the real runtime in this process. It returns only with an error.
func (w *Wrapper) become(args []string) error {
	err := syscall.Exec(w.runtime, append([]string{w.runtime}, args...), os.Environ())
	return fmt.Errorf("execute %s: %w", w.runtime, err)
}

// exists reports whether the real runtime knows the container.
func (w *Wrapper) exists(c command) bool {
	args := []string{"state", c.id}
	if c.root != "" {
		args = append([]string{"--root", c.root}, args...)
	}
	return exec.Command(w.runtime, args...).Run() == nil
}

// run starts the real runtime, waits for its end and returns its exit status. The runtime
// inherits the standard streams and all files that this process was given. It receives the
// signals of this process, and is killed if this process ends. Until then, no signal ends this
// process, which has to undo what it has done.
func (w *Wrapper) run(args []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	// The kernel sends the signal of PR_SET_PDEATHSIG when the thread that started the runtime
	// ends, so this goroutine stays on its thread. (It is not locked earlier: goroutines that wait
	// for each other would then need a switch of threads.)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess(w.runtime, append([]string{w.runtime}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("execute %s: %w", w.runtime, err)
	}
	go func() {
		for s := range signals {
			// SIGURG is Go's own, SIGCHLD is about the child, SIGPIPE about a failed write.
			if s != unix.SIGURG && s != unix.SIGCHLD && s != unix.SIGPIPE {
				_ = child.Signal(s) // the child may have ended
			}
		}
	}()
	result, err := child.Wait()
	if err != nil {
		return 1, fmt.Errorf("wait for %s: %w", w.runtime, err)
	}
	if status := result.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return result.ExitCode(), nil
}

// report writes an error to standard error and to the runtime's log, which engines show.
func report(c command, err error) {
	message := "tsugiki: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	fmt.Fprintln(os.Stderr, message)
	note(c, "error", message)
}

// noteNetRaw is the note for each container that loses netRaw.
const noteNetRaw = "its programs do not get " + netRaw + ", because they could get around its rules with it; ping works with datagram sockets, raw sockets do not work"

// note writes a line to the runtime's log, if the command names one. It does not write to
// standard error, which belongs to the container.
func note(c command, level, message string) {
	if c.log == "" {
		return
	}
	f, err := os.OpenFile(c.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return // report has written errors to standard error
	}
	defer f.Close()
	now := time.Now().UTC().Format(time.RFC3339)
	if c.logFormat != "json" {
		fmt.Fprintf(f, "time=%q level=%s msg=%q\n", now, level, message)
		return
	}
	_ = json.NewEncoder(f).Encode(map[string]string{"level": level, "msg": message, "time": now})
}
