package enforce

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/ledger"
)

const ms = time.Millisecond

// simStep is the time step of a simulated machine.
const simStep = 50 * time.Microsecond

// simClock is a clock that a test moves.
type simClock struct {
	at    time.Duration
	wakes time.Duration        // when the loop wakes up
	late  func() time.Duration // delay of the wake-up; nil: none
}

func (c *simClock) now() time.Duration { return c.at }

func (c *simClock) set(at time.Duration) {
	c.wakes = max(at, c.at+1)
	if c.late != nil {
		c.wakes += c.late()
	}
}

func (c *simClock) wait()        {}
func (c *simClock) close() error { return nil }

// simGroup simulates a cgroup under the kernel's bandwidth control (kernel/sched/fair.c). Its
// processes use as much CPU time as they want and the kernel permits.
type simGroup struct {
	id     uint64
	dir    string // of its files, which are empty
	limit  bandwidth.Limit
	demand float64    // CPUs that the group would use without a limit
	helper *simHelper // works for it; or nil

	usage   time.Duration
	runtime time.Duration // quota left in this period
	period  time.Duration // age of this period
	periods uint64
	frozen  bool
	gone    bool
	reads   int   // number of times that the usage was read
	shared  bool  // the freezer is also the engine's
	refused error // error of writing a quota below the original
	sealed  error // error of writing any quota
	half    bool  // the next quota below the burst is stored and refused, as in v2 before Linux 6.11
}

// simHelper simulates a helper with a thread outside of the group. It does the work that the
// group's processes give it.
type simHelper struct {
	factor  float64       // helper's work per work of the group
	pipe    time.Duration // largest amount of waiting work
	backlog time.Duration
	used    time.Duration
}

func (h *simHelper) Elapsed() (time.Duration, error) { return h.used, nil }

func (g *simGroup) run(d time.Duration) {
	if g.gone {
		return
	}
	if g.period += d; g.period >= g.limit.Period {
		g.period -= g.limit.Period
		g.periods++
		g.refill()
	}
	var helped time.Duration
	if h := g.helper; h != nil {
		helped = min(h.backlog, d)
		h.used += helped
		h.backlog -= helped
	}
	if g.frozen {
		return
	}
	use := time.Duration(g.demand * float64(d))
	if g.limit.Quota >= 0 {
		use = min(use, g.runtime)
	}
	if h := g.helper; h != nil { // both are on one CPU
		use = min(use, d-helped, time.Duration(float64(max(0, h.pipe-h.backlog))/h.factor))
		h.backlog += time.Duration(float64(use) * h.factor)
	}
	g.runtime -= use
	g.usage += use
}

// refill does the work of __refill_cfs_bandwidth_runtime: it runs at the beginning of a period, and
// whenever a limit is written.
func (g *simGroup) refill() {
	g.runtime = min(g.runtime+g.limit.Quota, g.limit.Quota+g.limit.Burst)
}

// write writes a limit, by the controller or by somebody else.
func (g *simGroup) write(l bandwidth.Limit) error {
	switch {
	case g.gone:
		return bandwidth.ErrGone
	case l.Quota >= 0 && l.Burst > l.Quota:
		return unix.EINVAL
	}
	g.limit = l
	g.refill()
	return nil
}

func (g *simGroup) SetQuota(d time.Duration) error {
	if g.refused != nil && d < g.limit.Quota {
		return g.refused
	}
	if g.sealed != nil {
		return g.sealed
	}
	if g.half && d < g.limit.Burst {
		g.half, g.limit.Quota = false, d
		return unix.EINVAL
	}
	l := g.limit
	l.Quota = d
	return g.write(l)
}

func (g *simGroup) SetBurst(d time.Duration) error {
	l := g.limit
	l.Burst = d
	return g.write(l)
}

// whole returns an error if the group was removed.
func (g *simGroup) whole() error {
	if g.gone {
		return bandwidth.ErrGone
	}
	return nil
}

func (g *simGroup) Usage() (time.Duration, error) {
	g.reads++
	return g.usage, g.whole()
}

func (g *simGroup) ID() uint64                         { return g.id }
func (g *simGroup) Root() bool                         { return false }
func (g *simGroup) Gone() bool                         { return g.gone }
func (g *simGroup) OneHierarchy() bool                 { return false }
func (g *simGroup) Keep(bool) error                    { return nil }
func (g *simGroup) Limit() (bandwidth.Limit, error)    { return g.limit, g.whole() }
func (g *simGroup) Burst() (time.Duration, error)      { return g.limit.Burst, g.whole() }
func (g *simGroup) QuotaText() (string, error)         { return g.FormatQuota(g.limit.Quota), g.whole() }
func (g *simGroup) FormatQuota(d time.Duration) string { return d.String() }
func (g *simGroup) QuotaFile() string                  { return filepath.Join(g.dir, "quota") }
func (g *simGroup) BurstFile() string                  { return filepath.Join(g.dir, "burst") }

func (g *simGroup) Quota() (bandwidth.Limit, error) {
	return bandwidth.Limit{Quota: g.limit.Quota, Period: g.limit.Period}, g.whole()
}

func (g *simGroup) Throttled() (bandwidth.Throttling, error) {
	return bandwidth.Throttling{Periods: g.periods}, g.whole()
}

func (g *simGroup) Pressure() (bandwidth.Pressure, bool, error) {
	return bandwidth.Pressure{}, false, nil
}

func (g *simGroup) Freezer() (freezer, error) { return &simFreezer{g}, g.whole() }

type simFreezer struct{ g *simGroup }

func (f *simFreezer) File() string              { return filepath.Join(f.g.dir, "freezer") }
func (f *simFreezer) Texts() (string, []string) { return "THAWED", []string{"FROZEN"} }
func (f *simFreezer) Private() bool             { return !f.g.shared }
func (f *simFreezer) Frozen() (bool, error)     { return f.g.frozen, f.g.whole() }
func (f *simFreezer) Close() error              { return nil }

func (f *simFreezer) Freeze() error {
	f.g.frozen = true
	return f.g.whole()
}

func (f *simFreezer) Thaw() error {
	f.g.frozen = false
	return f.g.whole()
}

// simWatch reports the writes to freezers that a test has made in the name of others.
type simWatch struct {
	accounts []*Account
	wrote    []*Account
}

func (w *simWatch) add(_ string, a *Account) error {
	w.accounts = append(w.accounts, a)
	return nil
}

func (w *simWatch) remove(_ string, a *Account) {
	w.accounts = slices.DeleteFunc(w.accounts, func(x *Account) bool { return x == a })
}

func (w *simWatch) close() error { return nil }

func (w *simWatch) written() ([]*Account, error) {
	wrote := w.wrote
	w.wrote = nil
	return wrote, nil
}

// sim is a controller on a simulated machine.
type sim struct {
	*Controller
	clock  *simClock
	watch  *simWatch
	groups []*simGroup
	dir    string
	log    strings.Builder
}

// books opens a journal and a ledger, which close with the test.
func books(t testing.TB) (*journal.Journal, *ledger.Ledger) {
	t.Helper()
	dir := t.TempDir()
	j, err := journal.Open(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(filepath.Join(dir, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), j.Close()); err != nil {
			t.Error(err)
		}
	})
	return j, l
}

func newSim(t testing.TB, change func(*Config)) *sim {
	t.Helper()
	j, l := books(t)
	dir := t.TempDir()
	for _, name := range []string{"quota", "burst", "freezer"} { // the journal wants to know their inodes
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &sim{dir: dir, clock: &simClock{wakes: math.MaxInt64}, watch: &simWatch{}}
	cfg := Config{Journal: j, Ledger: l, Log: slog.New(slog.NewTextHandler(&s.log, nil))}
	if change != nil {
		change(&cfg)
	}
	s.Controller = newController(cfg, s.clock)
	s.Controller.watch = s.watch
	close(s.ended) // the test runs the loop
	s.pass()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// account adds a container that is always busy.
func (s *sim) account(t testing.TB, l bandwidth.Limit) (*Account, *simGroup) {
	t.Helper()
	g := &simGroup{
		id: uint64(len(s.groups) + 2), dir: s.dir,
		limit: l, runtime: l.Quota, demand: 1, period: 37 * ms % l.Period,
	}
	a, err := s.add("c"+strconv.Itoa(len(s.groups)), g)
	if err != nil {
		t.Fatal(err)
	}
	s.groups = append(s.groups, g)
	return a, g
}

// run advances the simulated time.
func (s *sim) run(d time.Duration) {
	for end := s.clock.at + d; s.clock.at < end; {
		next := min(end, s.clock.at+simStep, max(s.clock.wakes, s.clock.at))
		for _, g := range s.groups {
			g.run(next - s.clock.at)
		}
		s.clock.at = next
		if s.clock.at >= s.clock.wakes {
			s.pass()
		}
	}
}

// until advances the simulated time until a condition is true, and returns the passed time.
func (s *sim) until(t testing.TB, most time.Duration, what string, is func() bool) time.Duration {
	t.Helper()
	start := s.clock.at
	for !is() {
		if s.clock.at-start >= most {
			t.Fatalf("not within %v: %s\n%s", most, what, s.log.String())
		}
		s.run(ms)
	}
	return s.clock.at - start
}

// others writes to the freezer in the name of somebody else.
func (s *sim) others(g *simGroup, frozen bool) {
	g.frozen = frozen
	for _, a := range s.watch.accounts {
		if a.group == g {
			s.watch.wrote = append(s.watch.wrote, a)
		}
	}
	s.lookAtFreezers()
}

// lookAtFreezers makes the controller read the writes by others now.
func (s *sim) lookAtFreezers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain()
}

// simRate is a helper that always uses the same part of a CPU.
type simRate struct {
	clock *simClock
	since time.Duration
	part  float64
}

func (s *sim) rate(part float64) simRate { return simRate{s.clock, s.clock.at, part} }

func (r simRate) Elapsed() (time.Duration, error) {
	return time.Duration(float64(r.clock.at-r.since) * r.part), nil
}

func limit(quota time.Duration) bandwidth.Limit {
	return bandwidth.Limit{Quota: quota, Period: 100 * ms}
}
