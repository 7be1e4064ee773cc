package enforce

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
)

// helpers has helpers for the paper's kinds of containers: one that only writes, one that forks and
// writes 3 KB at a time, one that writes short lines.
var helpers = []struct {
	name   string
	factor float64
}{{"yes", 30}, {"lsmod", .05}, {"echo", .5}}

// Looks come late on a busy machine. A quota that is written late in a period gives the container
// the used part of the period twice. That time is taken back later.
func TestContainerAndHelperTogetherKeepToTheQuota(t *testing.T) {
	for _, quota := range []time.Duration{50 * ms, 20 * ms} {
		for _, late := range []time.Duration{0, 100 * time.Microsecond, 5 * ms} {
			for _, helper := range helpers {
				t.Run(fmt.Sprint(quota, "/", late, "/", helper.name), func(t *testing.T) {
					s := newSim(t, nil)
					r := rand.New(rand.NewPCG(1, 5))
					s.clock.late = func() time.Duration { return time.Duration(r.Float64() * float64(late)) }
					a, g := s.account(t, limit(quota))
					g.helper = &simHelper{factor: helper.factor, pipe: 2 * ms}
					a.Attach("logger", g.helper, false)
					s.run(2 * time.Second)
					before := g.usage + g.helper.used
					s.run(time.Minute)
					used := ((g.usage + g.helper.used - before) / 60).Seconds()
					if want := quota.Seconds() * 10; used > 1.01*want || used < .99*want {
						t.Errorf("together %.4f of a CPU of %.4f", used, want)
					}
					st := a.Status()
					if st.Mode != "quota" || st.Borrowed["logger"] < g.helper.used-100*ms || st.LongestHold > balance.Bound()+gatherEach+late+simStep {
						t.Errorf("mode %q, the logger used %v of %v, held for %v", st.Mode, st.Borrowed["logger"], g.helper.used, st.LongestHold)
					}
					if err := s.Remove(a); err != nil {
						t.Error(err)
					}
					if g.limit != limit(quota) || g.frozen {
						t.Errorf("left: %+v, frozen %v", g.limit, g.frozen)
					}
				})
			}
		}
	}
}

// A hundred containers that all exceed their quotas are kept to them. Each is looked at once per
// period or less: within a period the kernel gives them no more.
func TestManyOverTheirQuotas(t *testing.T) {
	const accounts, quota = 100, ms // the smallest quota that the kernel accepts
	for _, helper := range helpers[1:] {
		s := newSim(t, nil)
		used := func() (sum time.Duration, reads, holds int) {
			for i, g := range s.groups {
				sum += g.usage + g.helper.used
				reads += g.reads
				holds += s.accounts[i].Status().Holds
			}
			return sum, reads, holds
		}
		for range accounts {
			a, g := s.account(t, limit(quota))
			g.helper = &simHelper{factor: helper.factor, pipe: 2 * ms}
			a.Attach("logger", g.helper, false)
		}
		s.run(5 * time.Second)
		before, reads, holds := used()
		const length = 20 * time.Second
		s.run(length)
		after, readsAfter, holdsAfter := used()
		part := float64(after-before) / float64(accounts*quota*(length/(100*ms)))
		looks := float64(readsAfter-reads) / float64(accounts*(length/(100*ms)))
		t.Logf("%s: %.3f of the quotas, %.2f looks and %.2f holds in each period", helper.name, part, looks, float64(holdsAfter-holds)/float64(accounts*(length/(100*ms))))
		if part < .98 || part > 1.02 {
			t.Errorf("%s: together they used %.3f of their quotas", helper.name, part)
		}
		if looks > 1.1 {
			t.Errorf("%s: %.2f looks in each period", helper.name, looks)
		}
	}
}

func TestManyAccountsComeAndGo(t *testing.T) {
	s := newSim(t, nil)
	accounts := map[*Account]*simGroup{}
	for range 200 {
		a, g := s.account(t, limit(20*ms))
		a.Attach("helper", s.rate(.05), false)
		accounts[a] = g
	}
	s.run(500 * ms)
	for a, g := range accounts {
		if a.Status().Borrowed["helper"] == 0 {
			t.Errorf("%s was not looked at", a.Name())
		}
		if err := s.Remove(a); err != nil {
			t.Error(err)
		}
		if g.limit != limit(20*ms) || g.frozen {
			t.Errorf("left: %+v, frozen %v", g.limit, g.frozen)
		}
	}
	if left := s.cfg.Ledger.Entries(); len(left) != 0 {
		t.Errorf("%d in the ledger", len(left))
	}
}
