package journal

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// agents lists the programs that the test binary can run as: agents that get killed. They get the
// journal and a cgroup of each hierarchy.
var agents = map[string]func(j *Journal, quota, freezer string, stop int) error{
	"hold":   hold,
	"scribe": scribe,
}

const agentEnv = "TSUGIKI_TEST_AGENT"

func TestMain(m *testing.M) {
	busyWait, helloWait, workWait = testkit.Patience, testkit.Patience, testkit.Patience
	if name := os.Getenv(agentEnv); name != "" {
		fmt.Fprintln(os.Stderr, agent(name, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// agent runs until it is killed. Its arguments are the undo helper (or none), the
// journal, the groups, and perhaps a step before which it stops.
func agent(name string, args []string) error {
	j, err := Open(args[1])
	if err != nil {
		return err
	}
	if j.UndoHelper = args[0]; j.UndoHelper != "" {
		if err := j.Guard(slog.Default()); err != nil {
			return err
		}
	}
	stop := 0
	if len(args) > 4 {
		if stop, err = strconv.Atoi(args[4]); err != nil {
			return err
		}
	}
	return agents[name](j, args[2], args[3], stop)
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
	if _, err := cmd.StdinPipe(); err != nil { // which ends with the test
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

func undoHelperPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(testkit.BuildTsugiki(t), Program)
}

// How the files of a cgroup are called, and what they say, depends on the version.
var (
	v2         = testkit.CgroupVersion() == "v2"
	quotaFile  = byVersion("cpu.cfs_quota_us", "cpu.max")
	burstFile  = byVersion("cpu.cfs_burst_us", "cpu.max.burst")
	freezeFile = byVersion("freezer.state", "cgroup.freeze")
	thawed     = byVersion("THAWED", "0")
	frozen     = byVersion("FROZEN", "1")
	freezing   = byVersion("FREEZING", "1")

	noQuota                            = quotaOf(byVersion("-1", "max"))
	ms20, ms30, ms40, ms50, ms66, ms70 = quotaOf("20000"), quotaOf("30000"), quotaOf("40000"), quotaOf("50000"), quotaOf("66000"), quotaOf("70000")
	ms80                               = quotaOf("80000")
)

func byVersion(v1, other string) string {
	if v2 {
		return other
	}
	return v1
}

// quotaOf returns the text of the quota's file.
func quotaOf(micros string) string { return micros + byVersion("", " 100000") }

// group makes a group in the hierarchy of a controller, which is removed after the
// test, with groups below it.
func group(t testing.TB, controller string) string {
	t.Helper()
	return testkit.NewGroups(t, controller).Dir(controller)
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
	j.UndoHelper = undoHelperPath(t)
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
