package bandwidth

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// openFiles returns the files of cgroups below a path that this process has open.
func openFiles(t *testing.T, groups *testkit.Groups) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		link, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.Contains(link, groups.Name+"/") {
			n++
		}
	}
	return n
}

func TestFilesAreOpenOnlyIfKept(t *testing.T) {
	groups, _ := container(t)
	g := openGroup(t, groups.Name)
	use := func() {
		t.Helper()
		_, usageErr := g.Usage()
		_, throttledErr := g.Throttled()
		limit, limitErr := g.Limit()
		if err := errors.Join(usageErr, throttledErr, limitErr, g.SetQuota(limit.Quota)); err != nil {
			t.Fatal(err)
		}
	}
	use()
	if n := openFiles(t, groups); n != 0 {
		t.Errorf("%d files are open", n)
	}
	if err := g.Keep(true); err != nil {
		t.Fatal(err)
	}
	use()
	kept := openFiles(t, groups)
	if use(); kept == 0 || openFiles(t, groups) != kept {
		t.Errorf("%d files are kept, then %d", kept, openFiles(t, groups))
	}
	if err := g.Keep(false); err != nil || openFiles(t, groups) != 0 {
		t.Errorf("%d files stay open, %v", openFiles(t, groups), err)
	}
	use()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Keep(true); err != nil {
		t.Error(err)
	}
	if _, err := g.Quota(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("of a closed group: %v", err)
	}
}

func TestLock(t *testing.T) {
	groups := testkit.NewGroups(t)
	g, other := openGroup(t, groups.Name), openGroup(t, groups.Name)
	if err := g.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := other.Lock(); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("locked twice: %v", err)
	}
	g.Close()
	if err := other.Lock(); err != nil {
		t.Error(err)
	}
}

// mountTable makes a file with the mounts of this process and many more.
func mountTable(t *testing.T, more int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/mountinfo"
	for i := range more {
		text = append(text, "900 30 0:900 / /run/c"+strconv.Itoa(i)+"/rootfs rw - overlay overlay rw,lowerdir=/a,upperdir=/b\n"...)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func liveHeap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// The cache keeps no text of the mounts, because that grows with the containers.
func TestTheMountsAreNotRetained(t *testing.T) {
	const times, lines = 8, 4096
	file := mountTable(t, lines)
	var all [times]*hierarchies
	live := liveHeap()
	for i := range all {
		var err error
		if all[i], err = findHierarchies(file); err != nil {
			t.Fatal(err)
		}
	}
	if grown := liveHeap() - live; grown > times*lines {
		t.Errorf("%d look-ups hold %d bytes", times, grown)
	}
	if all[0].cpu.mount != all[times-1].cpu.mount {
		t.Error("they differ")
	}
}

// The mounts are read once for all groups, and again when something was missing or is
// somewhere else by now.
func TestTheMountsAreReadOnce(t *testing.T) {
	m := &cache{file: mountTable(t, 0)}
	find := func() *hierarchies {
		t.Helper()
		all, err := m.find()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	first := find()
	if again := find(); again != first {
		t.Error("each group has its own")
	}
	if *first != *openGroup(t, testkit.NewGroups(t).Name).all {
		t.Errorf("%+v", first)
	}
	whole := *first
	m.all = &hierarchies{cpu: whole.cpu}
	if m.all.cpu.dev++; *find() != whole {
		t.Errorf("mounted elsewhere: %+v", m.all)
	}
	if !whole.cpu.v2 {
		if m.all = (&hierarchies{cpu: whole.cpu, cpuacct: whole.cpuacct}); *find() != whole {
			t.Errorf("mounted later: %+v", m.all)
		}
	}
	if !whole.complete() {
		return // a hierarchy is mounted nowhere here, and may yet be
	}
	if err := os.Remove(m.file); err != nil {
		t.Fatal(err)
	}
	if *find() != whole {
		t.Error("it is read again")
	}
}

// In v2 before Linux 6.11 the kernel takes a quota below the burst. So the group does not write it.
func TestQuotaBelowTheBurstIsNotWritten(t *testing.T) {
	mount := t.TempDir()
	dir := filepath.Join(mount, "c")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write("cpu.max", "80000 100000\n")
	write("cpu.max.burst", "50000\n")
	g, err := open(&hierarchies{cpu: hierarchy{mount: mount, v2: true}}, "/c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	if err := g.SetQuota(40 * ms); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a quota below the burst: %v", err)
	}
	if text, err := g.QuotaText(); err != nil || text != "80000 100000" {
		t.Errorf("the quota is %q, %v", text, err)
	}
}

// Too many open files say nothing about a path.
func TestTooManyFilesAreNoReason(t *testing.T) {
	g := openGroup(t, testkit.NewGroups(t).Name)
	var err error
	testkit.WithFiles(t, 1, func() { _, err = open(g.all, g.rel()) }) // the mount can be opened, and the group cannot
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrNotAGroup) {
		t.Errorf("with too many open files: %v", err)
	}
}
