package enforce

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/balance"
)

// rateClock is a helper that always uses the same part of a CPU. Reading it takes as long as
// reading a process's clock.
type rateClock struct {
	start time.Time
	part  float64
}

func (c rateClock) Elapsed() (time.Duration, error) {
	if _, err := processClock(unix.Getpid()).Elapsed(); err != nil {
		return 0, err
	}
	return time.Duration(float64(time.Since(c.start)) * c.part), nil
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHundredAccounts measures the CPU time of the controller for a hundred containers. Each
// has a process that wakes up 20 times a second and a quota of 10 ms. The containers are at rest;
// or have helpers that use a fifth of the quota; or have helpers that use all of it, so that the
// containers are looked at every 10 ms and held.
func BenchmarkHundredAccounts(b *testing.B) {
	for _, part := range []float64{0, .02, .11} {
		b.Run(fmt.Sprintf("helpers use %v", part), func(b *testing.B) {
			r := newRig(b, nil)
			var accounts []*Account
			for range 100 {
				p := newPlace(b, freezers[0], limit(10*ms))
				p.start(b, nil, `exec perl -e 'select(undef, undef, undef, .05) while 1'`)
				a := r.add(b, p)
				a.Attach("logger", rateClock{time.Now(), part}, false)
				accounts = append(accounts, a)
			}
			time.Sleep(2 * time.Second)
			before, start := cpuTime(b), time.Now()
			time.Sleep(5 * time.Second)
			used := cpuTime(b) - before
			b.ReportMetric(100*float64(used)/float64(time.Since(start)), "%CPU")
			b.ReportMetric(0, "ns/op")
			holds := 0
			for _, a := range accounts {
				holds += a.Status().Holds
			}
			b.ReportMetric(float64(holds), "holds")
		})
	}
}

// BenchmarkAccuracy measures the difference between the quota and the CPU time of container and
// helper together over 10 s, in points of a CPU. Both run on one CPU.
func BenchmarkAccuracy(b *testing.B) {
	for _, load := range loads {
		for _, quota := range []time.Duration{50 * ms, 33 * ms, 25 * ms, 20 * ms} {
			b.Run(strings.Join([]string{load.name, quota.String()}, "/"), func(b *testing.B) {
				r := newRig(b, nil)
				p := newPlace(b, freezers[0], limit(quota))
				a := r.add(b, p)
				logger := p.logged(b, load.command)
				a.Attach("logger", logger, false)
				time.Sleep(time.Second)
				own, help := share(b, p.group, logger, 10*time.Second)
				b.ReportMetric(100*own, "%own")
				b.ReportMetric(100*help, "%helper")
				b.ReportMetric(100*(own+help-quota.Seconds()*10), "points")
				b.ReportMetric(0, "ns/op")
				s := a.Status()
				b.ReportMetric(s.LongestHold.Seconds()*1000, "ms-hold")
				if s.LongestHold > 2*balance.Bound() {
					b.Errorf("held for %v", s.LongestHold)
				}
			})
		}
	}
}
