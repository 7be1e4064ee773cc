package accounts

import (
	"errors"
	"os"
	"testing"
	"time"
)

// fake is a process and its containers, with CPU times that a test sets.
type fake struct {
	clock time.Duration
	err   error
}

func (f *fake) PID() int                         { return 1 }
func (f *fake) Elapsed() (time.Duration, error)  { return f.clock, f.err }
func (f *fake) Wake(time.Duration, func()) error { return nil }
func (f *fake) Close() error                     { return nil }

func TestDivision(t *testing.T) {
	const ms = time.Millisecond
	gone := errors.New("the group is gone")
	type step struct {
		passed, spent time.Duration
		uses          [2]time.Duration // of the containers themselves
		gone          [2]error
		ended         error
		want          [2]time.Duration // of all so far
	}
	for name, c := range map[string]struct {
		members int
		steps   []step
	}{
		"one alone pays for all, at once": {1, []step{
			{passed: ms, spent: 20 * ms, want: [2]time.Duration{20 * ms}},
			{passed: ms, spent: 5 * ms, want: [2]time.Duration{25 * ms}},
		}},
		"in proportion to what they use": {2, []step{
			{passed: divideEvery, spent: 40 * ms, uses: [2]time.Duration{30 * ms, 10 * ms}, want: [2]time.Duration{30 * ms, 10 * ms}},
			{passed: divideEvery, spent: 40 * ms, uses: [2]time.Duration{0, 10 * ms}, want: [2]time.Duration{30 * ms, 50 * ms}},
		}},
		"in equal parts if none uses any": {2, []step{
			{passed: divideEvery, spent: 40 * ms, want: [2]time.Duration{20 * ms, 20 * ms}},
		}},
		"an idle one pays nothing": {2, []step{
			{passed: divideEvery, spent: 40 * ms, uses: [2]time.Duration{ms, 0}, want: [2]time.Duration{40 * ms, 0}},
		}},
		"not too often": {2, []step{
			{passed: divideEvery, spent: 10 * ms, uses: [2]time.Duration{ms, 0}, want: [2]time.Duration{10 * ms, 0}},
			{passed: divideEvery - 1, spent: 10 * ms, uses: [2]time.Duration{0, ms}, want: [2]time.Duration{10 * ms, 0}},
			{passed: 1, spent: 10 * ms, uses: [2]time.Duration{ms, 0}, want: [2]time.Duration{20 * ms, 10 * ms}},
		}},
		"at once when it has ended": {2, []step{
			{passed: divideEvery, spent: 10 * ms, uses: [2]time.Duration{ms, 0}, want: [2]time.Duration{10 * ms, 0}},
			{passed: 1, spent: 10 * ms, uses: [2]time.Duration{0, ms}, ended: os.ErrProcessDone, want: [2]time.Duration{10 * ms, 10 * ms}},
		}},
		"a group that is gone uses nothing": {2, []step{
			{passed: divideEvery, spent: 10 * ms, uses: [2]time.Duration{9 * ms, ms}, gone: [2]error{gone, nil}, want: [2]time.Duration{0, 10 * ms}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, now := &fake{}, time.Now()
			d := &division{process: p, now: func() time.Time { return now }, members: map[*account]*share{}}
			var shares [2]*share
			var uses [2]time.Duration
			var failed [2]error
			for i := range c.members {
				shares[i] = &share{of: d, own: func() (time.Duration, error) { return uses[i], failed[i] }}
				d.members[&account{}] = shares[i]
			}
			for i, s := range c.steps {
				now, failed, p.err = now.Add(s.passed), s.gone, s.ended
				p.clock += s.spent
				for j := range uses {
					uses[j] += s.uses[j]
				}
				for j := range c.members {
					if got, err := shares[j].Elapsed(); got != s.want[j] || !errors.Is(err, s.ended) {
						t.Errorf("step %d: container %d has %v (%v), want %v", i, j, got, err, s.want[j])
					}
				}
			}
		})
	}
}
