package enforce

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
)

// Somebody changes the limit of a container whose quota is lowered. Ten periods later the container
// and its helper keep to the new limit.
func TestUpdateOfTheLimitIsAdopted(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.account(t, limit(60*ms))
	a.Attach("helper", s.rate(.1), false)
	for _, l := range []bandwidth.Limit{
		limit(60 * ms), limit(40 * ms),
		{Quota: 50 * ms, Period: 200 * ms},
		{Quota: 30 * ms, Period: 200 * ms},
		{Quota: 10 * ms, Period: 20 * ms},
		{Quota: 300 * ms, Period: time.Second},
		limit(60 * ms),
	} {
		if err := g.write(l); err != nil {
			t.Fatal(err)
		}
		s.run(checkAfter + 12*l.Period)
		st, before, at := a.Status(), g.usage, s.clock.at
		if st.Before != l || st.After.Quota >= l.Quota || st.Mode != "quota" {
			t.Errorf("%v: %v is adopted, the quota is %v, mode %q", l, st.Before, st.After.Quota, st.Mode)
		}
		s.run(20 * l.Period)
		used := float64(g.usage-before)/float64(s.clock.at-at) + .1
		if want := l.Quota.Seconds() / l.Period.Seconds(); used > 1.02*want || used < .98*want {
			t.Errorf("%v: together %.3f of a CPU of %.3f", l, used, want)
		}
	}

	if err := g.write(bandwidth.Limit{Quota: bandwidth.None, Period: 100 * ms}); err != nil {
		t.Fatal(err)
	}
	s.run(time.Second)
	if mode := a.Status().Mode; mode != "account only: no quota" {
		t.Errorf("mode %q", mode)
	}
	if err := g.write(limit(30 * ms)); err != nil {
		t.Fatal(err)
	}
	s.run(2 * time.Second)
	if st := a.Status(); st.Mode != "quota" || st.After.Quota >= 30*ms {
		t.Errorf("mode %q, the quota is %v", st.Mode, st.After.Quota)
	}
	if err := s.Remove(a); err != nil {
		t.Error(err)
	}
	if g.limit != limit(30*ms) {
		t.Errorf("left: %+v", g.limit)
	}
}

// An account that only counts gives the container its own limit and thaws it, also if somebody
// changes the limit, and counts on. Later it takes time again, without a debt of before.
func TestOnlyCount(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.account(t, limit(20*ms))
	a.Attach("helper", s.rate(.5), false)
	s.until(t, 5*time.Second, "the container is held", func() bool { return g.frozen })
	a.OnlyCount("the policy says so")
	s.run(checkAfter + time.Second)
	before := a.Status()
	if g.frozen || g.limit != limit(20*ms) || before.Mode != "account only: the policy says so" || before.Debt != 0 {
		t.Errorf("frozen %v, limit %+v, mode %q, debt %v", g.frozen, g.limit, before.Mode, before.Debt)
	}
	if err := g.write(limit(40 * ms)); err != nil {
		t.Fatal(err)
	}
	s.run(checkAfter + 2*time.Second)
	st := a.Status()
	if g.frozen || st.Debt != 0 || g.limit != limit(40*ms) || st.Before != limit(40*ms) || st.Mode != before.Mode || st.Borrowed["helper"] < before.Borrowed["helper"]+time.Second {
		t.Errorf("frozen %v, debt %v, limit %+v, mode %q; counted %v, before that %v", g.frozen, st.Debt, g.limit, st.Mode, st.Borrowed["helper"], before.Borrowed["helper"])
	}
	a.OnlyCount("")
	s.until(t, 5*time.Second, "the quota is lowered", func() bool { return g.limit.Quota < 40*ms })
	if st := a.Status(); st.Mode != "quota" {
		t.Errorf("mode %q", st.Mode)
	}
	a.OnlyCount("again")
	if err := s.Remove(a); err != nil || g.limit != limit(40*ms) || g.frozen {
		t.Errorf("removed: %v, limit %+v, frozen %v", err, g.limit, g.frozen)
	}
}

// Somebody changes the period alone, as cgroup v1 permits, and the account ends before it writes
// again. The lowered quota does not stay.
func TestQuotaUnderAnotherPeriodIsPutBack(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.account(t, limit(60*ms))
	a.Attach("helper", s.rate(.1), false)
	s.run(2 * time.Second)
	l := g.limit
	if l.Quota >= 60*ms {
		t.Fatalf("the quota is %v", l.Quota)
	}
	l.Period = 200 * ms
	s.mu.Lock()
	if err := errors.Join(g.write(l), a.check(s.now())); err != nil {
		t.Error(err)
	}
	if a.limits.quota == nil {
		t.Error("a killed agent would leave the lowered quota")
	}
	s.mu.Unlock()
	if err := s.Remove(a); err != nil {
		t.Error(err)
	}
	if want := (bandwidth.Limit{Quota: 60 * ms, Period: 200 * ms}); g.limit != want {
		t.Errorf("left: %+v, want %+v", g.limit, want)
	}
}

func TestRefusedQuotaLeavesItAlone(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.account(t, limit(50*ms))
	g.refused = unix.EINVAL
	a.Attach("helper", s.rate(.2), false)
	s.run(time.Second)
	if mode := a.Status().Mode; !strings.HasPrefix(mode, "account only: ") || g.limit != limit(50*ms) {
		t.Errorf("mode %q, %+v", mode, g.limit)
	}
	before := a.Status().Borrowed["helper"]
	s.run(time.Second)
	if now := a.Status().Borrowed["helper"]; now < before+150*ms {
		t.Errorf("the helper is counted for %v more", now-before)
	}
}

// While a neighbour is in debt, a container without debt has a burst. With a lowered quota it has
// none. It has the burst again shortly after it has paid its debt.
func TestBurstIsGivenAndTakenAway(t *testing.T) {
	for seed := range uint64(30) {
		for _, late := range []time.Duration{1, 10 * ms} {
			burstComesAndGoes(t, rand.New(rand.NewPCG(seed, 6)), late)
		}
	}
}

func burstComesAndGoes(t *testing.T, r *rand.Rand, late time.Duration) {
	t.Helper()
	s := newSim(t, func(c *Config) { c.Burst = true })
	s.clock.late = func() time.Duration { return time.Duration(r.Int64N(int64(late))) }
	a, g := s.account(t, bandwidth.Limit{Quota: 50 * ms, Period: 100 * ms, Burst: 5 * ms})
	burst := func(is time.Duration) func() bool { return func() bool { return g.limit.Burst == is } }
	s.run(2 * protectAfter)
	if !burst(5 * ms)() {
		t.Errorf("with no neighbour in debt the burst is %v", g.limit.Burst)
	}
	other, _ := s.account(t, limit(50*ms))
	neighbour := other.Attach("helper", s.rate(.1), false)
	s.until(t, checkEvery+time.Second, "burst", burst(50*ms))
	x := a.Attach("helper", s.rate(.2), false)
	s.until(t, time.Second, "none with a lower quota", burst(0))
	x.Detach()
	s.until(t, protectAfter+5*time.Second, "burst again", burst(50*ms))
	neighbour.Detach()
	s.until(t, pressedFor+5*time.Second, "burst as it was", burst(5*ms))
	if err := s.Close(); err != nil || g.limit.Burst != 5*ms {
		t.Errorf("left: %+v, %v", g.limit, err)
	}
}

// Only the debt of other containers gives a container a burst.
func TestBurstIsNotForOnesOwnDebts(t *testing.T) {
	s := newSim(t, func(c *Config) { c.Burst = true })
	l := bandwidth.Limit{Quota: 50 * ms, Period: 100 * ms, Burst: 5 * ms}
	a, g := s.account(t, l)
	b, _ := s.account(t, l)
	c, _ := s.account(t, l)
	s.run(time.Minute)
	owes, owesNothing := balance.Output{Quota: 40 * ms}, balance.Output{Quota: 50 * ms, Protect: true}
	for i, step := range []struct {
		owe  []*Account    // accounts in debt, one after the other
		want time.Duration // burst of the first account
	}{
		{nil, 5 * ms},
		{[]*Account{a}, 5 * ms},
		{[]*Account{a, a}, 5 * ms},
		{[]*Account{b}, 50 * ms},
		{[]*Account{b, a}, 50 * ms},
		{[]*Account{b, c, a, a}, 50 * ms},
		{[]*Account{a, b, b}, 50 * ms},
	} {
		s.lowered = lowered{}
		for _, account := range []*Account{a, b, c} { // restores the initial state
			if err := account.control(owesNothing); err != nil {
				t.Fatal(err)
			}
		}
		for _, account := range step.owe {
			if err := account.control(owes); err != nil {
				t.Fatal(err)
			}
		}
		a.limits.owesSince = s.now() - protectAfter
		if err := a.control(owesNothing); err != nil {
			t.Fatal(err)
		}
		if g.limit.Burst != step.want {
			t.Errorf("step %d: the burst is %v, not %v", i, g.limit.Burst, step.want)
		}
	}
}

// Somebody sets a burst above the quota that is written next. The kernel refuses that quota, with
// or without storing it. The account adopts the burst and goes on.
func TestRefusedBelowABurstByOthers(t *testing.T) {
	for _, half := range []bool{false, true} {
		s := newSim(t, nil)
		a, g := s.account(t, limit(80*ms))
		s.run(time.Second)
		g.half = half
		want := bandwidth.Limit{Quota: 80 * ms, Period: 100 * ms, Burst: 50 * ms}
		if err := g.write(want); err != nil {
			t.Fatal(err)
		}
		owes := balance.Output{Quota: 40 * ms}
		if err := a.control(owes); err != nil || a.limits.original != want || a.limits.reason != "" {
			t.Errorf("stored %t: %v, original %+v, reason %q", half, err, a.limits.original, a.limits.reason)
		}
		if err := a.control(owes); err != nil || g.limit != limit(40*ms) {
			t.Errorf("stored %t: %v, then %+v", half, err, g.limit)
		}
		if err := s.Remove(a); err != nil || g.limit != want {
			t.Errorf("stored %t: %v, left %+v", half, err, g.limit)
		}
	}
}

// In v1, somebody lowers the quota of a group above. The kernel then refuses to restore the quota.
// Once it permits that again, the quota is restored. Until then the journal knows the text that the
// file has.
func TestRefusedRestoreIsTriedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "journal")
	own, err := journal.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() }) // after the controller
	s := newSim(t, func(c *Config) { c.Journal = own })
	a, g := s.account(t, limit(100*ms))
	s.run(time.Second)
	if err := a.control(balance.Output{Quota: 50 * ms}); err != nil {
		t.Fatal(err)
	}
	g.sealed = unix.EINVAL
	if err := a.control(balance.Output{Quota: 80 * ms}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("the quota is refused: %v", err)
	}
	for range 3 {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte("50ms")) || g.limit.Quota != 50*ms {
			t.Errorf("a killed agent would leave a quota of %v, %v", g.limit.Quota, err)
		}
		s.run(2 * checkEvery)
	}
	g.sealed = nil
	s.until(t, 2*checkEvery, "restored", func() bool { return g.limit == limit(100*ms) })
	if a.limits.quota != nil || !strings.HasPrefix(a.Status().Mode, "account only: ") {
		t.Errorf("mode %q, and the journal would undo what is restored: %v", a.Status().Mode, a.limits.quota)
	}
}
