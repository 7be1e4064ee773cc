package enforce

import (
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
)

// held returns an account whose container is held for some seconds.
func (s *sim) held(t *testing.T) (*Account, *simGroup) {
	t.Helper()
	a, g := s.account(t, limit(20*ms))
	g.shared = true
	s.run(time.Second)
	a.Charge("test", 10*time.Second)
	s.until(t, 2*restEvery, "it is held", func() bool { return g.frozen })
	return a, g
}

func TestHoldEndsInTime(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.held(t)
	s.run(500 * ms)
	if now := a.Status().HeldNow; now < 490*ms || now > 500*ms {
		t.Errorf("the status says held for %v", now)
	}
	s.until(t, balance.Bound(), "it goes on", func() bool { return !g.frozen })
	s.run(100 * ms)
	st := a.Status()
	if st.LongestHold < balance.HoldLimit-balance.Pulse || st.LongestHold > balance.Bound()+gatherEach+simStep || st.HeldTooLong != 0 {
		t.Errorf("held for %v, too long %d times", st.LongestHold, st.HeldTooLong)
	}
	if st.Carried < 9*time.Second || st.After.Quota > 11*ms {
		t.Errorf("%v carried, the quota is %v", st.Carried, st.After.Quota)
	}
}

// A container that somebody else froze during a hold stays frozen.
func TestPauseWhileHeldStays(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.held(t)
	s.others(g, true)
	if st := a.Status(); st.HeldNow != 0 || st.Holds != 1 {
		t.Errorf("held for %v, the %d. time", st.HeldNow, st.Holds)
	}
	s.run(2 * balance.Bound())
	if holds := a.Status().Holds; !g.frozen || holds != 1 {
		t.Fatalf("frozen %v, %d holds", g.frozen, holds)
	}
	s.others(g, false)
	s.run(5 * time.Second) // the single charge no longer counts as usual
	own := a.Status().Own
	s.run(10 * time.Second)
	if part := a.Status().Own - own; g.frozen || part < 900*ms || part > 1100*ms {
		t.Errorf("frozen %v, with half of its quota it has run for %v in 10 s", g.frozen, part)
	}
}

// A container that somebody else thaws is not held again for a second.
func TestThawByOthersIsRespected(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.held(t)
	s.others(g, false)
	free := s.until(t, 2*thawedByOthers, "it is held again", func() bool { return g.frozen })
	if free < thawedByOthers || free > thawedByOthers+restEvery {
		t.Errorf("it is held again after %v", free)
	}
	if holds := a.Status().Holds; holds != 2 {
		t.Errorf("%d holds", holds)
	}
}

func TestPausedBeforeIsNotThawed(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.account(t, limit(20*ms))
	g.shared = true
	s.run(time.Second)
	s.others(g, true)
	a.Charge("test", time.Second)
	s.run(2 * balance.Bound())
	if holds := a.Status().Holds; !g.frozen || holds != 0 {
		t.Errorf("frozen %v, %d holds", g.frozen, holds)
	}
}

func TestLetGo(t *testing.T) {
	s := newSim(t, nil)
	a, g := s.held(t)
	a.LetGo(time.Second)
	if g.frozen || g.limit != limit(20*ms) {
		t.Errorf("frozen %v, %+v", g.frozen, g.limit)
	}
	free := s.until(t, 2*time.Second, "it is held again", func() bool { return g.frozen || g.limit.Quota < 20*ms })
	if free < time.Second {
		t.Errorf("it is let go for %v", free)
	}
}

func TestGroupIsRemovedWhileHeld(t *testing.T) {
	var gone []*Account
	s := newSim(t, func(c *Config) { c.Gone = func(a *Account) { gone = append(gone, a) } })
	a, g := s.held(t)
	g.gone = true
	s.run(time.Second)
	if len(gone) != 1 || gone[0] != a {
		t.Fatalf("%d accounts have ended", len(gone))
	}
	a.LetGo(time.Second)
	a.Charge("test", time.Second)
	s.run(time.Second)
	if err := s.Remove(a); err != nil {
		t.Error(err)
	}
	if left := s.cfg.Ledger.Entries(); len(left) != 0 {
		t.Errorf("%d in the ledger", len(left))
	}
}

// A container gets one large charge and none after it. A second later it runs at half its quota: a
// single charge does not count as the usual work of its helpers.
func TestOneChargeIsNotUsual(t *testing.T) {
	for _, quota := range []time.Duration{10 * ms, 50 * ms, 90 * ms} {
		s := newSim(t, nil)
		a, g := s.account(t, limit(quota))
		s.run(time.Second)
		s.others(g, true)
		a.Charge("daemon", 10*time.Second)
		s.run(4 * time.Second)
		s.others(g, false)
		s.until(t, 4*time.Second, "it runs", func() bool { return !g.frozen })
		s.run(time.Second)
		for i := range 4 {
			before := g.usage
			s.run(time.Second)
			used, want := g.usage-before, 5*quota // ten periods at half the quota
			if used < want*3/4 || used > want*5/4 {
				t.Errorf("quota %v, second %d: used %v, want %v", quota, i+2, used, want)
			}
		}
	}
}
