// Package accounts has the CPU accounts of a node's containers. It finds out which process works
// for which container, has its CPU time measured, and has that time taken from the container's
// quota.
//
// It assembles the packages beside it. Package discover finds containers and their helpers.
// Packages helper, shared and softirq measure. Package enforce takes the time, and with package
// journal undoes the changes if the agent is killed. This package only decides which account a
// piece of time belongs to. A cgroup has one account, no matter how many names its container has.
// One agent per machine charges a cgroup.
//
// The package needs root and Linux 5.15. If the kernel lacks a feature, the package logs it and
// works without it.
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
	// scanEvery is the time between two scans for containers and helpers.
	scanEvery = time.Second
	// takeEvery is the time between two readings of the kernel's meters.
	takeEvery = 20 * time.Millisecond
)

var (
	// ErrUnknown says that a container, cgroup, process or helper does not exist.
	ErrUnknown = errors.New("unknown")
	// ErrRequest says that the request cannot be carried out.
	ErrRequest = errors.New("cannot be charged")
	// ErrFull says that a file of a fixed size has no free entry.
	ErrFull = errors.New("no room")
)

// full adds a remedy to an error of a full ledger or journal. It returns other errors unchanged.
func full(err error) error {
	switch {
	case errors.Is(err, ledger.ErrFull):
		return fmt.Errorf("%w: all %d accounts of the ledger are in use; remove cgroups that nobody needs, or restart the agent, which forgets those that nobody charges", ErrFull, ledger.Capacity)
	case errors.Is(err, journal.ErrFull):
		return fmt.Errorf("%w: all %d entries of the undo journal are in use; detach helpers that nobody needs, or attach this one by quota", ErrFull, journal.Capacity)
	}
	return err
}

// Config says which work is charged, and names the files for it.
type Config struct {
	Journal, Ledger string // paths of files
	UndoHelper      string // path of its program; empty: looked for in the usual places
	Placement       bool   // helpers are moved under their container's quota where possible
	Burst           bool
	Discovery       bool
	Within          string // only containers below this path of the cpu hierarchy are found; empty: all
	Softirq         bool
	Shared          []string // command names of daemons that work for many containers
	Log             *slog.Logger
}

// Accounts has the accounts of all containers. Several goroutines may call its methods.
type Accounts struct {
	config     Config
	log        *slog.Logger
	journal    *journal.Journal
	ledger     *ledger.Ledger
	controller *enforce.Controller

	scanner *discover.Scanner             // nil: discovery is off
	missed  map[string]discover.Container // found, but not followed yet
	stop    chan struct{}
	loops   sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	closed    bool
	byGroup   map[uint64]*account // by inode of the cgroup
	byOwner   map[uint32]*account
	byName    map[string]*account
	counted   map[string]string // containers that are only counted: why, by the engine's id
	helpers   map[int]*helping
	divisions map[int]*division // by pid
	daemons   *shared.Meter     // nil until a daemon is shared
	softirq   *softirq.Meter    // nil: receiving is not charged
	metering  bool
	faults    map[string]time.Time // when each fault was last logged
	lastID    int
	lastSlot  uint32
}

// Start undoes what a killed agent left behind, and begins to charge.
func Start(c Config) (*Accounts, error) {
	a := &Accounts{
		config: c, log: c.Log, stop: make(chan struct{}),
		byGroup: map[uint64]*account{}, byOwner: map[uint32]*account{}, byName: map[string]*account{}, counted: map[string]string{}, helpers: map[int]*helping{},
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
		a.log.Warn("quotas and freezers that a killed agent left behind are restored", "count", restored)
	}
	if a.ledger, err = ledger.Open(a.config.Ledger); err != nil {
		return err
	}
	if aside := a.ledger.Aside(); aside != "" {
		a.log.Warn("a new ledger is begun; the old file is moved aside", "aside", aside)
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

// every calls do after each pause until Close.
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

// meter starts the loop that reads the kernel's meters, if it does not run yet. The caller holds
// mu.
func (a *Accounts) meter() {
	if !a.metering {
		a.metering = true
		a.every(takeEvery, a.take)
	}
}

// Close restores all quotas, and moves helpers back to their own cgroups. The ledger keeps the
// debts for the next agent. A second Close does nothing.
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
	clear(a.byGroup) // a later gone then finds nothing
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

// Charge is one charge: Time that Source used for Container.
type Charge struct {
	Container, Source string
	Time              time.Duration
}

// UnknownError lists the containers of several charges that do not exist or cannot be charged.
type UnknownError struct {
	Containers []string
	refused    error // why one of them cannot be charged; nil: all do not exist
}

func (e *UnknownError) Error() string {
	if e.refused != nil {
		return fmt.Sprintf("cannot charge %s: %v", strings.Join(e.Containers, ", "), e.refused)
	}
	return fmt.Sprintf("no such container: %s; tsugiki charge show lists the known containers", strings.Join(e.Containers, ", "))
}

func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Charge charges containers. If the error is an UnknownError, no container was charged. The caller
// then repeats the charges without the listed containers: one of them does not prevent the others.
func (a *Accounts) Charge(charges []Charge) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	charged := make([]*account, len(charges))
	var unknown UnknownError
	for i, c := range charges {
		acct, err := a.resolve(c.Container)
		if errors.Is(err, ErrUnknown) {
			unknown.Containers = append(unknown.Containers, c.Container)
		} else if errors.Is(err, ErrRequest) && len(charges) > 1 {
			a.complain("a charge is refused", err)
			unknown.Containers, unknown.refused = append(unknown.Containers, c.Container), err
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

// OnlyCount has nothing be taken from a container for a reason, also if its account is opened later.
// The container is given by the engine's id. With no reason, time is taken from it again: the caller
// does that for each container that has gone.
func (a *Accounts) OnlyCount(id, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if reason == "" {
		delete(a.counted, id)
	} else {
		a.counted[id] = reason
	}
	for _, acct := range a.byGroup {
		if acct.id == id {
			acct.OnlyCount(reason)
		}
	}
}

// LetGo thaws a held container, and does not hold it for the time d.
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

// take charges the time that the kernel's meters have counted.
func (a *Accounts) take() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.takeShared()
	a.takeSoftirq()
}

// isGroup tells whether a name is the path of a cgroup. Names of containers do not start with a
// slash.
func isGroup(name string) bool { return name != "" && name[0] == '/' }

func openGroup(path string) (*bandwidth.Group, error) {
	g, err := bandwidth.Open(path)
	if errors.Is(err, bandwidth.ErrNotAGroup) {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return g, err
}
