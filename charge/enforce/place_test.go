package enforce

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// role makes the test binary run as another program.
const role = "TSUGIKI_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "logger":
		os.Exit(beLogger())
	case "controller":
		os.Exit(beController())
	}
	os.Exit(m.Run())
}

// beLogger writes each line as one JSON object, as container engines do.
func beLogger() int {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		text, err := json.Marshal(struct {
			Log, Stream string
			Time        time.Time
		}{lines.Text() + "\n", "stdout", time.Now()})
		if err != nil {
			return 1
		}
		if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
			return 1
		}
	}
	return 0
}

// processClock returns the CPU time of all threads of a process.
type processClock int

func (p processClock) Elapsed() (time.Duration, error) {
	d, err := cputime.Process(int(p))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH) {
		return 0, os.ErrProcessDone
	}
	return d, err
}

// place has the groups of a container, with the same name in several hierarchies.
type place struct {
	group   *bandwidth.Group
	dirs    []string // the group in the cpu hierarchy is the first
	freezer string   // the directory of the group that can freeze the container
}

// freezers lists the hierarchies in which a container can be frozen.
var freezers = map[string][]string{
	"hybrid": {"unified", "freezer"},
	"v1":     {"freezer"},
	"v2":     {"unified"},
}[testkit.CgroupVersion()]

var v2 = testkit.CgroupVersion() == "v2"

func byVersion(v1, other string) string {
	if v2 {
		return other
	}
	return v1
}

// newPlace makes a container's groups. freezer is the hierarchy in which the container can be
// frozen.
func newPlace(t testing.TB, freezer string, l bandwidth.Limit) *place {
	t.Helper()
	var others []string
	if freezer != "" {
		others = []string{freezer}
	}
	groups := testkit.NewGroups(t, others...)
	p := &place{dirs: []string{groups.Dir("cpu"), groups.Dir("cpuacct")}, freezer: groups.Dir(freezer)}
	if freezer != "" {
		p.dirs = append(p.dirs, p.freezer)
	}
	g, err := bandwidth.Open(groups.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	p.group = g
	if l.Quota > 0 {
		p.setQuota(t, strconv.FormatInt(l.Quota.Microseconds(), 10))
	}
	if l.Burst > 0 {
		p.write(t, byVersion("cpu.cfs_burst_us", "cpu.max.burst"), strconv.FormatInt(l.Burst.Microseconds(), 10))
	}
	return p
}

// write writes to a file of the cpu group, as an engine would.
func (p *place) write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dirs[0], file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func (p *place) read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dirs[0], file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// The quota and its parts are in microseconds; -1 is none.
func (p *place) quota(t testing.TB) string {
	t.Helper()
	quota, _, _ := strings.Cut(p.read(t, byVersion("cpu.cfs_quota_us", "cpu.max")), " ")
	if quota == "max" {
		return "-1"
	}
	return quota
}

func (p *place) setQuota(t testing.TB, quota string) {
	t.Helper()
	if v2 && quota == "-1" {
		quota = "max"
	}
	p.write(t, byVersion("cpu.cfs_quota_us", "cpu.max"), quota)
}

func (p *place) setLimit(t testing.TB, quota, period string) {
	t.Helper()
	if v2 {
		p.write(t, "cpu.max", quota+" "+period)
		return
	}
	p.write(t, "cpu.cfs_period_us", period)
	p.write(t, "cpu.cfs_quota_us", quota)
}

// pause and unpause do the same as an engine's commands.
func (p *place) pause(t testing.TB)   { p.freezeBy(t, "FROZEN", "1") }
func (p *place) unpause(t testing.TB) { p.freezeBy(t, "THAWED", "0") }

func (p *place) freezeBy(t testing.TB, v1, other string) {
	t.Helper()
	outside(t, filepath.Join(p.freezer, byVersion("freezer.state", "cgroup.freeze")), byVersion(v1, other))
}

func pidsOf(dir string) []int {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// start runs a command in the groups; its own and its children's output goes to out.
func (p *place) start(t testing.TB, out *os.File, command string) *exec.Cmd {
	t.Helper()
	join := ""
	for _, dir := range p.dirs {
		join += "echo $$ > " + dir + "/cgroup.procs; "
	}
	cmd := exec.Command("taskset", "-c", "1", "sh", "-c", join+command)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	begin(t, cmd)
	return cmd
}

func begin(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			// It is frozen; removing its groups thaws it.
		}
	})
}

// logged runs a command in the groups, with a logger outside of them.
func (p *place) logged(t testing.TB, command string) (logger processClock) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("taskset", "-c", "1", self)
	cmd.Env = append(os.Environ(), role+"=logger", "GOMAXPROCS=1")
	cmd.Stdin = r
	begin(t, cmd)
	p.start(t, w, command)
	return processClock(cmd.Process.Pid)
}

// rig is a controller with its real loop, for real groups.
type rig struct{ *Controller }

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	j, l := books(t)
	out := io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	cfg := Config{Journal: j, Ledger: l, Log: slog.New(slog.NewTextHandler(out, nil))}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{c}
}

func (r *rig) add(t testing.TB, p *place) *Account {
	t.Helper()
	a, err := r.Add(filepath.Base(p.group.Path()), p.group)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// share returns the CPU time that a group and a helper used, as a part of the elapsed time.
func share(t testing.TB, g *bandwidth.Group, helper Clock, during time.Duration) (own, help float64) {
	t.Helper()
	read := func() (o, h time.Duration) {
		o, err := g.Usage()
		if err != nil {
			t.Fatal(err)
		}
		h, err = helper.Elapsed()
		if err != nil {
			t.Fatal(err)
		}
		return o, h
	}
	start := time.Now()
	o, h := read()
	time.Sleep(during)
	o2, h2 := read()
	passed := time.Since(start)
	return float64(o2-o) / float64(passed), float64(h2-h) / float64(passed)
}

// loads has the paper's workloads: a container that only writes, one that forks and writes 3 KB at
// a time, one that writes short lines.
var loads = []struct{ name, command string }{
	{"yes", "exec yes"},
	{"lsmod", "while :; do /bin/cat /proc/self/maps; done"},
	{"echo", "while :; do echo 1; done"},
}
