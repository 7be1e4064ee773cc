package engines

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	// searchPath is that of the distribution: a daemon must not find a shim
	// or a client of another version that somebody has put before it.
	searchPath = "/usr/sbin:/usr/bin:/sbin:/bin"
)

// pollInterval is between two looks at something that is waited for.
const pollInterval = 20 * time.Millisecond

//go:embed testdata/janitor.sh
var janitorScript string

// Options say what a rig's engines are given.
type Options struct {
	Image *Image
	// Runtimes are OCI runtimes by the name that Container.Runtime has, as
	// paths. The engine's own runc needs no entry.
	Runtimes map[string]string
	// Configured is called when the engine's configuration is written, before a daemon reads it.
	Configured func() error
	// Env is set for daemons, and so for the runtimes that they call. Podman
	// calls its own with next to no environment.
	Env []string
	// Network is the list of CNI plugins of pods, and of the network "pods" of podman; a bridge of
	// the standard plugins if it is empty. Plugins are paths of plugins besides the distribution's.
	Network string
	Plugins []string
	// Networks are lists of CNI plugins of pods that have one of the Runtimes, by the runtime's name.
	// Other runtimes' pods have Network. They are for containerd.
	Networks map[string]string
	// Programs take the place of the distribution's, by the paths of these, in the rig.
	Programs map[string]string
	// Containerd is more of containerd's configuration.
	Containerd string
	// Migrated has containerd's configuration be of the newest version that containerd knows.
	Migrated bool
	// CRIO is the folder of CRI-O's programs, crio and pinns, which Debian has not. It is for "crio".
	CRIO string
	// Files are what the rig's /etc has besides the machine's, by path.
	Files map[string]string
	// Written are the folders that programs of the rig can write without changing the machine's;
	// by default /etc and /var/lib.
	Written []string
}

// Rig is the place in which engines run.
type Rig struct {
	Options
	dir     string // in the rig's mount namespace
	name    string // of its cgroups
	host    *testkit.Namespace
	group   *os.File // where its processes are
	janitor *exec.Cmd
	stdin   io.Closer
	stderr  bytes.Buffer
	again   func(testkit.TB) // starts the last daemon anew
}

// NewRig makes a rig in the namespace that stands for the host, and takes it
// down when the test ends. Make it after the topology.
func NewRig(t testkit.TB, host *testkit.Namespace, o Options) *Rig {
	t.Helper()
	r, err := New(host, o)
	if err != nil {
		t.Fatalf("make rig: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return r
}

// New is NewRig for programs that are no tests. The caller closes the rig.
func New(host *testkit.Namespace, o Options) (*Rig, error) {
	mount, err := exec.Command("findmnt", "-n", "-f", "-t", "cgroup2", "-o", "TARGET").Output()
	if err != nil {
		return nil, fmt.Errorf("find the cgroup v2 hierarchy: %w", err)
	}
	// Paths of unix sockets are short: so is this one.
	dir, err := os.MkdirTemp("/tmp", "rig-")
	if err != nil {
		return nil, err
	}
	r := &Rig{Options: o, dir: dir, name: "tsugiki-" + filepath.Base(dir), host: host}
	group := filepath.Join(strings.TrimSpace(string(mount)), r.name)
	// The engines make groups of containers beside that of the processes: in
	// v2, a group that has children with controllers has no processes.
	if err := os.MkdirAll(filepath.Join(group, "engine"), 0o755); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	if r.group, err = os.Open(filepath.Join(group, "engine")); err == nil {
		err = r.startJanitor(group)
	}
	if err != nil {
		_ = os.Remove(filepath.Join(group, "engine"))
		_ = os.Remove(group)
		_ = os.Remove(dir) // the janitor may have been here before
		return nil, err
	}
	return r, nil
}

func (r *Rig) startJanitor(group string) error {
	if r.Written == nil {
		r.Written = []string{"/etc", "/var/lib"}
	}
	args := append([]string{"--mount", "--propagation", "private", "sh", "-c", janitorScript, "janitor", r.dir, group}, r.Written...)
	r.janitor = exec.Command("unshare", args...)
	r.janitor.Env = []string{"PATH=" + searchPath}
	r.janitor.Stderr = &r.stderr
	r.janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals from a terminal
	stdout, err := r.janitor.StdoutPipe()
	if err != nil {
		return err
	}
	if r.stdin, err = r.janitor.StdinPipe(); err != nil {
		return err
	}
	if err := r.janitor.Start(); err != nil {
		return err
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return errors.Join(errors.New("no mount namespace"), r.Close())
	}
	for path, text := range r.Files {
		if err := r.write(path, text); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	for path, program := range r.Programs {
		if _, err := r.run("mount", "--bind", program, path); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return nil
}

// Group is the rig's cgroup in the v2 hierarchy. Groups of the same name in the other
// hierarchies are the rig's too, if there are any.
func (r *Rig) Group() string { return filepath.Dir(r.group.Name()) }

// Dir is the folder of the rig's files, a file system in memory. It is empty outside the rig.
func (r *Rig) Dir() string { return r.dir }

// Outside is a path of the rig as the test's own process finds it.
func (r *Rig) Outside(path string) string { return r.outside(path) }

// Close kills all that runs in the rig and removes it. The tests' own cleanup
// calls it; it may be called before.
func (r *Rig) Close() error {
	if r.stdin == nil {
		return nil
	}
	r.stdin.Close()
	r.stdin = nil
	r.group.Close()
	late := time.AfterFunc(testkit.Patience, func() { _ = r.janitor.Process.Kill() })
	defer late.Stop()
	if err := r.janitor.Wait(); err != nil || r.stderr.Len() > 0 {
		return fmt.Errorf("take down rig %s: %w: %s", r.dir, err, r.stderr.String())
	}
	return nil
}

// Mounts is the file of the rig's mount namespace.
func (r *Rig) Mounts() string { return fmt.Sprintf("/proc/%d/ns/mnt", r.janitor.Process.Pid) }

// Command prepares a program in the rig's namespaces and cgroup.
func (r *Rig) Command(ctx context.Context, name string, args ...string) *testkit.Cmd {
	c := r.host.Command(ctx, "nsenter", append([]string{"--mount=" + r.Mounts(), "--", name}, args...)...)
	c.Env = append([]string{"PATH=" + searchPath, "HOME=" + r.dir, "TMPDIR=" + r.dir}, r.Env...)
	c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(r.group.Fd())
	return c
}

// run runs a program in the rig and returns what it printed. An error has what it
// said.
func (r *Rig) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return output(r.Command(ctx, name, args...))
}

// output runs a command and returns what it printed. An error has what it said.
func output(c *testkit.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// outside is a path of the rig as the test's own process finds it.
func (r *Rig) outside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", r.janitor.Process.Pid, path)
}

// write writes a file in the rig.
func (r *Rig) write(path, text string) error {
	path = r.outside(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// pluginFolder makes a folder with all network plugins, and returns its path in the rig.
func (r *Rig) pluginFolder(t testkit.TB) string {
	t.Helper()
	const distribution = "/usr/lib/cni"
	if len(r.Plugins) == 0 {
		return distribution
	}
	dir := filepath.Join(r.dir, "plugins")
	args := append([]string{"-c", `mkdir "$0" && ln -s "$@" "$0"`, dir}, r.Plugins...)
	standard, err := filepath.Glob(distribution + "/*")
	if err == nil {
		_, err = r.run("sh", append(args, standard...)...)
	}
	if err != nil {
		t.Fatalf("make folder of network plugins: %v", err)
	}
	return dir
}

// network is the configuration list of pods.
func (r *Rig) network() string {
	if r.Network == "" {
		return cniConfig
	}
	return r.Network
}

// configure writes an engine's configuration, by path.
func (r *Rig) configure(t testkit.TB, files map[string]string) {
	t.Helper()
	for path, text := range files {
		if err := r.write(path, text); err != nil {
			t.Fatalf("configure the engine: %v", err)
		}
	}
	if r.Configured != nil {
		if err := r.Configured(); err != nil {
			t.Fatalf("configure the engine: %v", err)
		}
	}
}

// Restart has the engine's daemon end, and starts it again. Containers run on.
func (r *Rig) Restart(t testkit.TB) {
	t.Helper()
	r.again(t)
}

// daemon starts a daemon and waits until it is ready. Its log is shown if the
// test fails.
func (r *Rig) daemon(t testkit.TB, ready func() error, name string, args ...string) {
	t.Helper()
	log := filepath.Join(r.dir, filepath.Base(name)+".log")
	f, err := os.OpenFile(r.outside(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	c := r.Command(context.Background(), name, args...)
	c.Stdout, c.Stderr = f, f
	if err := c.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	r.again = func(t testkit.TB) {
		t.Helper()
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		r.daemon(t, ready, name, args...)
	}
	t.Cleanup(func() {
		test, is := t.(interface {
			Failed() bool
			Logf(format string, args ...any)
		})
		if text, err := os.ReadFile(r.outside(log)); err == nil && is && test.Failed() {
			test.Logf("%s said:\n%s", name, text)
		}
	})
	testkit.Eventually(t, func() error {
		select {
		case err := <-ended:
			t.Fatalf("%s has ended: %v", name, err)
		default:
		}
		return ready()
	})
}
