// Package accounts has the CPU accounts of a node's containers: it finds out who
// works for whom, has that measured, and has it taken from the right quotas.
//
// It assembles the packages beside it: discover finds containers and their helpers,
// helper, shared and softirq measure, enforce takes. What is taken, and what has to be
// undone should the agent be killed, is theirs to know; this package decides only
// whose account something belongs to. A cgroup has one account, whatever names its
// container has, and on one machine one agent that charges it.
//
// It needs root and Linux 5.15. What the kernel lacks is left out, and said so.
package accounts

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/discover"
	"github.com/tsugiki/tsugiki/charge/enforce"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/ledger"
	"github.com/tsugiki/tsugiki/charge/shared"
	"github.com/tsugiki/tsugiki/charge/softirq"
)

const (
	// scanEvery is how often containers and helpers are looked for.
	scanEvery = time.Second
	// takeEvery is how often what meters of the kernel have counted is charged.
	takeEvery = 20 * time.Millisecond
)

var (
	// ErrUnknown says that there is no such container, cgroup, process or helper.
	ErrUnknown = errors.New("unknown")
	// ErrRequest says that what was asked for makes no sense.
	ErrRequest = errors.New("cannot be charged")
	// ErrFull says that there is no room for one more in a file of a fixed size.
	ErrFull = errors.New("no room")
)

// full says what to do about a file that is full, if that is what has gone wrong.
func full(err error) error {
	switch {
	case errors.Is(err, ledger.ErrFull):
		return fmt.Errorf("%w: all %d accounts of the ledger are in use; remove cgroups that nobody needs, or restart the agent, which forgets those that nobody charges", ErrFull, ledger.Capacity)
	case errors.Is(err, journal.ErrFull):
		return fmt.Errorf("%w: all %d entries of the undo journal are in use; detach helpers that nobody needs, or attach this one by quota", ErrFull, journal.Capacity)
	}
	return err
}

// Config says what is charged, and where that is kept.
type Config struct {
	Journal, Ledger string // files
	UndoHelper      string // its program; empty looks for it in the usual places
	Placement       bool   // helpers are moved under quotas where that can be done
	Burst           bool
	Discovery       bool
	Within          string // where containers are looked for: a path in the cpu hierarchy; empty is all of it
	Softirq         bool
	Shared          []string // command names of daemons that work for many containers
	Log             *slog.Logger
}

// Accounts are those of all containers. Its methods may be called by several
// goroutines.
type Accounts struct {
	config     Config
	log        *slog.Logger
	journal    *journal.Journal
	ledger     *ledger.Ledger
	controller *enforce.Controller

	scanner *discover.Scanner             // nil: nothing is looked for
	missed  map[string]discover.Container // found, and not followed yet
	stop    chan struct{}
	loops   sync.WaitGroup

	mu        sync.Mutex // guards what follows
	closed    bool
	byGroup   map[uint64]*account // by inode of the cgroup
	byOwner   map[uint32]*account
	byName    map[string]*account
	helpers   map[int]*helping
	divisions map[int]*division // by pid
	daemons   *shared.Meter     // nil until a daemon is shared
	softirq   *softirq.Meter    // nil: not charged
	metering  bool
	faults    map[string]time.Time // when each was logged last
	lastID    int
	lastSlot  uint32
}

// Start restores what a killed agent left, and begins to charge.
func Start(c Config) (*Accounts, error) {
	a := &Accounts{
		config: c, log: c.Log, stop: make(chan struct{}),
		byGroup: map[uint64]*account{}, byOwner: map[uint32]*account{}, byName: map[string]*account{}, helpers: map[int]*helping{},
		divisions: map[int]*division{}, faults: map[string]time.Time{},
	}
	if err := a.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("charge: %w", err), a.Close())
	}
	return a, nil
}

func (a *Accounts) start() (err error) {
	if a.journal, err = journal.Open(a.config.Journal); err != nil {
		return err
	}
	a.journal.UndoHelper = a.config.UndoHelper
	restored, err := a.journal.Restore(a.log)
	if err != nil {
		return err
	}
	if restored > 0 {
		a.log.Warn("quotas and freezers of a killed agent are restored", "count", restored)
	}
	if a.ledger, err = ledger.Open(a.config.Ledger); err != nil {
		return err
	}
	if aside := a.ledger.Aside(); aside != "" {
		a.log.Warn("the ledger begins anew", "aside", aside)
	}
	if err := a.journal.Guard(a.log); err != nil {
		return err
	}
	a.controller, err = enforce.New(enforce.Config{
		Journal: a.journal, Ledger: a.ledger, Log: a.log, Burst: a.config.Burst, Gone: func(ended *enforce.Account) { go a.gone(ended) },
	})
	if err != nil {
		return err
	}
	if a.config.Softirq {
		if a.softirq, err = softirq.New(); err != nil {
			a.log.Warn("the receiving of packets is not charged", "err", err)
		}
	}
	if a.config.Discovery {
		a.scanner, a.missed = discover.New(), map[string]discover.Container{}
	}
	a.every(scanEvery, a.scan)
	if a.softirq != nil {
		a.meter()
	}
	return nil
}

// every does something again and again until Close.
func (a *Accounts) every(pause time.Duration, do func()) {
	a.loops.Add(1)
	go func() {
		defer a.loops.Done()
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for {
			select {
			case <-a.stop:
				return
			case <-ticker.C:
				do()
			}
		}
	}()
}

// meter begins to charge what meters of the kernel count, if it has not. With mu held.
func (a *Accounts) meter() {
	if !a.metering {
		a.metering = true
		a.every(takeEvery, a.take)
	}
}

// Close restores all quotas, and where helpers were. What containers owe is kept for
// the next agent. Again, it does nothing.
func (a *Accounts) Close() error {
	a.mu.Lock()
	closed := a.closed
	a.closed = true
	a.mu.Unlock()
	if closed {
		return nil
	}
	close(a.stop)
	a.loops.Wait()
	var errs []error
	a.mu.Lock()
	for _, h := range a.helpers {
		errs = append(errs, a.detach(h))
	}
	a.mu.Unlock()
	if a.controller != nil {
		errs = append(errs, a.controller.Close()) // may call gone
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, acct := range a.byGroup {
		errs = append(errs, acct.close())
	}
	clear(a.byGroup) // for a late gone
	if a.daemons != nil {
		errs = append(errs, a.daemons.Close())
	}
	if a.softirq != nil {
		errs = append(errs, a.softirq.Close())
	}
	if a.ledger != nil {
		errs = append(errs, a.ledger.Close())
	}
	if a.journal != nil {
		errs = append(errs, a.journal.Close())
	}
	return errors.Join(errs...)
}

// Charge charges accounts; all of them, or none if one is unknown.
type Charge struct {
	Container, Source string
	Time              time.Duration
}

// UnknownError says which containers there are not.
type UnknownError struct{ Containers []string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("no such container: %s; tsugiki charge show lists those that are known", strings.Join(e.Containers, ", "))
}

func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Charge charges containers: all of them, or none if the error is an UnknownError.
func (a *Accounts) Charge(charges []Charge) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	charged := make([]*account, len(charges))
	var unknown UnknownError
	for i, c := range charges {
		acct, err := a.resolve(c.Container)
		if errors.Is(err, ErrUnknown) {
			unknown.Containers = append(unknown.Containers, c.Container)
		} else if err != nil {
			return err
		}
		charged[i] = acct
	}
	if len(unknown.Containers) > 0 {
		return &unknown
	}
	for i, c := range charges {
		charged[i].Charge(c.Source, c.Time)
	}
	return nil
}

// LetGo thaws a container that is held, and does not hold it for a while.
func (a *Accounts) LetGo(container string, d time.Duration) error {
	a.mu.Lock()
	acct, err := a.resolve(container)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	acct.LetGo(d)
	return nil
}

// take charges what meters of the kernel have counted.
func (a *Accounts) take() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.takeShared()
	a.takeSoftirq()
}

// isGroup tells a path of a cgroup from the name of a container.
func isGroup(name string) bool { return name != "" && name[0] == '/' }

func openGroup(path string) (*bandwidth.Group, error) {
	g, err := bandwidth.Open(path)
	if errors.Is(err, bandwidth.ErrNotAGroup) {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return g, err
}
