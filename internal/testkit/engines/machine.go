package engines

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

//go:embed testdata/boot.sh
var bootScript string

// Machine is a rig with systemd as its first process, in namespaces of processes, mounts and
// cgroups. Its files are the machine's own; what is written to /etc, /usr and /var is its own.
// Docker's services are there, and no others. The cgroups are v2 alone, without controllers.
type Machine struct {
	*Rig
	systemd string // its process id, as the test sees it
}

// NewMachine boots one in the namespace that stands for the host, and takes it down when the test
// ends. It skips the test where systemd, dpkg or Docker is missing.
func NewMachine(t testing.TB, host *testkit.Namespace) *Machine {
	t.Helper()
	m := &Machine{Rig: NewRig(t, host, Options{Written: []string{"/etc", "/usr", "/var"}})}
	need(t, m.Rig, "/lib/systemd/systemd", "systemctl", "dpkg", "deb-systemd-helper", "dockerd", "docker", "containerd", "runc")
	log := filepath.Join(m.dir, "systemd.log")
	f, err := os.Create(m.outside(log))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	boot := m.Rig.Command(context.Background(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc",
		"--propagation", "private", "sh", "-c", bootScript, "boot", "docker.service", "docker.socket", "containerd.service")
	boot.Stdout, boot.Stderr = f, f
	if err := boot.Start(); err != nil {
		t.Fatalf("start systemd: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = boot.Wait() // killed
		close(ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			m.show(t, m.outside(log))
		}
		_ = boot.Process.Signal(syscall.SIGKILL) // and so systemd, and all of its processes
		<-ended
	})
	testkit.Eventually(t, func() error { return m.isUp(boot.Process.Pid) })
	return m
}

// isUp tells whether systemd, the child of a process, has started all.
func (m *Machine) isUp(unshare int) error {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", unshare))
	if err != nil {
		return err
	}
	m.systemd = strings.TrimSpace(string(children))
	if _, err := strconv.Atoi(m.systemd); err != nil {
		return fmt.Errorf("find systemd: %w", err)
	}
	if state, err := m.Try("systemctl", "is-system-running"); state != "running\n" {
		return fmt.Errorf("systemd is %q: %w", state, err)
	}
	return nil
}

// show logs what systemd and its services have written.
func (m *Machine) show(t testing.TB, log string) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%s/root/run/services/*.log", m.systemd))
	for _, path := range append(files, log) {
		text, err := os.ReadFile(path)
		t.Logf("%s (%v):\n%s", filepath.Base(path), err, text)
	}
}

// Command prepares a program that runs on the machine.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *testkit.Cmd {
	inside := []string{"--target", m.systemd, "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--", name}
	return m.Rig.Command(ctx, "nsenter", append(inside, args...)...)
}

// Try runs a program on the machine and returns what it printed. An error has what it said.
func (m *Machine) Try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return output(m.Command(ctx, name, args...))
}

// Load makes an image known to the machine's Docker.
func (m *Machine) Load(i *Image) error {
	_, err := m.Try("docker", "load", "-q", "-i", i.archive(false))
	return err
}

// Changed are the files of the machine that differ from those of the machine that the test runs
// on, with their contents; of those that were removed, that is said.
func (m *Machine) Changed() (map[string]string, error) {
	files := map[string]string{}
	for _, top := range m.Written {
		root := m.outside(filepath.Join(m.dir, "written"))
		err := filepath.Walk(root+top, func(path string, info os.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return err
			}
			name := strings.TrimPrefix(path, root)
			switch info.Mode().Type() {
			case 0:
				text, err := os.ReadFile(path)
				files[name] = string(text)
				return err
			case os.ModeDevice | os.ModeCharDevice: // overlayfs marks what was removed so
				files[name] = "removed"
			default:
				files[name] = info.Mode().Type().String()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
