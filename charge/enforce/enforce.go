// Package enforce takes CPU time that others spend for a container out of the container's CPU
// quota.
//
// It owns the quota, the burst and the freezer of the cgroups that it is given, and restores the
// original values. It does not find containers or helpers, and does not measure. Its callers supply
// clocks and charges. Package balance computes each quota and decides each hold.
//
// Theory of operation. One goroutine, on a thread of its own, looks at all accounts. An account is
// at rest if nothing was charged to it lately. All accounts at rest are looked at together, once
// per second. When a charge arrives for one, the loop looks at it at the next multiple of 100 ms. A
// Waker tells the loop when a helper has used wakeAfter of CPU time, to the precision of the
// kernel's tick. Clocks that are no Waker are read every 100 ms.
//
// An account that is not at rest is looked at 0.3 ms after the beginning of each of its periods.
// The kernel refills the quota at each write, so a write at another moment would give the container
// the used part of the period twice. If the container may have to be held soon, the loop looks at
// it every 10 ms, together with all other such accounts.
//
// The journal knows how to undo a write before the write happens. If somebody else writes a file,
// the written value becomes the original. The file is read right before each write of ours. A write
// by somebody else in the microseconds between the two is lost.
//
// Hold and pause. A container's freezer may also be its engine's (cgroup v1, or v2 alone). fanotify
// then reports each write by others to the freezer, in order. The last one who froze or thawed the
// container decides. The agent does not freeze or thaw a container that somebody else froze. It
// does not hold a container for one second after somebody else thawed it.
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

// DebtLimit is the default of Config.DebtLimit, in quotas: one minute of the container's quota at
// the usual period.
const DebtLimit = 600

// ErrClosed says that the controller is closed.
var ErrClosed = errors.New("the controller is closed")

// Config has what a controller needs.
type Config struct {
	Journal *journal.Journal
	Ledger  *ledger.Ledger
	Log     *slog.Logger
	// Burst lets debt-free containers save up to one quota of unused CPU time while other
	// containers' quotas are lowered. They use it to catch up after others' helpers used the CPU.
	// While a burst is set, the kernel rejects (EINVAL) a quota below it. Call LetGo before you
	// write a lower quota.
	Burst     bool
	DebtLimit int            // in quotas, above which debt is forgiven; 0: DebtLimit
	Gone      func(*Account) // called after the account's group was removed and the account has ended
}

// Controller enforces the debts of its accounts.
type Controller struct {
	cfg   Config
	clock clock
	ended chan struct{}

	watch watcher // nil: fanotify does not work; blind has the error
	blind error

	mu       sync.Mutex // guards the fields below, and the accounts except their charges
	accounts []*Account
	closed   bool
	lowered  lowered

	sleep  sync.Mutex // guards the fields below; taken after mu
	alarm  time.Duration
	roused []roused
}

// New starts a controller. End it with Close.
func New(cfg Config) (*Controller, error) {
	t, err := newTimer()
	if err != nil {
		return nil, fmt.Errorf("start charging: %w", err)
	}
	c := newController(cfg, t)
	if w, err := newWatch(c); err != nil {
		c.blind = err
		cfg.Log.Warn("containers that share a freezer with their engine are not held", "error", err)
	} else {
		c.watch = w
	}
	go c.run()
	return c, nil
}

// newController makes a controller without starting its loop.
func newController(cfg Config, clock clock) *Controller {
	if cfg.DebtLimit <= 0 {
		cfg.DebtLimit = DebtLimit
	}
	return &Controller{cfg: cfg, clock: clock, ended: make(chan struct{})}
}

// Add makes an account for the container of a group. The caller still owns the group. The account
// starts with the sums and the debt that the ledger has for this name and group.
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

// Remove ends an account. It thaws the container, restores its quota and burst, and forgets its
// debt. A second Remove does nothing.
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

// drop removes an account from the list, and tells whether it was there.
func (c *Controller) drop(a *Account) bool {
	i := slices.Index(c.accounts, a)
	if i < 0 {
		return false
	}
	c.accounts = slices.Delete(c.accounts, i, i+1)
	return true
}

// Close ends all accounts as Remove does, but keeps their debts in the ledger.
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

// kick makes the loop look at due accounts now. The caller holds mu.
func (c *Controller) kick() { c.wakeBy(0) }

// limitOf converts a limit for package balance.
func limitOf(l bandwidth.Limit) balance.Limit {
	return balance.Limit{Quota: l.Quota, Period: l.Period, Burst: l.Burst}
}

// isGone tells whether an error says that the group was removed.
func isGone(err error) bool {
	return errors.Is(err, bandwidth.ErrGone) || errors.Is(err, os.ErrClosed)
}
