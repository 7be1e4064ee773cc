package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/mapped"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const spenderEnv = "TSUGIKI_TEST_SPENDER"

func TestMain(m *testing.M) {
	if path := os.Getenv(spenderEnv); path != "" {
		fmt.Fprintln(os.Stderr, spend(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func open(t testing.TB, path string) *Ledger {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func entry(t testing.TB, l *Ledger, name string, id uint64, wantFresh bool) *Entry {
	t.Helper()
	e, fresh, err := l.Entry(name, id)
	if err != nil {
		t.Fatal(err)
	}
	if fresh != wantFresh {
		t.Errorf("%s, %d: fresh is %v", name, id, fresh)
	}
	return e
}

type sums struct {
	Debt, Own, Forgiven time.Duration
	Sources             map[string]time.Duration
}

func sumsOf(e *Entry) sums { return sums{e.Debt(), e.Own(), e.Forgiven(), e.Sources()} }

func TestSumsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	e := entry(t, l, "c", 7, true)
	e.Add("shim", 3*time.Millisecond)
	e.Add("shim", 4*time.Millisecond)
	e.Add("softirq", -time.Millisecond)
	e.SetDebt(time.Second)
	e.AddOwn(time.Minute)
	e.AddOwn(-time.Hour)
	e.AddForgiven(time.Hour)
	want := sums{time.Second, time.Minute, time.Hour, map[string]time.Duration{"shim": 7 * time.Millisecond, "softirq": -time.Millisecond}}
	if diff := cmp.Diff(want, sumsOf(e)); diff != "" {
		t.Error(diff)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	e.Add("shim", time.Hour) // nowhere
	if diff := cmp.Diff(sums{Sources: map[string]time.Duration{}}, sumsOf(e)); diff != "" {
		t.Error(diff)
	}

	l = open(t, path)
	defer l.Close()
	all := l.Entries()
	if len(all) != 1 || all[0].Name() != "c" || all[0].ID() != 7 || all[0].Opened() {
		t.Fatalf("after a restart: %v", all)
	}
	if diff := cmp.Diff(want, sumsOf(all[0])); diff != "" {
		t.Error(diff)
	}
	e = entry(t, l, "c", 7, false)
	if !e.Opened() {
		t.Error("it is not opened")
	}
	e.Add("shim", time.Millisecond)
	if got := e.Sources()["shim"]; got != 8*time.Millisecond {
		t.Errorf("shim has %v, want 8ms", got)
	}
	// Another container under the old name.
	other := entry(t, l, "c", 8, true)
	if diff := cmp.Diff(sums{Sources: map[string]time.Duration{}}, sumsOf(other)); diff != "" {
		t.Error(diff)
	}
	e.Add("shim", time.Hour)
	if n := len(other.Sources()); n != 0 {
		t.Error("the old container's account still counts")
	}
	other.Forget()
	other.Forget()
	if n := len(l.Entries()); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}

func TestSourcesWithoutRoom(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger"))
	defer l.Close()
	e := entry(t, l, "c", 1, true)
	want := map[string]time.Duration{Other: 4}
	for i := range Sources {
		name := strings.Repeat("x", SourceSize-2) + fmt.Sprintf("%02d", i)
		e.Add(name, 1)
		want[name] = 1
	}
	for _, name := range []string{"one more", strings.Repeat("x", SourceSize+1), "", Other} {
		e.Add(name, 1)
	}
	if diff := cmp.Diff(want, e.Sources()); diff != "" {
		t.Error(diff)
	}
	if err := check(l.file.Data); err != nil {
		t.Error(err)
	}
}

func TestCapacity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	for i := range Capacity {
		entry(t, l, strconv.Itoa(i), 1, true)
	}
	if _, _, err := l.Entry("more", 1); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v, want %v", err, ErrFull)
	}
	l.Entries()[0].Forget()
	entry(t, l, "more", 1, true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Entry("x", 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want %v", err, ErrClosed)
	}
	// Containers that went while no agent was there make room.
	l = open(t, path)
	defer l.Close()
	entry(t, l, "more", 1, false)
	for i := range Capacity - 1 {
		entry(t, l, "new"+strconv.Itoa(i), 1, true)
	}
	if _, _, err := l.Entry("yet more", 1); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v, want %v", err, ErrFull)
	}
	for _, name := range []string{"", strings.Repeat("n", NameSize+1), "a\x00b"} {
		if _, _, err := l.Entry(name, 1); err == nil {
			t.Errorf("name %q: no error", name)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger"))
	defer l.Close()
	kept := entry(t, l, "kept", 1, true)
	var all sync.WaitGroup
	for g := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 1000 {
				kept.Add("s"+strconv.Itoa(i%30), 1)
				e, _, err := l.Entry("come and go", uint64(i))
				if err != nil {
					t.Error(err)
					return
				}
				e.Add("x", 1)
				if g == 0 {
					e.Forget()
				}
			}
		}()
	}
	all.Wait()
	var sum time.Duration
	for _, d := range kept.Sources() {
		sum += d
	}
	if sum != 4000 {
		t.Errorf("%d of 4000 have been counted", sum)
	}
	if err := check(l.file.Data); err != nil {
		t.Error(err)
	}
}

// spend runs a process that prints, again and again, a lower bound of the sum that it has added.
func spend(path string) error {
	l, err := Open(path)
	if err != nil {
		return err
	}
	e, _, err := l.Entry("c", 1)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		e.Add("shim", 1)
		fmt.Println(e.Sources()["shim"].Nanoseconds())
		other, _, err := l.Entry("other", uint64(i))
		if err != nil {
			return err
		}
		other.Add("x", 1)
		other.Forget()
	}
}

func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	for i := range 10 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), spenderEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if said, err = strconv.Atoi(lines.Text()); err != nil {
				t.Error(err)
			}
			if said%500 == 0 {
				_ = cmd.Process.Kill() // and on to the last line
			}
		}
		_ = cmd.Wait()
		l := open(t, path)
		if l.Aside() != "" {
			t.Errorf("kill %d left what cannot be used: %s", i, l.Aside())
		}
		got := entry(t, l, "c", 1, false).Sources()["shim"].Nanoseconds()
		if got < int64(said) || got > int64(said)+1 {
			t.Errorf("kill %d: %d are on file, %d were said", i, got, said)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// On a full disk there is no account for a new container. Those that there are go on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	testkit.SmallDisk(t, dir, 1<<20)
	l := open(t, filepath.Join(dir, "ledger"))
	defer l.Close()
	e := entry(t, l, "first", 1, true)
	room := testkit.Fill(t, dir)
	var err error
	for i := 0; err == nil && i < Capacity; i++ {
		_, _, err = l.Entry("more-"+strconv.Itoa(i), 1)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more: %v, want %v", err, unix.ENOSPC)
	}
	e.Add("source", time.Second)
	room()
	entry(t, l, "later", 1, true)
}

// FuzzCheck checks that data accepted by check can be used, and is still accepted afterwards.
func FuzzCheck(f *testing.F) {
	const slots = 2
	page := make([]byte, slots*slotSize)
	f.Add(uint32(slots), page)
	first := (*slot)(unsafe.Pointer(&page[0]))
	first.valid.Store(1)
	_ = first.setName("c")
	_ = mapped.SetText(first.sources[Sources].name[:], Other)
	first.sources[Sources].valid.Store(1)
	f.Add(uint32(slots), page)
	data := make([]byte, mapped.HeaderSize+Capacity*slotSize)
	file, err := os.Create(filepath.Join(f.TempDir(), "ledger"))
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	f.Fuzz(func(t *testing.T, count uint32, body []byte) {
		clear(data[:mapped.HeaderSize+(slots+1)*slotSize])
		if count <= Capacity {
			count %= slots + 1
		}
		used(data).Store(count)
		copy(data[mapped.HeaderSize:mapped.HeaderSize+slots*slotSize], body)
		if check(data) != nil {
			return
		}
		l := load(&mapped.File{Data: data, File: file})
		for _, e := range l.Entries() {
			e.Add("x", 1)
			if n := len(e.Sources()); n > Sources+1 || e.Debt() < 0 {
				t.Errorf("%q: %v, %v", e.Name(), e.Sources(), e.Debt())
			}
		}
		if _, _, err := l.Entry("fuzz", 1<<63); err != nil {
			t.Error(err)
		}
		if err := check(data); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	l := open(b, filepath.Join(b.TempDir(), "ledger"))
	defer l.Close()
	e := entry(b, l, "c", 1, true)
	for i := range 10 {
		e.Add("source"+strconv.Itoa(i), 1)
	}
	for b.Loop() {
		e.Add("source9", 1)
	}
}
