package kubetest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Place is where programs run: a namespace of a topology, or a rig.
type Place interface {
	Command(ctx context.Context, name string, args ...string) *testkit.Cmd
}

// Program returns the path of a program of Kubernetes. It skips the test where that is not built.
func Program(t testkit.TB, name string) string {
	t.Helper()
	path := filepath.Join(cache(t), name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("skip: needs %s, which make deps-kube builds", name)
	}
	return path
}

// Containerd returns containerd's programs in the cache, by the paths of those of the distribution whose
// place they take. It skips the test where they are not built.
func Containerd(t testkit.TB) map[string]string {
	t.Helper()
	dir := Program(t, "containerd")
	programs := map[string]string{}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		programs["/usr/bin/"+name] = filepath.Join(dir, name)
	}
	return programs
}

// cache is the folder in which scripts/kube.sh leaves programs.
func cache(t testkit.TB) string {
	t.Helper()
	if dir := os.Getenv("TSUGIKI_KUBE_CACHE"); dir != "" {
		return dir
	}
	return filepath.Join(Root(t), ".cache", "kube")
}

// Root is the folder of the project.
func Root(t testkit.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("%v", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "tools", "kube", "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatalf("find the project's folder: no tools/kube/go.mod above the test")
	return ""
}

// tempDir makes a folder that the end of a test removes, or of a program that uses this package.
func tempDir(t testkit.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Process is a program that runs until it is stopped, or the test ends.
type Process struct {
	t     testkit.TB
	place Place
	name  string
	args  []string
	log   string
	cmd   *testkit.Cmd
	ended chan struct{}
}

// Run starts a program. What it says is shown if the test fails.
func Run(t testkit.TB, place Place, name string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, place: place, name: name, args: args, log: filepath.Join(tempDir(t), filepath.Base(name)+".log")}
	t.Cleanup(func() {
		p.Stop()
		test, is := t.(testing.TB)
		if text, err := os.ReadFile(p.log); err == nil && is && test.Failed() {
			test.Logf("%s said:\n%s", filepath.Base(name), tail(text))
		}
	})
	p.Start()
	return p
}

// tailMax is how much of a log is shown, in bytes.
const tailMax = 64 << 10

func tail(text []byte) []byte { return text[max(0, len(text)-tailMax):] }

// Start starts a process again that was stopped.
func (p *Process) Start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	defer log.Close()
	p.cmd = p.place.Command(context.Background(), p.name, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatalf("start %s: %v", p.name, err)
	}
	p.ended = make(chan struct{})
	go func(c *testkit.Cmd, ended chan struct{}) {
		_ = c.Wait()
		close(ended)
	}(p.cmd, p.ended)
}

// PID is the process's id. The process has been started, and not stopped.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended tells whether the process has ended by itself.
func (p *Process) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Stop asks the process to end, and waits for that.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill kills the process.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

func (p *Process) end(signal syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(signal) // it may have ended
	<-p.ended
	p.cmd = nil
}

// Log returns what the process has said.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	return string(text)
}

// need skips the test where a program of the distribution is missing.
func need(t testkit.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("skip: needs %s, which make deps-kube installs", name)
		}
	}
}
