package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/mapped"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The C header has the same constants and offsets as this package.
func TestLayoutIsTheUndoHelpers(t *testing.T) {
	testkit.CheckC(t, "c/journal.h", map[string]any{
		"JOURNAL_MAGIC":                         magic,
		"JOURNAL_HEADER":                        mapped.HeaderSize,
		"JOURNAL_CAPACITY":                      Capacity,
		"JOURNAL_THAW":                          Thaw,
		"JOURNAL_QUOTA":                         Quota,
		"JOURNAL_BURST":                         Burst,
		"JOURNAL_MOVE":                          move,
		"JOURNAL_TEXT":                          textSize,
		"JOURNAL_PATH":                          pathSize,
		"offsetof(struct journal_header, used)": mapped.Spare,
		"sizeof(struct journal_entry)":          slotSize,
		"struct journal_entry":                  slot{},
		"struct journal_text":                   text{},
	})
	testkit.CheckC(t, "c/undo_helper.h", map[string]any{
		"UNDO_HELPER_VERSION":       undoHelperVersion,
		"struct undo_helper_report": report{},
	})
}

func TestRestore(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(e *Entry, file string) error
		want   string
		undone int
	}{
		"the latest of ours": {func(e *Entry, file string) error {
			return errors.Join(e.Ours(ms50, ms30), os.WriteFile(file, []byte(ms30), 0))
		}, ms80, 1},
		"killed before the write": {func(e *Entry, file string) error {
			return errors.Join(os.WriteFile(file, []byte(ms50), 0), e.Ours(ms50, ms30))
		}, ms80, 1},
		"two writes before": {func(e *Entry, file string) error {
			return errors.Join(os.WriteFile(file, []byte(ms50), 0), e.Ours(ms50, ms30), e.Ours(ms30, ms20))
		}, ms50, 0},
		"a refused write before": {func(e *Entry, file string) error {
			return errors.Join(os.WriteFile(file, []byte(ms50), 0), e.Ours(ms50, ms30), e.Ours(ms50, ms20), e.Ours(ms50, ms40))
		}, ms80, 1},
		"the same again": {func(e *Entry, file string) error {
			return errors.Join(os.WriteFile(file, []byte(ms50), 0), e.Ours(ms50, ms30), e.Ours(ms50, ms30), e.Ours(ms30, ms30))
		}, ms80, 1},
		"somebody else's value": {func(_ *Entry, file string) error {
			return os.WriteFile(file, []byte(ms66), 0)
		}, ms66, 0},
		"another original": {func(e *Entry, file string) error {
			return errors.Join(e.Original(ms70), os.WriteFile(file, []byte(ms50), 0))
		}, ms70, 1},
		"original changed twice": {func(e *Entry, file string) error {
			return errors.Join(e.Original(ms70), e.Original(noQuota), os.WriteFile(file, []byte(ms50), 0))
		}, noQuota, 1},
		"done": {func(e *Entry, file string) error {
			e.Done()
			e.Done()
			return os.WriteFile(file, []byte(ms50), 0)
		}, ms50, 0},
		"suspended": {func(e *Entry, file string) error {
			e.Suspend()
			return os.WriteFile(file, []byte(ms50), 0)
		}, ms50, 0},
		"resumed": {func(e *Entry, file string) error {
			e.Suspend()
			return errors.Join(e.Resume(), os.WriteFile(file, []byte(ms50), 0))
		}, ms80, 1},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(group(t, "cpu"), quotaFile)
			write(t, ms80, file)
			j := open(t, filepath.Join(t.TempDir(), "undo"))
			defer j.Close()
			e, err := j.Write(Quota, file, ms80, ms50)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.do(e, file); err != nil {
				t.Fatal(err)
			}
			if n, got := restore(t, j), read(t, file); n != c.undone || got != c.want {
				t.Errorf("%d undone, quota %s; want %d, %s", n, got, c.undone, c.want)
			}
			if n := j.pending(); n != 0 {
				t.Errorf("%d entries are left", n)
			}
		})
	}
}

// A group that was removed and made again is another group.
func TestRestoreLeavesAnotherGroupAlone(t *testing.T) {
	parent := group(t, "cpu")
	if v2 {
		write(t, "+cpu", parent, "cgroup.subtree_control")
	}
	g := filepath.Join(parent, "c")
	file := filepath.Join(g, quotaFile)
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	defer j.Close()
	for range 2 {
		if err := os.Mkdir(g, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, ms50, file)
		if _, err := j.Write(Quota, file, ms80, ms50); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Move(g, parent); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(g); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(g, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, ms50, file)
	if n, got := restore(t, j), read(t, file); n != 0 || got != ms50 {
		t.Errorf("%d undone, quota %s; want none, 50000", n, got)
	}
}

func TestRestoreGoesByOrder(t *testing.T) {
	quota := group(t, "cpu")
	if _, err := os.Stat(filepath.Join(quota, burstFile)); err != nil {
		t.Skip("skip: needs burst of CPU bandwidth (Linux 5.14)")
	}
	write(t, ms50, quota, quotaFile)
	write(t, "50000", quota, burstFile)
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	defer j.Close()
	// The burst is too large for the present quota, so it must be restored second.
	for _, e := range []struct {
		order Order
		file  string
		texts [2]string
	}{{Burst, burstFile, [2]string{"80000", "50000"}}, {Quota, quotaFile, [2]string{ms80, ms50}}} {
		if _, err := j.Write(e.order, filepath.Join(quota, e.file), e.texts[0], e.texts[1]); err != nil {
			t.Fatal(err)
		}
	}
	if n := restore(t, j); n != 2 || read(t, quota, quotaFile) != ms80 || read(t, quota, burstFile) != "80000" {
		t.Errorf("%d undone, quota %s, burst %s; want 2, 80000, 80000", n, read(t, quota, quotaFile), read(t, quota, burstFile))
	}
}

// For any damage of the journal, no file outside of the cgroups is written, and the valid entries
// are undone.
func TestRestoreOfDamagedJournal(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte(ms50+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := group(t, "cpu")
	file := filepath.Join(g, quotaFile)
	// Entries that are whole may be undone later.
	outside := map[string]int{"outside": 1, "removes": 1}
	for name, damage := range map[string]func(s *slot){
		"outside": func(s *slot) { _ = mapped.SetText(s.path[:], precious) },
		"climbs":  func(s *slot) { _ = mapped.SetText(s.path[:], g+"/../../../../.."+precious) },
		"endless": func(s *slot) {
			for i := range s.path {
				s.path[i] = '/'
			}
		},
		"relative": func(s *slot) { _ = mapped.SetText(s.path[:], "tmp") },
		"original": func(s *slot) { s.original.Store(1 << 20) },
		"nothing":  func(s *slot) { s.originals[0][0] = 0 },
		"length":   func(s *slot) { s.ours[1].length.Store(1 << 31) },
		"order":    func(s *slot) { s.order = 77 },
		"removes": func(s *slot) {
			s.order = move
			_ = mapped.SetText(s.path[:], dir)
			_ = mapped.SetText(s.to[:], g)
		},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, ms50, file)
			j := open(t, filepath.Join(t.TempDir(), "undo"))
			defer j.Close()
			var first uint32
			for i := range 2 {
				e, err := j.Write(Quota, file, ms80, ms50)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					first = e.index
				}
			}
			damage(j.slot(first))
			n, err := j.Restore(testLog(t))
			if n != 1 || err == nil || read(t, file) != ms80 {
				t.Errorf("%d undone (%v), quota %s; want 1, an error, 80000", n, err, read(t, file))
			}
			if left, want := j.pending(), outside[name]; left != want {
				t.Errorf("%d entries are left, want %d", left, want)
			}
			if got := read(t, precious); got != ms50 {
				t.Errorf("a file outside was written: %q", got)
			}
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	g := group(t, "cpu")
	file := filepath.Join(g, quotaFile)
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	defer j.Close()
	long := strings.Repeat("1", textSize)
	for name, err := range map[string]error{
		"relative path":       second(j.Write(Quota, "cpu/x", "1", "2")),
		"unclean path":        second(j.Write(Quota, g+"/../x", "1", "2")),
		"missing file":        second(j.Write(Quota, file+"x", "1", "2")),
		"no original":         second(j.Write(Quota, file, "", "2")),
		"long original":       second(j.Write(Quota, file, long, "2")),
		"long text of ours":   second(j.Write(Quota, file, "1", long)),
		"three texts":         second(j.Write(Quota, file, "1", "2", "3", "4")),
		"order of moves":      second(j.Write(move, file, "1", "2")),
		"relative target":     second(j.Move(g, "cpu")),
		"target with a zero":  second(j.Move(g, "/cpu\x00")),
		"group that is a dot": second(j.Move(g+"/.", g)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if n := j.pending(); n != 0 {
		t.Errorf("%d entries were made all the same", n)
	}
}

func second(_ *Entry, err error) error { return err }

// On a full disk nothing is noted, and so nothing is changed; what was noted can change.
func TestFullDisk(t *testing.T) {
	file := filepath.Join(group(t, "cpu"), quotaFile)
	dir := t.TempDir()
	testkit.SmallDisk(t, dir, 1<<20)
	j := open(t, filepath.Join(dir, "undo"))
	defer j.Close()
	first, err := j.Write(Quota, file, ms80, ms50)
	if err != nil {
		t.Fatal(err)
	}
	room := testkit.Fill(t, dir)
	for range Capacity {
		if _, err = j.Write(Quota, file, ms80, ms50); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more: %v, want %v", err, unix.ENOSPC)
	}
	if err := first.Ours(ms50, ms80); err != nil {
		t.Error(err)
	}
	room()
	if _, err := j.Write(Quota, file, ms80, ms50); err != nil {
		t.Error(err)
	}
}

func TestCapacity(t *testing.T) {
	file := filepath.Join(group(t, "cpu"), quotaFile)
	j := open(t, filepath.Join(t.TempDir(), "undo"))
	defer j.Close()
	var last *Entry
	for range Capacity {
		e, err := j.Write(Quota, file, ms80, ms50)
		if err != nil {
			t.Fatal(err)
		}
		last = e
	}
	if _, err := j.Write(Quota, file, ms80, ms50); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v, want %v", err, ErrFull)
	}
	last.Done()
	if _, err := j.Write(Quota, file, ms80, ms50); err != nil {
		t.Errorf("after one is done: %v", err)
	}
	write(t, ms50, file)
	if n := restore(t, j); n != 1 {
		t.Errorf("%d undone, want 1", n)
	}
	if n := j.pending(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}
