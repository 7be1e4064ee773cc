package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const patience = 10 * time.Second

// agents are what the test binary can be instead: processes that get killed. They
// get the journal and a cgroup of each hierarchy.
var agents = map[string]func(j *Journal, quota, freezer string) error{
	"hold":   hold,
	"scribe": scribe,
}

const agentEnv = "TSUGIKI_TEST_AGENT"

func TestMain(m *testing.M) {
	if name := os.Getenv(agentEnv); name != "" {
		fmt.Fprintln(os.Stderr, agent(name, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// agent runs until it is killed. Its arguments are the guardian (or none), the
// journal, and the groups.
func agent(name string, args []string) error {
	j, err := Open(args[1])
	if err != nil {
		return err
	}
	if j.Guardian = args[0]; j.Guardian != "" {
		if err := j.Guard(slog.Default()); err != nil {
			return err
		}
	}
	return agents[name](j, args[2], args[3])
}

// startAgent starts an agent and waits until it says a line, which it returns.
func startAgent(t testing.TB, name string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), agentEnv+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("agent %s: %v", name, err)
	}
	return cmd, strings.TrimSpace(string(line[:n]))
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

func guardianPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(testkit.BuildTsugiki(t), Program)
}

// group makes a child group of a hierarchy, which is removed after the test, with
// groups below it.
func group(t testing.TB, hierarchy string) string {
	t.Helper()
	mount := filepath.Join("/sys/fs/cgroup", hierarchy)
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
		t.Skipf("skip: needs the cgroup v1 hierarchy %s", hierarchy)
	}
	path, err := os.MkdirTemp(mount, "tsugiki-test-journal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func remove(group string) error {
	below, err := filepath.Glob(filepath.Join(group, "*/"))
	if err != nil {
		return err
	}
	for _, path := range below {
		if st, err := os.Lstat(path); err == nil && st.IsDir() {
			if err := remove(path); err != nil {
				return err
			}
		}
	}
	end := time.Now().Add(patience)
	for {
		err := unix.Rmdir(group)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func read(t testing.TB, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func write(t testing.TB, text string, path ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path...), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// sleeper starts a process in groups.
func sleeper(t testing.TB, groups ...string) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, g := range groups {
		write(t, strconv.Itoa(cmd.Process.Pid), g, "cgroup.procs")
	}
	return cmd.Process.Pid
}

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	j.Guardian = guardianPath(t)
	return j
}

func restore(t *testing.T, j *Journal) int {
	t.Helper()
	n, err := j.Restore(testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// testLog writes to the test's log.
func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(lines{t}, nil)) }

type lines struct{ *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.Logf("%s", p)
	return len(p), nil
}
