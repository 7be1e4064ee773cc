package marks

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/slots"
)

func TestDivision(t *testing.T) {
	for _, role := range []string{"inline", "handoff", "storm"} {
		for _, c := range []struct {
			name  string
			lines []int
			share float64 // of the first
		}{{"9to1", []int{90, 10}, 0.9}, {"1to1", []int{50, 50}, 0.5}} {
			t.Run(role+"/"+c.name, func(t *testing.T) {
				m, r := open(t), newRig(t)
				for i := range r.pipes {
					own(t, m, r.pipes[i], uint32(i+1))
					own(t, m, r.logs[i], uint32(i+1))
				}
				own(t, m, r.pipes[1]+".idle", 2)
				pid := start(t, role, r.args()...)
				sums := measure(t, m, pid, func() { r.produce(t, 2*time.Second, c.lines...) })
				wantShare(t, sums, 1, c.share, 0.08)
				wantOwned(t, sums, 0.9)
			})
		}
	}
}

// A descriptor number says nothing about the file: inodes do.
func TestReusedDescriptor(t *testing.T) {
	m, r := open(t), newRig(t)
	for i := range r.logs {
		own(t, m, r.logs[i], uint32(i+1))
	}
	pid := start(t, "reuse", r.logs...)
	sums := measure(t, m, pid, func() { time.Sleep(time.Second) })
	wantShare(t, sums, 1, 0.25, 0.08)
	wantOwned(t, sums, 0.9)
}

// A call with two files is the owner's who owns either.
func TestSplice(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	own(t, m, r.logs[1], 2)
	pid := start(t, "splice", r.args()...)
	sums := measure(t, m, pid, func() { r.produce(t, time.Second, 10, 10) })
	wantShare(t, sums, 1, 0.5, 0.35) // all or nothing, if it were the owner's of one end alone
	wantOwned(t, sums, 0.9)
}

// Time that is marked late is not all given to whoever is marked meanwhile. How much is
// differs from run to run, from 0.02 to 0.6 of it: what is divided at a Take that comes in
// between goes by the marks of before.
func TestLateMarks(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	own(t, m, r.logs[1], 2)
	const attempts = 3
	var shares []float64
	for range attempts {
		pid := start(t, "compute", r.pipes[0], r.logs[1])
		sums := measure(t, m, pid, func() {
			for range 4 {
				r.produce(t, 300*time.Millisecond)
				r.produce(t, 10*time.Millisecond, 1)
			}
			time.Sleep(300 * time.Millisecond)
		})
		wantOwned(t, sums, 0.9)
		got := shareOf(sums, 1)
		if got >= 0.3 {
			return
		}
		shares = append(shares, got)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil { // the next reads the same pipe
			t.Fatal(err)
		}
	}
	t.Errorf("owner 1 has %.3f of what is owned, want 0.3", shares)
}

// Threads that have ended are in the process's clock, and so are their marks.
func TestThreadsThatEnd(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	pid := start(t, "threads", r.pipes[0])
	sums := measure(t, m, pid, func() { r.produce(t, time.Second, 20) })
	wantOwned(t, sums, 0.7) // it makes threads for itself
}

// What stat tells of a file on overlayfs is not what the kernel programs see.
func TestIdentifyOverlay(t *testing.T) {
	m := open(t)
	cmd := command("overlay", t.TempDir())
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	pid := run(t, cmd)
	var f File
	if _, err := fmt.Fscan(out, &f.Dev, &f.Ino); err != nil {
		t.Fatal(err)
	}
	if err := m.Own(f, 7); err != nil {
		t.Fatal(err)
	}
	sums := measure(t, m, pid, func() { time.Sleep(500 * time.Millisecond) })
	wantOwned(t, sums, 0.9)
}

func TestDisown(t *testing.T) {
	m, r := open(t), newRig(t)
	files := []File{own(t, m, r.pipes[0], 1), own(t, m, r.logs[0], 1), own(t, m, r.pipes[1], 2), own(t, m, r.logs[1], 2)}
	pid := start(t, "inline", r.args()...)
	measure(t, m, pid, func() { r.produce(t, 200*time.Millisecond, 50, 50) })
	for _, f := range files[:2] {
		if err := m.Disown(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files[2:] { // to another, without a gap
		if err := m.Own(f, 3); err != nil {
			t.Fatal(err)
		}
	}
	take(t, m, make(map[uint32]time.Duration)) // gives the slots of 1 and 2 back
	sums := measure(t, m, pid, func() { r.produce(t, 500*time.Millisecond, 50, 50) })
	if sums[1] != 0 || sums[2] != 0 {
		t.Errorf("owners of nothing have %v and %v", sums[1], sums[2])
	}
	all := sums[0] + sums[3]
	if got := float64(sums[3]) / float64(all); math.Abs(got-0.5) > 0.1 {
		t.Errorf("owner 3 has %.3f, want half", got)
	}
}

// A process that ends is taken once more, and what watching took is given back.
func TestProcessEnds(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	cmd := command("inline", r.args()...)
	pid := run(t, cmd)
	time.Sleep(100 * time.Millisecond)
	if err := m.Watch(pid); err != nil {
		t.Fatal(err)
	}
	r.produce(t, 300*time.Millisecond, 50, 50)
	spent := clockOf(t, pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	sums := make(map[uint32]time.Duration)
	take(t, m, sums)
	if got := sums[0] + sums[1]; got < spent/2 || got > spent*5/4 {
		t.Errorf("the dead process had %v, of its %v", got, spent)
	}
	if list := m.Processes(); len(list) != 0 || len(m.links) != 0 {
		t.Errorf("still watched: %v, attached: %v", list, m.links)
	}
}

func TestWatchTwiceAndAgain(t *testing.T) {
	m, r := open(t), newRig(t)
	own(t, m, r.pipes[0], 1)
	pid := start(t, "inline", r.args()...)
	time.Sleep(100 * time.Millisecond)
	for range 3 {
		if err := errors.Join(m.Watch(pid), m.Watch(pid)); err != nil {
			t.Fatal(err)
		}
		r.produce(t, 50*time.Millisecond, 10)
		if err := errors.Join(m.Unwatch(pid), m.Unwatch(pid)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // what passes now is nobody's
	}
	sums := make(map[uint32]time.Duration)
	take(t, m, sums)
	if sum, all := sums[0]+sums[1], clockOf(t, pid); sum > all || sum == 0 {
		t.Errorf("divided %v, the process has %v since it was started", sum, all)
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
	if err := m.Disown(File{1, 1}); err != nil {
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
