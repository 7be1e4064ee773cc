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

// maxCharge bounds one charge: nobody spends more between two looks.
const maxCharge = time.Hour

// Clock is somebody's CPU time.
type Clock interface {
	// Elapsed is the CPU time since any origin. os.ErrProcessDone: there will be no
	// more, and what it says is the last.
	Elapsed() (time.Duration, error)
}

// Waker is a clock that says by itself that it goes on, and has not to be read for that.
type Waker interface {
	Clock
	// Wake has call run, once, some milliseconds after the clock has gone on by that
	// much. If it is set already it stays as it is. An error: the clock has to be read.
	Wake(after time.Duration, call func()) error
}

// Account is one container's. Its methods may be called by several goroutines, and
// do nothing when it has ended.
type Account struct {
	c       *Controller
	name    string
	group   group
	entry   *ledger.Entry
	balance *balance.Balance

	// Of the controller's mutex.
	limits  limits
	hold    hold
	phase   phase
	due     time.Duration // when to look next
	begin   time.Duration // when the next period begins, and a little later;
	easy    bool          // or about then, because nothing will have to be written
	last    time.Duration // when the usage was read,
	usage   time.Duration // which it was then
	checked time.Duration // when the limit was read
	clocks  []*Attachment
	placed  map[string]bool
	warn    time.Duration // when to log that next
	fault   string        // that was logged last

	asleep atomic.Bool // it is looked at only now and then, unless it is roused

	mu      sync.Mutex               // guards what follows
	charges map[string]time.Duration // nil at rest
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

// Name is the container's, as it was added.
func (a *Account) Name() string { return a.name }

// Charge says that a source has used CPU time for the container. Less than zero is a
// credit: time that the kernel took from the container was another's.
func (a *Account) Charge(source string, d time.Duration) {
	a.mu.Lock()
	if a.charges == nil {
		a.charges = map[string]time.Duration{}
	}
	a.charges[source] = min(max(a.charges[source]+min(max(d, -maxCharge), maxCharge), -maxCharge), maxCharge)
	a.mu.Unlock()
	a.rouse()
}

// Attachment is a clock that runs for an account.
type Attachment struct {
	account *Account
	source  string
	clock   Clock
	placed  bool
	last    time.Duration
}

// Attach charges what a clock counts from now on. placed: whose clock it is runs under
// the container's quota already, so that its time is written down but not taken.
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
	a.rouse() // it is not known to wake
	return x
}

// Detach charges the rest, and no more. Again, it does nothing.
func (x *Attachment) Detach() {
	a := x.account
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	i := slices.Index(a.clocks, x)
	if i < 0 {
		return
	}
	// The charge is for the next look, a placed helper's time is for none.
	if d, _ := x.read(); x.placed {
		a.entry.Add(x.source, d)
	} else {
		a.Charge(x.source, d)
	}
	a.clocks = slices.Delete(a.clocks, i, i+1)
}

// read is the time since the last time, and whether there will be no more.
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

// collect takes the time since the last look. Helpers that the kernel holds to the
// quota count as the container's own, for that is whose quota they use.
//
// What is held does not run. The little that it used before it stopped is read later.
func (a *Account) collect(now time.Duration) (balance.Input, error) {
	usage, held := a.usage, a.hold.on
	if !held {
		var err error
		if usage, err = a.group.Usage(); err != nil {
			return balance.Input{}, err // what was borrowed waits
		}
	}
	own := max(0, usage-a.usage)
	in := balance.Input{Elapsed: now - a.last, Own: own}
	a.usage, a.last = usage, now

	var placed time.Duration
	a.clocks = slices.DeleteFunc(a.clocks, func(x *Attachment) bool {
		if held && x.placed {
			return false // its time is in the usage
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

// LetGo thaws the container now and does not hold it for a time, nor lower its quota,
// nor give it burst:
// before an exec, a pause, an update of its limits, its end.
func (a *Account) LetGo(d time.Duration) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if !slices.Contains(a.c.accounts, a) {
		return
	}
	now := a.c.now()
	a.hold.letGo = max(a.hold.letGo, now+d)
	a.lookBy(now) // held, it was not due at the beginning of the next period
	if err := a.release(now); err != nil {
		a.complain(err)
	}
	if err := errors.Join(a.setBurst(a.unprotected()), a.fullQuota(now)); err != nil {
		a.complain(err)
	}
}

// fullQuota gives the container back what it was given, for now.
func (a *Account) fullQuota(now time.Duration) error {
	original := a.limits.original.Quota
	if foreign, err := a.foreign(now, original); foreign || err != nil || a.limits.reason != "" {
		return err
	}
	return a.setQuota(original)
}

// complain logs what went wrong, once until something else does.
func (a *Account) complain(err error) {
	if text := err.Error(); text != a.fault {
		a.fault = text
		a.c.cfg.Log.Warn("charging a container", "container", a.name, "error", err)
	}
}

// bury ends an account whose group is gone.
func (a *Account) bury() {
	if debt := a.balance.Debt(); debt > 0 {
		a.c.cfg.Log.Info("a container is gone in debt", "container", a.name, "debt", debt)
	}
	_ = a.restore() // its processes may live on elsewhere, and its freezer with them
	a.entry.Forget()
}

// restore puts everything back, and ends what runs for the account.
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
	return err // the journal knows what is left
}
