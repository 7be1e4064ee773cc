package discover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

var image *engines.Image

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "discover-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	var needs *testkit.NeedsError
	if image, err = engines.BuildImage(dir); err != nil && !errors.As(err, &needs) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// rig starts an engine.
func rig(t *testing.T, name string) (*engines.Rig, engines.Engine) {
	t.Helper()
	if image == nil {
		t.Skip("skip: needs the programs that the image is made of")
	}
	top := testkit.Build(t, testkit.Options{NoRemote: true})
	r := engines.NewRig(t, top.Host, engines.Options{Image: image})
	return r, r.Start(t, name)
}

// tool runs a command of a rig.
func tool(t *testing.T, r *engines.Rig, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	out, err := r.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// watcher scans until a condition is true.
type watcher struct {
	*Scanner
	t                *testing.T
	started, changed map[string]int
	ended            map[string]int
}

func watch(t *testing.T) *watcher {
	w := &watcher{New(), t, map[string]int{}, map[string]int{}, map[string]int{}}
	t.Cleanup(w.Close)
	return w
}

func (w *watcher) until(check func() error) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		changes, err := w.Scan()
		if err != nil {
			w.t.Fatal(err)
		}
		for list, count := range map[*[]Container]map[string]int{&changes.Started: w.started, &changes.Changed: w.changed, &changes.Ended: w.ended} {
			for _, c := range *list {
				count[c.ID]++
			}
		}
		return check()
	})
}

// get returns the container whose cgroup's path contains a name.
func (w *watcher) get(id string) (Container, error) {
	for _, c := range w.Containers() {
		if c.ID == id {
			return c, nil
		}
	}
	return Container{}, fmt.Errorf("no container %s among %v", id, w.Containers())
}

// isInit checks that a process is the first one of its pid namespace.
func isInit(t *testing.T, p Process, args string) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(status), fmt.Sprintf("\nNSpid:\t%d\t1\n", p.PID)) {
		t.Errorf("process %d is no init:\n%s", p.PID, status)
	}
	testkit.Eventually(t, func() error { // it is runc's until it executes the program
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if got := strings.ReplaceAll(string(cmdline), "\x00", " "); err != nil || !strings.Contains(got, args) {
			return fmt.Errorf("process %d is %q (%w), want %q", p.PID, got, err, args)
		}
		return nil
	})
}

func hasHelper(c Container, kind Kind, name string) error {
	for _, h := range c.Helpers {
		if h.Kind == kind && h.Name == name {
			return nil
		}
	}
	return fmt.Errorf("no %s %s among %v", kind, name, c.Helpers)
}

var script = []string{"sh", "-c", "while :; do echo tick; sleep 0.1; done"}

func TestDocker(t *testing.T) {
	r, e := rig(t, "docker")
	w := watch(t)
	args := append([]string{"run", "-d", "--log-opt", "max-size=1k", "--log-opt", "max-file=2", "--name", "web", engines.ImageName}, script...)
	id := tool(t, r, "docker", args...)
	var c Container
	var log File
	w.until(func() (err error) {
		if c, err = w.get(id); err != nil {
			return err
		}
		if err := hasHelper(c, Shim, "containerd-shim-runc-v2"); err != nil {
			return err
		}
		i := slices.IndexFunc(c.Files, func(f File) bool { return strings.HasSuffix(f.Path, id+"-json.log") })
		fifo := slices.ContainsFunc(c.Files, func(f File) bool {
			return strings.HasSuffix(f.Path, id+"/init-stdout") || strings.HasSuffix(f.Path, "-stdout")
		})
		if i < 0 || !fifo {
			return fmt.Errorf("no log or FIFO among %v", c.Files)
		}
		log = c.Files[i]
		return nil
	})
	isInit(t, c.Init, "echo tick")
	if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", log.Daemon.PID)); string(comm) != "dockerd\n" {
		t.Errorf("the log is %q's", comm)
	}
	// The log is rotated after some ten lines.
	w.until(func() error {
		c, err := w.get(id)
		if err != nil {
			return err
		}
		for _, f := range c.Files {
			if f.Path == log.Path && f.Inode != log.Inode {
				return nil
			}
		}
		return fmt.Errorf("the log is still inode %d: %v", log.Inode, c.Files)
	})
	if _, err := e.Exec("web", "true"); err != nil {
		t.Error(err)
	}
	if again, err := w.get(id); err != nil || again.Init != c.Init {
		t.Errorf("after an exec its init is %v (%v), was %v", again.Init, err, c.Init)
	}
	if err := e.Remove("web"); err != nil {
		t.Error(err)
	}
	w.until(func() error {
		if w.ended[id] != 1 {
			return fmt.Errorf("ended: %v", w.ended)
		}
		return nil
	})
	if w.started[id] != 1 {
		t.Errorf("started: %v", w.started)
	}
}

func TestPodman(t *testing.T) {
	r, e := rig(t, "podman")
	w := watch(t)
	if err := e.Run(engines.Container{Name: "p", None: true, Args: script}); err != nil {
		t.Fatal(err)
	}
	id := tool(t, r, "podman", "inspect", "-f", "{{.Id}}", "p")
	var c Container
	w.until(func() (err error) {
		if c, err = w.get(id); err != nil {
			return err
		}
		return hasHelper(c, Monitor, "conmon")
	})
	isInit(t, c.Init, "echo tick")
	if err := e.Remove("p"); err != nil {
		t.Error(err)
	}
	w.until(func() error {
		if w.ended[id] != 1 {
			return fmt.Errorf("ended: %v", w.ended)
		}
		return nil
	})
}

// A logging driver of containerd's is a child of the shim, with the container's id in
// its environment.
func TestContainerdLogger(t *testing.T) {
	r, e := rig(t, "ctr")
	logger := filepath.Join(t.TempDir(), "logger")
	if err := os.WriteFile(logger, []byte("#!/bin/sh\nexec 5>&-\nexec cat <&3 >/dev/null\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := watch(t)
	tool(t, r, "ctr", append([]string{"run", "-d", "--log-uri", "binary://" + logger, engines.ImageName, "logged"}, script...)...)
	var c Container
	w.until(func() (err error) {
		if c, err = w.get("logged"); err != nil {
			return err
		}
		cat, err := filepath.EvalSymlinks("/bin/cat")
		if err != nil {
			return err
		}
		return errors.Join(hasHelper(c, Shim, "containerd-shim-runc-v2"), hasHelper(c, Logger, filepath.Base(cat)))
	})
	isInit(t, c.Init, "echo tick")
	pipe := slices.ContainsFunc(c.Files, func(f File) bool { return f.Daemon.PID == 0 && strings.HasPrefix(f.Path, "pipe:[") })
	if !pipe {
		t.Errorf("no pipe of init among %v", c.Files)
	}
	if err := e.Remove("logged"); err != nil {
		t.Error(err)
	}
	w.until(func() error {
		if w.ended["logged"] != 1 {
			return fmt.Errorf("ended: %v", w.ended)
		}
		return nil
	})
}

// A pod's shim serves the sandbox and the container.
func TestPod(t *testing.T) {
	r, e := rig(t, "cri")
	w := watch(t)
	ours := func() (some []Container) {
		for _, c := range w.Containers() {
			groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Init.PID)) // it may have ended
			if strings.Contains(string(groups), filepath.Base(r.Group())) {
				some = append(some, c)
			}
		}
		return some
	}
	if err := e.Run(engines.Container{Name: "pod", Args: script}); err != nil {
		t.Fatal(err)
	}
	w.until(func() error {
		shared, read, written := 0, 0, 0
		for _, c := range ours() {
			for _, h := range c.Helpers {
				if h.Kind == Shim && len(h.Containers) == 2 {
					shared++
				}
			}
			if slices.ContainsFunc(c.Files, func(f File) bool { return f.Daemon.PID != 0 && strings.HasSuffix(f.Path, "-stdout") }) {
				read++
			}
			if slices.ContainsFunc(c.Files, func(f File) bool { return f.Daemon.PID != 0 && strings.HasSuffix(f.Path, "/pod/main.log") }) {
				written++
			}
		}
		if shared != 2 || read == 0 || written != 1 {
			return fmt.Errorf("want a shim with two containers, and containerd reading the output of one and writing its log: %v", ours())
		}
		return nil
	})
	all := ours()
	if err := e.Remove("pod"); err != nil {
		t.Error(err)
	}
	w.until(func() error {
		for _, c := range all {
			if w.ended[c.ID] != 1 {
				return fmt.Errorf("%s has not ended: %v", c.ID, w.ended)
			}
		}
		return nil
	})
}
