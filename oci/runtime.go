package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/programs"
)

// findRuntime returns the real runtime: the path of the configuration, or of the
// environment, or what is found by a usual name. It is never this program, which may
// be installed under such a name.
func findRuntime(configured, environment string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find out who we are: %w", err)
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
			return "", fmt.Errorf("find OCI runtime: %s is tsugiki-runtime itself; name the real one as runtime.path in /etc/tsugiki/agent.toml", path)
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
	return "", errors.New("find OCI runtime: neither runc nor crun is there; install one, or name it as runtime.path in /etc/tsugiki/agent.toml")
}

// lookPath finds a program in PATH, or where programs usually are: podman calls runtimes
// without any PATH.
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

var usualDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// become turns this process into the runtime.
func (w *Wrapper) become(args []string) error {
	err := syscall.Exec(w.runtime, append([]string{w.runtime}, args...), os.Environ())
	return fmt.Errorf("execute %s: %w", w.runtime, err)
}

// exists tells whether the runtime has a container.
func (w *Wrapper) exists(c command) bool {
	args := []string{"state", c.id}
	if c.root != "" {
		args = append([]string{"--root", c.root}, args...)
	}
	return exec.Command(w.runtime, args...).Run() == nil
}

// run runs the runtime to its end and returns its exit status. It has our standard
// streams and, as those that we were given do not close when it is executed, all our
// files; it gets our signals and does not outlive us.
//
// The caller has locked its thread: to the kernel it is that thread that is the
// parent (PR_SET_PDEATHSIG).
func (w *Wrapper) run(args []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	defer signal.Stop(signals)
	child, err := os.StartProcess(w.runtime, append([]string{w.runtime}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("execute %s: %w", w.runtime, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				// Go's own, those about our child, and what a write that fails brings.
				if s != unix.SIGURG && s != unix.SIGCHLD && s != unix.SIGPIPE {
					_ = child.Signal(s) // it may be gone
				}
			case <-done:
				return
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

// report says what went wrong where people look for it: on standard error, and in the
// runtime's log, which is what engines show.
func report(c command, err error) {
	message := "tsugiki: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	fmt.Fprintln(os.Stderr, message)
	note(c, "error", message)
}

// noteNetRaw is said of each container that loses netRaw.
const noteNetRaw = "its programs do not get " + netRaw + ", with which they could get around its rules; ping works by datagram sockets, raw sockets do not"

// note writes a line to the runtime's log, if there is one. Standard error is for
// errors alone: it is the container's.
func note(c command, level, message string) {
	if c.log == "" {
		return
	}
	f, err := os.OpenFile(c.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return // errors have been said on standard error
	}
	defer f.Close()
	now := time.Now().UTC().Format(time.RFC3339)
	if c.logFormat != "json" {
		fmt.Fprintf(f, "time=%q level=%s msg=%q\n", now, level, message)
		return
	}
	_ = json.NewEncoder(f).Encode(map[string]string{"level": level, "msg": message, "time": now})
}
