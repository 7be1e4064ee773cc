package enforce

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/ledger"
)

// maxCharge is the largest CPU time that Charge accepts. No source uses more between two looks.
const maxCharge = time.Hour

// Clock is the CPU clock of a helper.
type Clock interface {
	// Elapsed returns the CPU time since any fixed moment. With os.ErrProcessDone the returned time
	// is the last one: the clock has stopped for good.
	Elapsed() (time.Duration, error)
}

// Waker is a clock that calls a function when it advances. It need not be read to see that.
type Waker interface {
	Clock
	// Wake has call run once, some milliseconds after the clock has advanced by after. If a call is
	// already set, Wake changes nothing. After an error the caller must read the clock instead.
	Wake(after time.Duration, call func()) error
}

// Account enforces the debt of one container. Several goroutines may call its methods. After the
// account has ended they do nothing.
type Account struct {
	c       *Controller
	name    string
	group   group
	entry   *ledger.Entry
	balance *balance.Balance

	// The controller's mutex guards the fields down to fault.
	limits  limits
	hold    hold
	phase   phase
	due     time.Duration // when to look next
	begin   time.Duration // when to look at the next period's beginning
	easy    bool          // the time in begin is rough, because the quota need not be written
	last    time.Duration // when usage was read
	usage   time.Duration // the group's CPU time
	checked time.Duration // when the limit was last read
	clocks  []*Attachment
	placed  map[string]bool
	warn    time.Duration // when to log forgiven debt again
	fault   string        // the last fault that was logged

	asleep atomic.Bool // at rest, and looked at only every checkEvery unless rouse is called

	mu      sync.Mutex               // guards the fields below
	charges map[string]time.Duration // by source, since the last look; nil at rest
}

func newAccount(c *Controller, name string, g group, entry *ledger.Entry) (*Account, error) {
	l, err := g.Limit()
	if err != nil {
		return nil, err
	}
	usage, err := g.Usage()
	if err != nil {
		return nil, err
	}
	a := &Account{
		c: c, name: name, group: g, entry: entry, usage: usage, last: c.now(),
		balance: balance.New(limitOf(l), c.cfg.DebtLimit),
	}
	a.limits.original, a.limits.written = l, l
	a.limits.noQuota(g)
	a.phase = newPhase(max(l.Period, time.Millisecond))
	return a, nil
}

// Name returns the container's name, as given to Add.
func (a *Account) Name() string { return a.name }

// Charge adds CPU time that a source used for the container. A negative time is a credit: the
// kernel billed that time to the container, but another's work took it.
func (a *Account) Charge(source string, d time.Duration) {
	a.mu.Lock()
	if a.charges == nil {
		a.charges = map[string]time.Duration{}
	}
	a.charges[source] = min(max(a.charges[source]+min(max(d, -maxCharge), maxCharge), -maxCharge), maxCharge)
	a.mu.Unlock()
	a.rouse()
}

// Attachment is a clock whose time is charged to an account.
type Attachment struct {
	account *Account
	source  string
	clock   Clock
	placed  bool
	last    time.Duration
}

// Attach charges the time that a clock counts from now on. If placed is set, the process already
// runs under the container's quota: its time is recorded but not taken.
func (a *Account) Attach(source string, clock Clock, placed bool) *Attachment {
	x := &Attachment{account: a, source: source, clock: clock, placed: placed}
	x.last, _ = clock.Elapsed()
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.clocks = append(a.clocks, x)
	if placed {
		if a.placed == nil {
			a.placed = map[string]bool{}
		}
		a.placed[source] = true
	}
	a.rouse() // the new clock may not be a Waker
	return x
}

// Detach charges the time since the last look, and stops charging. A second Detach does nothing.
func (x *Attachment) Detach() {
	a := x.account
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	i := slices.Index(a.clocks, x)
	if i < 0 {
		return
	}
	// The next look collects the charge. It would not see the time of a placed helper.
	if d, _ := x.read(); x.placed {
		a.entry.Add(x.source, d)
	} else {
		a.Charge(x.source, d)
	}
	a.clocks = slices.Delete(a.clocks, i, i+1)
}

// read returns the time since the last read, and whether the clock has stopped for good.
func (x *Attachment) read() (d time.Duration, ended bool) {
	t, err := x.clock.Elapsed()
	ended = errors.Is(err, os.ErrProcessDone)
	if err != nil && !ended {
		x.account.complain(err)
		return 0, false
	}
	if t <= x.last {
		if !ended {
			x.last = t
		}
		return 0, ended
	}
	d, x.last = t-x.last, t
	return d, ended
}

// collect returns the CPU times since the last look. The time of placed helpers counts as the
// container's own, because they use up its quota.
//
// A held container does not run, so its usage is not read. The next look after the hold reads the
// time that it used before it stopped.
func (a *Account) collect(now time.Duration) (balance.Input, error) {
	usage, held := a.usage, a.hold.on
	if !held {
		var err error
		if usage, err = a.group.Usage(); err != nil {
			return balance.Input{}, err // the clocks are read at the next look
		}
	}
	own := max(0, usage-a.usage)
	in := balance.Input{Elapsed: now - a.last, Own: own}
	a.usage, a.last = usage, now

	var placed time.Duration
	a.clocks = slices.DeleteFunc(a.clocks, func(x *Attachment) bool {
		if held && x.placed {
			return false // the next look after the hold reads it
		}
		d, ended := x.read()
		if x.placed {
			placed += d
		} else {
			in.Borrowed += d
		}
		a.entry.Add(x.source, d)
		return ended
	})
	a.mu.Lock()
	for source, d := range a.charges {
		if d < 0 {
			in.Credit -= d
		} else {
			in.Borrowed += d
		}
		a.entry.Add(source, d)
	}
	clear(a.charges)
	a.mu.Unlock()

	if a.group.OneHierarchy() {
		own = max(0, own-placed)
	} else {
		in.Own += placed
	}
	a.entry.AddOwn(own)
	return in, nil
}

// LetGo thaws the container now. For the time d the container is not held, its quota is not
// lowered, and it gets no burst. Call LetGo before an exec, a pause, a change of the limits, or the
// container's end.
func (a *Account) LetGo(d time.Duration) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if !slices.Contains(a.c.accounts, a) {
		return
	}
	now := a.c.now()
	a.hold.letGo = max(a.hold.letGo, now+d)
	a.lookBy(now) // a held account was not due at the beginning of the next period
	if err := a.release(now); err != nil {
		a.complain(err)
	}
	if err := errors.Join(a.setBurst(a.unprotected()), a.fullQuota(now)); err != nil {
		a.complain(err)
	}
}

// fullQuota sets the container's original quota. A later look may lower it again.
func (a *Account) fullQuota(now time.Duration) error {
	original := a.limits.original.Quota
	if foreign, err := a.foreign(now, original); foreign || err != nil || a.limits.reason != "" {
		return err
	}
	return a.setQuota(original)
}

// complain logs a fault, unless it is the one that was logged last.
func (a *Account) complain(err error) {
	if text := err.Error(); text != a.fault {
		a.fault = text
		a.c.cfg.Log.Warn("charging a container", "container", a.name, "error", err)
	}
}

// bury ends an account whose group was removed.
func (a *Account) bury() {
	if debt := a.balance.Debt(); debt > 0 {
		a.c.cfg.Log.Info("the cgroup of a container in debt was removed", "container", a.name, "debt", debt)
	}
	_ = a.restore() // processes may have moved to other groups, together with a v1 freezer
	a.entry.Forget()
}

// restore puts back the quota, the burst and the freezer, and drops the account's clocks.
func (a *Account) restore() error {
	a.due = 1<<63 - 1
	a.asleep.Store(false)
	a.clocks = nil
	err := errors.Join(a.release(a.c.now()), a.putBack())
	a.closeFreezer()
	if isGone(err) || err != nil && a.group.Gone() {
		done(&a.limits.quota)
		done(&a.limits.burst)
		done(&a.hold.entry)
		return nil
	}
	return err // the journal still has the entries
}
