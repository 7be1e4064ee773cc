package marks

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCall is what a system call costs more while something is watched: one of
// another process, and a marked one of the watched itself. Rounds with and without
// take turns; the figures are medians of the differences.
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

// timeOf is the CPU time of a call, in ns: others may use the machine meanwhile.
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

// BenchmarkLines is what a line costs a collector of 10000 a second in CPU time, and
// how much more of it while it is watched. Its collector is the only thing measured:
// the writer's calls cost more too, as BenchmarkCall tells.
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

// BenchmarkTake is one look at one daemon with a hundred owners.
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
