package shared

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/slots"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A collector's work for a line is counted for the container of that line, line by line, on any
// thread. Nothing of it is counted for the collector itself.
func TestLines(t *testing.T) {
	for _, role := range []string{"inline", "handoff", "wake", "storm"} {
		t.Run(role, func(t *testing.T) {
			m, r := open(t), newRig(t)
			for i := range r.pipes {
				own(t, m, r.pipes[i], uint32(i+1))
				own(t, m, r.logs[i], uint32(i+1))
			}
			// The storm may read the second container's empty pipe at any time. A byte of a file of
			// its own starts it.
			own(t, m, r.pipes[1]+".idle", 2)
			asks := io.Discard
			var itself []uint32
			if role == "storm" {
				asks, itself = r.asks, []uint32{0}
			}
			d, sums := r.watch(t, m, role, r.args()...), byOwner{}
			for i := range 40 {
				container := i % 3 % 2 // 0, 1, 0, 0, 1, 0
				d.wantOnly(t, uint32(container+1), func() {
					if _, err := asks.Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
					d.line(t, container)
				}, itself...)
				take(t, m, sums)
			}
			d.end(t, sums)
			for owner := range uint32(2) {
				if sums[owner+1] == 0 {
					t.Errorf("owner %d has nothing: %v", owner+1, sums)
				}
			}
		})
	}
}

// Reading an empty pipe is overhead, and does not count for the pipe's owner. The daemon's own work
// is one call for two thousand of these reads.
func TestStorm(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[1]+".idle", 2)
	d := r.watch(t, m, "storm", r.args()...)
	testkit.Eventually(t, func() error {
		before, was := d.weights(), d.overhead()
		for range 10 {
			d.wantOnly(t, 0, func() { // reading the command is the daemon's own work
				if _, err := r.asks.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				d.settle(t)
			})
		}
		if own, all := d.weights()[0]-before[0], d.overhead()-was; 10*own >= all {
			return fmt.Errorf("%v are the daemon's own, and %v overhead", own, all)
		}
		return nil
	})
}

// Files are told apart by their inodes, not by the descriptor number.
func TestReusedDescriptor(t *testing.T) {
	m, r := open(t), newRig(t)
	for i := range r.logs {
		own(t, m, r.logs[i], uint32(i+1))
	}
	d := r.watch(t, m, "reuse", r.logs...)
	for i := range 20 {
		container := i % 3 % 2
		d.wantOnly(t, uint32(container+1), func() { d.ask(t, string(rune('0'+container))) }, 0) // its input is its own
	}
	// Work before a write counts for the owner of the written file, even if the last event was
	// another owner's, unless the thread was switched in between.
	testkit.Eventually(t, func() error {
		before := d.weights()
		d.ask(t, "1")
		after := d.weights()
		if work, rest := after[2]-before[2], after[0]-before[0]; work <= rest {
			return fmt.Errorf("%v are counted for who is written to, and %v for the daemon", work, rest)
		}
		return nil
	})
}

// A call with two files counts for the owner of either file.
func TestSplice(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	own(t, m, r.logs[1], 2)
	d := r.watch(t, m, "splice", r.args()...)
	for i := range 20 {
		container := i % 3 % 2
		d.wantOnly(t, uint32(container+1), func() { d.line(t, container) })
	}
}

// While one thread of the daemon computes, another owner is counted. That owner gets its counted
// time, and none of the computing thread's.
func TestThreadThatComputes(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	own(t, m, r.logs[1], 2)
	flag := filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(flag, make([]byte, unix.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, err := mapFlag(flag)
	if err != nil {
		t.Fatal(err)
	}
	d, sums := r.watch(t, m, "compute", r.pipes[0], r.logs[1], flag), byOwner{}
	p := m.processes[d.pid]
	if _, err := r.writers[0].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	slots := maps.Collect(m.owners.All())
	testkit.Eventually(t, func() error { // while it is on a CPU
		if openTime(p.running, p.watch, monotonic())[slots[1]] == 0 {
			return errors.New("no CPU tells that a thread works for owner 1")
		}
		return nil
	})
	const rounds = 40
	for i := range rounds { // twice the time that may wait for an event
		was := d.weights()[2]
		if _, err := io.WriteString(d.stdin, "x"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, func() error {
			spent := clockOf(t, d.pid) - d.after
			if want := 2 * patience * time.Duration(i+1) / rounds; spent < want || d.weights()[2] == was {
				return fmt.Errorf("the daemon has used %v of %v, for owner 2 %v", spent, want, d.weights()[2])
			}
			return nil
		})
		take(t, m, sums)
	}
	if sums[1] == 0 {
		t.Error("owner 1 has nothing as long as its thread computes")
	}
	stop.Store(1)
	d.settle(t)
	// The counts can miss a quarter. Overhead counts for the owners of the recent work, as the daemon
	// itself is of its input.
	w, overhead := d.weights(), d.overhead()
	d.end(t, sums)
	for _, owner := range []uint32{0, 2} {
		if most := (w[owner] + overhead) * 4 / 3; sums[owner] > most+ms {
			t.Errorf("owner %d has %v; counted are %v, and %v as overhead", owner, sums[owner], w[owner], overhead)
		}
	}
	if sums[2] == 0 {
		t.Error("owner 2 has nothing")
	}
}

// The time of ended threads is in the process's clock and in the counts.
func TestThreadsThatEnd(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	d := r.watch(t, m, "threads", r.pipes[0])
	for range 20 {
		d.wantOnly(t, 1, func() { d.line(t, 0) })
	}
	d.end(t, byOwner{})
}

// On overlayfs the kernel programs see other numbers than stat(2).
func TestIdentifyOverlay(t *testing.T) {
	m := open(t)
	cmd := command("overlay", t.TempDir())
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	stdin, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	d := &daemon{pid: run(t, cmd), m: m, stdin: stdin}
	var f File
	if _, err := fmt.Fscan(out, &f.Dev, &f.Ino); err != nil {
		t.Fatal(err)
	}
	if err := m.Own(f, 7); err != nil {
		t.Fatal(err)
	}
	d.begin(t)
	d.wantOnly(t, 7, func() { d.ask(t, "x") }, 0)
}

func TestDisown(t *testing.T) {
	m, r := open(t), newRig(t)
	files := []File{own(t, m, r.pipes[0], 1), own(t, m, r.logs[0], 1), own(t, m, r.pipes[1], 2), own(t, m, r.logs[1], 2)}
	d := r.watch(t, m, "inline", r.args()...)
	d.line(t, 0)
	d.line(t, 1)
	d.end(t, byOwner{})
	for _, f := range files[:2] {
		if err := m.Disown(f, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files[2:] { // to another, without a gap
		if err := errors.Join(m.Own(f, 3), m.Disown(f, 2)); err != nil {
			t.Fatal(err)
		}
	}
	take(t, m, byOwner{}) // frees the slots of 1 and 2
	d.begin(t)
	for range 5 {
		d.wantOnly(t, 0, func() { d.line(t, 0) })
		d.wantOnly(t, 3, func() { d.line(t, 1) })
	}
	sums := byOwner{}
	d.end(t, sums)
	if sums[1] != 0 || sums[2] != 0 {
		t.Errorf("owners of nothing have %v and %v", sums[1], sums[2])
	}
	if sums[0] == 0 || sums[3] == 0 {
		t.Errorf("the daemon and owner 3 have %v and %v", sums[0], sums[3])
	}
}

// The time of an ended process is taken once more, and its resources are freed.
func TestProcessEnds(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	cmd := command("inline", r.args()...)
	d := &daemon{pid: run(t, cmd), m: m, rig: r}
	d.settle(t)
	d.begin(t)
	for range 5 {
		d.line(t, 0)
	}
	spent, sums := clockOf(t, d.pid)-d.after, byOwner{}
	take(t, m, sums)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	take(t, m, sums)
	if sum(sums) < spent || sums[1] == 0 {
		t.Errorf("the dead process had %v, of its %v", sums, spent)
	}
	if list := m.Processes(); len(list) != 0 || len(m.links) != 0 {
		t.Errorf("still watched: %v, attached: %v", list, m.links)
	}
}

// The time of a process that is not watched is not charged.
func TestWatchTwiceAndAgain(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	d := r.watch(t, m, "inline", r.args()...)
	for range 3 {
		if err := m.Watch(d.pid); err != nil {
			t.Fatal(err)
		}
		d.wantOnly(t, 1, func() { d.line(t, 0) }, 0) // its log is its own
		sums := byOwner{}
		d.end(t, sums)
		if sums[1] == 0 {
			t.Errorf("divided %v", sums)
		}
		if err := m.Unwatch(d.pid); err != nil {
			t.Fatal(err)
		}
		d.line(t, 0)
		d.begin(t)
	}
}

func TestRefusals(t *testing.T) {
	m := open(t)
	if err := m.Own(File{1, 1}, 0); !errors.Is(err, slots.ErrOwner) {
		t.Errorf("own for nobody: %v", err)
	}
	if err := m.Watch(2); err == nil { // a kernel thread
		t.Error("a process without a program is watched")
	}
	if err := m.Watch(1 << 22); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("watch nobody: %v", err)
	}
	limit := int(m.objects.ProcessByTgid.MaxEntries())
	for i := range limit + 1 {
		err := m.Watch(start(t, "threads", newRig(t).pipes[0]))
		if want := i == limit; errors.Is(err, ErrProcesses) != want {
			t.Fatalf("process %d: %v", i, err)
		}
	}
}

func TestFull(t *testing.T) {
	m := open(t)
	var last error
	n := uint32(0)
	for last == nil {
		n++
		last = m.Own(File{1, uint64(n)}, n)
	}
	if !errors.Is(last, slots.ErrFull) || n < 2000 {
		t.Fatalf("owner %d: %v", n, last)
	}
	if err := m.Disown(File{1, 1}, 1); err != nil {
		t.Fatal(err)
	}
	take(t, m, make(map[uint32]time.Duration))
	if err := m.Own(File{1, uint64(n)}, n); err != nil {
		t.Errorf("a slot that is free again: %v", err)
	}
}

func TestClosed(t *testing.T) {
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Watch(os.Getpid()), m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if err := m.Watch(os.Getpid()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("watch after the end: %v", err)
	}
	if _, err := m.Take(); err != nil {
		t.Error(err)
	}
}
