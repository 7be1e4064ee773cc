package bandwidth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const ms = time.Millisecond

// container makes a container's groups, in the hierarchies of the cpu controller and
// of others, and a process in all of them.
func container(t *testing.T, others ...string) (*testkit.Groups, int) {
	t.Helper()
	groups := testkit.NewGroups(t, others...)
	cmd := exec.Command("sh", "-c", "read go; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; exec sleep 1000")
	in, err := cmd.StdinPipe()
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
	groups.Enter(t, cmd.Process.Pid)
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	return groups, cmd.Process.Pid
}

// cpuRoot returns the mount of the cpu hierarchy.
func cpuRoot(t *testing.T) string {
	t.Helper()
	root, err := testkit.CgroupRoot("cpu")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func openGroup(t *testing.T, path string) *Group {
	t.Helper()
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func TestLimit(t *testing.T) {
	groups, _ := container(t)
	g := openGroup(t, groups.Name)
	want := func(l Limit) {
		t.Helper()
		got, err := g.Limit()
		if err != nil || got != l {
			t.Errorf("%+v, %v; want %+v", got, err, l)
		}
	}
	want(Limit{Quota: None, Period: 100 * ms})
	if err := g.SetQuota(50 * ms); err != nil {
		t.Fatal(err)
	}
	if err := g.SetBurst(20 * ms); errors.Is(err, fs.ErrNotExist) {
		want(Limit{Quota: 50 * ms, Period: 100 * ms}) // before 5.14
	} else if err != nil {
		t.Fatal(err)
	} else {
		want(Limit{Quota: 50 * ms, Period: 100 * ms, Burst: 20 * ms})
		if err := g.SetQuota(10 * ms); !errors.Is(err, unix.EINVAL) {
			t.Errorf("a quota below the burst: %v", err)
		}
		if err := g.SetBurst(0); err != nil {
			t.Error(err)
		}
	}
	if err := g.SetQuota(MinQuota - time.Microsecond); !errors.Is(err, unix.EINVAL) {
		t.Errorf("less than the smallest quota: %v", err)
	}
	for _, d := range []time.Duration{1500 * time.Microsecond, None} {
		if err := g.SetQuota(d); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(g.QuotaFile())
		if err != nil || strings.TrimSpace(string(text)) != g.FormatQuota(d) {
			t.Errorf("%q, %v; want %q", text, err, g.FormatQuota(d))
		}
	}
	if g.Version() != testkit.CgroupVersion() || g.Root() || g.Path() != groups.Dir("cpu") {
		t.Errorf("%s, root %v, %s", g.Version(), g.Root(), g.Path())
	}
}

func TestOpenRefuses(t *testing.T) {
	groups, _ := container(t)
	name, dir, root := groups.Name, groups.Dir("cpu"), cpuRoot(t)
	// Another hierarchy, or what is in v2 a group without a cpu controller.
	elsewhere := "/sys/fs/cgroup/memory"
	if testkit.CgroupVersion() == "v2" {
		elsewhere = filepath.Join(dir, "without")
		if err := os.Mkdir(elsewhere, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"", "relative", name + "/..", "/.." + name, root + "/../" + filepath.Base(root) + name, "/nowhere", elsewhere,
		dir + "/cpu.stat", link, "/etc", "/x\x00y",
	} {
		if g, err := Open(path); !errors.Is(err, ErrNotAGroup) {
			t.Errorf("%q: %v, %v", path, g, err)
		}
	}
	into := filepath.Join(t.TempDir(), "into")
	if err := os.Symlink(dir, into); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{name, dir, into, name + "/"} {
		if g := openGroup(t, path); g.Path() != dir {
			t.Errorf("%q is %s", path, g.Path())
		}
	}
}

func TestAGroupMadeAnewIsAnother(t *testing.T) {
	dir := testkit.NewGroups(t).Dir("cpu")
	g := openGroup(t, dir)
	if err := errors.Join(unix.Rmdir(dir), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := g.SetQuota(50 * ms); !errors.Is(err, ErrGone) || !g.Gone() {
		t.Errorf("%v, gone %v", err, g.Gone())
	}
	if other := openGroup(t, dir); other.ID() == g.ID() || other.Gone() {
		t.Error("it is the same")
	}
}

// A runtime removes the groups of a container one after another.
func TestUsageOfAGroupThatIsBeingRemoved(t *testing.T) {
	groups := testkit.NewGroups(t, "cpuacct")
	g := openGroup(t, groups.Dir("cpu"))
	if g.OneHierarchy() {
		return // then it is gone at once
	}
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	groups.Enter(t, sleeper.Process.Pid)
	_, err := g.Usage()
	if killErr := sleeper.Process.Kill(); err != nil || killErr != nil {
		t.Fatal(err, killErr)
	}
	_ = sleeper.Wait()
	if err := unix.Rmdir(groups.Dir("cpuacct")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Usage(); !errors.Is(err, ErrGone) || g.Gone() {
		t.Errorf("%v, want ErrGone; the group whose quota it is is gone: %v", err, g.Gone())
	}
}

func TestOfProcess(t *testing.T) {
	groups, pid := container(t)
	g, err := OfProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Path() != groups.Dir("cpu") {
		t.Error(g.Path())
	}
	pids, err := g.Processes()
	if err != nil || !slices.Contains(pids, pid) {
		t.Errorf("%v, %v", pids, err)
	}
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	groups.Enter(t, busy.Process.Pid)
	testkit.Eventually(t, func() error {
		used, err := g.Usage()
		if err != nil || used <= 5*ms {
			return fmt.Errorf("it used %v (%w)", used, err)
		}
		return nil
	})
	root, err := OfProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if l, err := root.Limit(); root.Root() && (err != nil || l.Quota >= 0) {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := OfProcess(1 << 30); err == nil {
		t.Error("a process that is not there")
	}
}

func TestFreezer(t *testing.T) {
	type freezer struct {
		others  []string
		in      string // the hierarchy whose freezer it is, if there is one
		private bool
	}
	tests := map[string][]freezer{
		"v2": {{nil, "cpu", false}},
		"v1": {{[]string{"freezer"}, "freezer", false}, {nil, "", false}},
		"hybrid": {
			{[]string{"unified", "freezer"}, "unified", true},
			{[]string{"unified"}, "unified", true},
			{[]string{"freezer"}, "freezer", false},
			{nil, "", false},
		},
	}[testkit.CgroupVersion()]
	for _, tt := range tests {
		t.Run(strings.Join(append(tt.others, "cpu"), ","), func(t *testing.T) {
			groups, _ := container(t, tt.others...)
			g := openGroup(t, groups.Name)
			f, err := g.Freezer()
			if tt.in == "" {
				if !errors.Is(err, ErrNoFreezer) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if filepath.Dir(f.File()) != groups.Dir(tt.in) || f.Private() != tt.private {
				t.Errorf("%s, private %v", f.File(), f.Private())
			}
			tryFreezer(t, f)
			if testkit.CgroupVersion() != "v2" { // in v2 the frozen group is the group with the quota
				tryFreezerWithOthers(t, g, f)
			}
		})
	}
}

// A placed helper does not prevent freezing. Any other foreign process does.
func tryFreezerWithOthers(t *testing.T, g *Group, f *Freezer) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(g.Path(), HelperGroup), 0o755); err != nil {
		t.Fatal(err)
	}
	_, helper := container(t)
	join(t, filepath.Join(g.Path(), HelperGroup), helper)
	if again, err := g.Freezer(); err != nil || again.File() != f.File() {
		t.Errorf("with a helper: %v", err)
	} else {
		again.Close()
	}
	join(t, filepath.Dir(f.File()), helper)
	f.checked = time.Time{}
	if err := f.Freeze(); !errors.Is(err, ErrNoFreezer) {
		t.Errorf("with another process in it: %v", err)
	}
}

// In v1 the kernel shows an exiting process in the root group.
func TestFreezerWhileProcessesEnd(t *testing.T) {
	groups, _ := container(t, "freezer")
	loop := exec.Command("sh", "-c", "read go; while :; do /bin/true & /bin/true; done")
	start, err := loop.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
	}()
	groups.Enter(t, loop.Process.Pid)
	if _, err := start.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	g := openGroup(t, groups.Name)
	for i := range 2000 {
		f, err := g.Freezer()
		if err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		f.Close()
	}
}

func join(t *testing.T, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0); err != nil {
		t.Fatal(err)
	}
}

func tryFreezer(t *testing.T, f *Freezer) {
	t.Helper()
	thawed, frozen := f.Texts()
	for _, want := range []bool{true, false} {
		step, texts := f.Thaw, []string{thawed}
		if want {
			step, texts = f.Freeze, frozen
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Frozen(); err != nil || got != want {
			t.Errorf("frozen %v, %v", got, err)
		}
		text, err := os.ReadFile(f.File())
		if err != nil || !slices.Contains(texts, strings.TrimSpace(string(text))) {
			t.Errorf("%q, %v; want one of %q", text, err, texts)
		}
	}
}

func TestPressureIsTheGroupsOwn(t *testing.T) {
	version := testkit.CgroupVersion()
	others := map[string][]string{"hybrid": {"unified"}}[version]
	with, _ := container(t, others...)
	if _, ok, err := openGroup(t, with.Name).Pressure(); ok != (version != "v1") || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if version == "hybrid" {
		without, _ := container(t)
		if p, ok, err := openGroup(t, without.Name).Pressure(); ok || err != nil {
			t.Errorf("%+v, %v, %v", p, ok, err)
		}
	}
}

// A v2 hierarchy beside v1 hierarchies has no cpu controller.
func TestControllerIsElsewhere(t *testing.T) {
	v2, want := "/sys/fs/cgroup", error(nil)
	switch testkit.CgroupVersion() {
	case "hybrid":
		v2, want = "/sys/fs/cgroup/unified", errNoController
	case "v1":
		want = errNoController
	}
	mounts := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(mounts, []byte("42 30 0:28 / "+v2+" rw - cgroup2 cgroup2 rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := findHierarchies(mounts); !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func TestHierarchies(t *testing.T) {
	hybrid := "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"32 30 0:28 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n" +
		"33 30 0:29 /docker/x /mnt/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"42 30 0:28 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n" +
		"43 30 0:28 / /a\\040b rw - tmpfs none rw\nshort\n"
	file := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(file, []byte(hybrid), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := findHierarchies(file)
	if err != nil {
		t.Fatal(err)
	}
	want := &hierarchies{
		cpu:     hierarchy{"/sys/fs/cgroup/cpu,cpuacct", 27, "/", "cpu", false},
		cpuacct: hierarchy{"/sys/fs/cgroup/cpu,cpuacct", 27, "/", "cpuacct", false},
		freezer: hierarchy{"/sys/fs/cgroup/freezer", 28, "/", "freezer", false},
		unified: hierarchy{"/sys/fs/cgroup/unified", 28, "/", "", true},
	}
	if *got != *want {
		t.Errorf("%+v, want %+v", got, want)
	}
	text := "9:name=systemd:/a\n2:cpu,cpuacct:/docker/x:y\n0::/u\nshort\n"
	for h, path := range map[hierarchy]string{want.cpu: "/docker/x:y", want.cpuacct: "/docker/x:y", want.unified: "/u", want.freezer: ""} {
		if got, found := h.line(text); got != path || found != (path != "") {
			t.Errorf("%s: %q", h.id, got)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Limit{
		"max 100000": {None, 100 * ms, 0}, "-1 100000": {None, 100 * ms, 0}, "1500 50000": {1500 * time.Microsecond, 50 * ms, 0},
	} {
		if got, err := parseLimit(text); got != want || err != nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "max", "5 0", "5 -5", "-2 100", "x 5", "5 9223372036854775807", "5  5"} {
		if got, err := parseLimit(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	v1 := parseThrottling("nr_periods 5\nnr_throttled 3\nthrottled_time 7000\nnr_bursts 2\nburst_time 9000\n")
	v2 := parseThrottling("usage_usec 1\nnr_periods 5\nnr_throttled 3\nthrottled_usec 7\nnr_bursts 2\nburst_usec 9\nodd\n")
	if diff := cmp.Diff(v1, v2); diff != "" || v1.Time != 7*time.Microsecond || v1.Bursts != 2 {
		t.Error(diff)
	}
	p, err := parsePressure("some avg10=1.50 avg60=2.00 avg300=0.25 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
	if want := (Pressure{1.5, 2, .25, 12 * time.Microsecond}); err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := parsePressure("some avg10=x"); err == nil {
		t.Error("nonsense was read")
	}
}
