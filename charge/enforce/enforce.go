// Package enforce takes CPU time that others spend for a container out of the
// container's CPU quota.
//
// It owns the quota, the burst and the freezer of the groups that it is given, and
// puts back what it found. It does not find containers or helpers, nor does it
// measure: clocks and charges come from outside, and package balance decides.
//
// Theory of operation. One goroutine, on a thread of its own, looks at all accounts.
// One to which nothing was charged lately is looked at every second, together with
// all others at rest, and at the next tenth of a second when something is charged. The
// kernel says so of processes (see Waker): they get no farther than wakeAfter unseen,
// but for its tick. Where it does not, the clocks are read every 100 ms. An active one is looked at 0.3 ms after the beginning of each
// of its periods, where a quota that is written counts for a whole period: a write
// elsewhere gives what was not used of the period twice (the kernel refills at each
// write). If it may have to be held soon, it is looked at every 10 ms, again all such
// accounts at a time.
//
// Before a file is written, the journal knows what undoes it. A value that somebody
// else wrote is the new original. It is read right before each write; what is written
// in the microseconds between is lost.
//
// Hold and pause. Where the container's freezer is also its engine's (cgroup v1 or
// pure v2), fanotify tells of each write of others to it, in the order in which they
// happened. Who froze last has it: what somebody else froze is neither frozen again
// nor thawed here, and what somebody else thawed is left running for a second.
//
// It needs root (the cgroups' files, CAP_SYS_ADMIN for fanotify) and Linux 5.15.
package enforce

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/ledger"
)

// DebtLimit is how many quotas a container can owe where Config does not say: a
// minute of its own at the usual period.
const DebtLimit = 600

// ErrClosed says that the controller has ended.
var ErrClosed = errors.New("the controller is closed")

// Config is what a controller needs.
type Config struct {
	Journal *journal.Journal
	Ledger  *ledger.Ledger
	Log     *slog.Logger
	// Burst gives accounts that owe nothing a burst of their quota while others'
	// quotas are lowered: they catch up after those's helpers ran ahead. While it is
	// there, the kernel refuses (EINVAL) to lower the quota below it: LetGo before that.
	Burst     bool
	DebtLimit int            // in quotas; 0: the constant
	Gone      func(*Account) // the account's group is gone, and so is the account
}

// Controller enforces what its accounts owe.
type Controller struct {
	cfg   Config
	clock clock
	ended chan struct{}

	watch watcher // nil: there is none, for the reason below
	blind error

	mu       sync.Mutex // guards what follows, and all of the accounts but their charges
	accounts []*Account
	closed   bool
	lowered  lowered

	sleep  sync.Mutex // guards what follows; taken after mu
	alarm  time.Duration
	roused []roused
}

// New starts a controller. It ends with Close.
func New(cfg Config) (*Controller, error) {
	t, err := newTimer()
	if err != nil {
		return nil, fmt.Errorf("start charging: %w", err)
	}
	c := newController(cfg, t)
	if w, err := newWatch(c); err != nil {
		c.blind = err
		cfg.Log.Warn("containers whose freezer is their engine's are not held", "error", err)
	} else {
		c.watch = w
	}
	go c.run()
	return c, nil
}

// newController makes a controller whose loop does not run.
func newController(cfg Config, clock clock) *Controller {
	if cfg.DebtLimit <= 0 {
		cfg.DebtLimit = DebtLimit
	}
	return &Controller{cfg: cfg, clock: clock, ended: make(chan struct{})}
}

// Add makes an account for the container of a group, which stays the caller's. What
// the ledger knows of this name and group, sums and debt, is the account's.
func (c *Controller) Add(name string, g *bandwidth.Group) (*Account, error) {
	return c.add(name, kernelGroup{g})
}

func (c *Controller) add(name string, g group) (*Account, error) {
	entry, _, err := c.cfg.Ledger.Entry(name, g.ID())
	if err != nil {
		return nil, fmt.Errorf("add container %s: %w", name, err)
	}
	a, err := newAccount(c, name, g, entry)
	if err != nil {
		return nil, fmt.Errorf("add container %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("add container %s: %w", name, ErrClosed)
	}
	a.balance.Owe(entry.Debt())
	a.due = c.now()
	c.accounts = append(c.accounts, a)
	c.kick()
	return a, nil
}

// Remove ends an account: the container is thawed and has its quota and burst back,
// what it owes is forgotten. Removing it twice does nothing.
func (c *Controller) Remove(a *Account) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.drop(a) {
		return nil
	}
	a.count()
	if debt := a.balance.Debt(); debt > 0 {
		c.cfg.Log.Info("a container ends in debt", "container", a.name, "debt", debt)
	}
	a.entry.Forget()
	return a.restore()
}

// drop takes an account off the list, and tells whether it was there.
func (c *Controller) drop(a *Account) bool {
	i := slices.Index(c.accounts, a)
	if i < 0 {
		return false
	}
	c.accounts = slices.Delete(c.accounts, i, i+1)
	return true
}

// Close ends all accounts as Remove does, but the ledger keeps what they owe.
func (c *Controller) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.kick()
	c.mu.Unlock()
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, a := range c.accounts {
		a.count()
		a.entry.SetDebt(a.balance.Debt())
		errs = append(errs, a.restore())
	}
	c.accounts = nil
	if c.watch != nil {
		errs = append(errs, c.watch.close())
	}
	return errors.Join(append(errs, c.clock.close())...)
}

func (c *Controller) now() time.Duration { return c.clock.now() }

// kick makes the loop look at what is due. The mutex is held.
func (c *Controller) kick() { c.wakeBy(0) }

// limitOf is a limit for package balance.
func limitOf(l bandwidth.Limit) balance.Limit {
	return balance.Limit{Quota: l.Quota, Period: l.Period, Burst: l.Burst}
}

// isGone tells whether an error says that the group is no more.
func isGone(err error) bool {
	return errors.Is(err, bandwidth.ErrGone) || errors.Is(err, os.ErrClosed)
}
