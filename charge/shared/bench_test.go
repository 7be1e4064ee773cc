package shared

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCall measures by how much a system call slows down while a process is watched: a call of
// another process, and an event of the watched process itself. Rounds with and without watching
// take turns. The figures are medians of the differences.
func BenchmarkCall(b *testing.B) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		b.Fatal(err)
	}
	defer zero.Close()
	fd, buffer := int(zero.Fd()), make([]byte, 1)
	calls := map[string]func(){
		"getppid": func() { unix.Getppid() },
		"read":    func() { _, _ = unix.Read(fd, buffer) },
	}
	other := command("threads", "/dev/stdin")
	stdin, err := other.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = other.Wait()
	}()
	for name, pid := range map[string]int{"unwatched": other.Process.Pid, "watched": os.Getpid()} {
		for call, f := range calls {
			b.Run(name+"/"+call, func(b *testing.B) { benchmarkCall(b, pid, f) })
		}
	}
}

func benchmarkCall(b *testing.B, pid int, call func()) {
	const rounds = 41
	m, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	f, err := Identify("/dev/zero")
	if err == nil {
		err = m.Own(f, 1)
	}
	if err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // and its clock
	for range b.N {
		var off, more []float64
		for range rounds {
			without := timeOf(call)
			if err := m.Watch(pid); err != nil {
				b.Fatal(err)
			}
			with := timeOf(call)
			if err := m.Unwatch(pid); err != nil {
				b.Fatal(err)
			}
			off, more = append(off, without), append(more, with-without)
		}
		slices.Sort(off)
		slices.Sort(more)
		b.ReportMetric(off[rounds/2], "ns/call")
		b.ReportMetric(more[rounds/2], "more-ns/call")
		b.ReportMetric(more[rounds/4], "more-ns/call-25%")
		b.ReportMetric(more[rounds*3/4], "more-ns/call-75%")
	}
}

// timeOf returns the CPU time of a call, in ns. It is CPU time because others may use the machine
// meanwhile.
func timeOf(call func()) float64 {
	const calls = 20000
	var before, after unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
	for range calls {
		call()
	}
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	return float64(after.Nano()-before.Nano()) / calls
}

// BenchmarkLines measures a collector's CPU time per line at 10000 lines a second, and by how much
// it grows while the collector is watched. It measures only the collector. The writer's calls slow
// down, too: see BenchmarkCall.
func BenchmarkLines(b *testing.B) {
	const rounds, length, every = 8, time.Second / 2, 100
	m, r := open(b), newRig(b)
	for i := range r.pipes {
		own(b, m, r.pipes[i], uint32(i+1))
		own(b, m, r.logs[i], uint32(i+1))
	}
	pid := start(b, "plain", r.args()...)
	costOf := func() float64 {
		before := clockOf(b, pid)
		r.produce(b, length, every/2, every/2)
		return float64(clockOf(b, pid)-before) / float64(length/(10*time.Millisecond)*every)
	}
	costOf()
	for range b.N {
		var off, more []float64
		for range rounds {
			without := costOf()
			if err := m.Watch(pid); err != nil {
				b.Fatal(err)
			}
			with := costOf()
			if err := m.Unwatch(pid); err != nil {
				b.Fatal(err)
			}
			off, more = append(off, without), append(more, with-without)
		}
		slices.Sort(off)
		slices.Sort(more)
		b.ReportMetric(off[rounds/2], "ns/line")
		b.ReportMetric(more[rounds/2], "more-ns/line")
		b.ReportMetric(more[rounds/4], "more-ns/line-25%")
		b.ReportMetric(more[rounds*3/4], "more-ns/line-75%")
	}
}

// BenchmarkShares measures the first of two containers' part of a daemon's owned time, the owned
// part of all time, and the counted part in the end. The name contains the right share. It is rough
// where lines are not handled one by one.
func BenchmarkShares(b *testing.B) {
	for _, role := range []string{"inline", "handoff", "storm"} {
		for name, lines := range map[string][]int{"0.9": {90, 10}, "0.5": {50, 50}} {
			b.Run(role+"/"+name, func(b *testing.B) {
				benchmarkShares(b, true, true, role, (*rig).args, func(d *daemon) { d.rig.produce(b, time.Second, lines...) })
			})
		}
	}
	b.Run("reuse/0.25", func(b *testing.B) {
		logs := func(r *rig) []string { return r.logs }
		benchmarkShares(b, true, true, "reuse", logs, func(d *daemon) { d.ask(b, strings.Repeat("0111", 1000)) })
	})
	b.Run("splice/0.5", func(b *testing.B) {
		benchmarkShares(b, false, false, "splice", (*rig).args, func(d *daemon) {
			for range 1000 { // one by one, because the number of lines per splice is random
				d.line(b, 0)
				d.line(b, 1)
			}
		})
	})
	b.Run("late/0.85", func(b *testing.B) {
		flag := filepath.Join(b.TempDir(), "stop")
		if err := os.WriteFile(flag, make([]byte, unix.Getpagesize()), 0o600); err != nil {
			b.Fatal(err)
		}
		args := func(r *rig) []string { return []string{r.pipes[0], r.logs[1], flag} }
		benchmarkShares(b, false, false, "compute", args, func(d *daemon) { computeBeside(b, d, flag) })
	})
}

// computeBeside makes the daemon compute for two seconds for the first container, and handle lines
// of the second one for 15 percent of its time.
func computeBeside(b *testing.B, d *daemon, flag string) {
	stop, err := mapFlag(flag)
	if err != nil {
		b.Fatal(err)
	}
	stop.Store(0)
	if _, err := d.rig.writers[0].Write([]byte("x")); err != nil {
		b.Fatal(err)
	}
	for spent := clockOf(b, d.pid) - d.after; spent < 2*time.Second; spent = clockOf(b, d.pid) - d.after {
		if d.weights()[2] < spent*15/100 {
			if _, err := io.WriteString(d.stdin, strings.Repeat("x", 50)); err != nil {
				b.Fatal(err)
			}
		}
		time.Sleep(100 * time.Microsecond)
	}
	stop.Store(1)
	d.settle(b)
}

// benchmarkShares makes daemons work while their time is taken every 50 ms. Unless a case says
// otherwise, the first container owns its pipe and the second one its log.
func benchmarkShares(b *testing.B, log1, pipe2 bool, role string, args func(*rig) []string, work func(*daemon)) {
	for range b.N {
		m, r := open(b), newRig(b)
		own(b, m, r.pipes[0], 1)
		own(b, m, r.logs[1], 2)
		if log1 {
			own(b, m, r.logs[0], 1)
		}
		if pipe2 {
			own(b, m, r.pipes[1], 2)
		}
		d, sums := r.watch(b, m, role, args(r)...), byOwner{}
		takeAll := func() {
			taken, err := m.Take()
			if err != nil {
				b.Error(err)
			}
			for owner, d := range taken {
				sums[owner] += d
			}
		}
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				takeAll()
			}
		}()
		work(d)
		stop()
		<-done
		d.settle(b) // so that everything is counted
		w := d.weights()
		b.ReportMetric(float64(w[1])/float64(w[1]+w[2]), "counted-share")
		if err := m.Unwatch(d.pid); err != nil {
			b.Fatal(err)
		}
		takeAll()
		b.ReportMetric(float64(sums[1])/float64(sums[1]+sums[2]), "share")
		b.ReportMetric(float64(sums[1]+sums[2])/float64(sum(sums)), "owned")
	}
}

// BenchmarkTake measures one Take for one daemon with a hundred owners.
func BenchmarkTake(b *testing.B) {
	m, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for owner := range uint32(100) {
		if err := m.Own(File{1, uint64(owner)}, owner+1); err != nil {
			b.Fatal(err)
		}
	}
	if err := m.Watch(os.Getpid()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := m.Take(); err != nil {
			b.Fatal(err)
		}
	}
}

// produce makes each container write that many lines every 10 ms, for a while. The containers take
// turns at being the first: the first one's lines find the daemon asleep and are read in smaller
// pieces.
func (r *rig) produce(b *testing.B, length time.Duration, lines ...int) {
	b.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < int(length/(10*time.Millisecond)); n++ {
		for i := range lines {
			if n%2 == 1 {
				i = len(lines) - 1 - i
			}
			for range lines[i] {
				if _, err := fmt.Fprintf(r.writers[i], "line %d of eighty bytes or so, as programs print them %s\n", n, strings.Repeat("x", 20)); err != nil {
					b.Fatal(err)
				}
			}
		}
		<-tick.C
	}
	time.Sleep(50 * time.Millisecond) // the last lines are handled
}
