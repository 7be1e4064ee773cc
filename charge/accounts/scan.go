package accounts

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/discover"
)

// scan brings the accounts up to date with the node's containers and their helpers.
func (a *Accounts) scan() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reap()
	for _, acct := range a.byGroup {
		a.findInterfaces(acct)
	}
	if a.scanner == nil {
		return
	}
	changes, err := a.scanner.Scan()
	if err != nil {
		a.complain("cannot look for containers", err)
		return
	}
	for _, c := range changes.Ended {
		delete(a.missed, c.ID)
		if acct := a.byName[c.ID]; acct != nil {
			a.setFiles(acct, nil) // the cgroup may outlive the container, its files do not
		}
	}
	for _, c := range slices.Concat(changes.Started, changes.Changed) {
		a.missed[c.ID] = c
	}
	a.followMissed()
	if len(a.config.Shared) > 0 {
		a.shareKnown()
	}
}

// followMissed tries again to follow the containers in missed. The caller holds mu.
func (a *Accounts) followMissed() {
	for id, c := range a.missed {
		if a.follow(c) {
			delete(a.missed, id)
		}
	}
}

// Missed returns the number of containers that were found and cannot be charged yet. Each scan
// tries again.
func (a *Accounts) Missed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.missed)
}

// follow opens an account for a container, and attaches its helpers. It returns false if a later
// scan must try again: another agent, which may just have been killed, still holds the lock, or the
// agent has too many open files.
func (a *Accounts) follow(c discover.Container) bool {
	g, err := groupOf(c.Init.PID)
	if lasting(err) {
		return true // the container has just ended, or has no cgroup with a cpu controller
	}
	if err != nil {
		a.complain("a container is not charged", err)
		return false
	}
	// The container may have no cgroup of its own.
	if g.Root() || a.config.Within != "" && !g.Within(a.config.Within) {
		_ = g.Close()
		return true
	}
	acct, err := a.open(g, c.ID, c.ID)
	if errors.Is(err, ErrUnknown) {
		return true
	}
	if err != nil {
		a.complain("a container is not charged", err)
		return false
	}
	acct.first = c.Init.PID
	all := true
	for _, h := range c.Helpers {
		// A shim is not placed: it starts the process that removes the cgroup. It may also serve
		// more containers later.
		alone := h.Kind == discover.Logger
		_, err := a.attach(acct, Helper{PID: h.PID, Source: string(h.Kind), NoPlace: !alone, divided: !alone})
		if err != nil && !errors.Is(err, ErrUnknown) {
			a.complain("a helper is not charged", err)
			all = all && lasting(err)
		}
	}
	a.setFiles(acct, c.Files)
	a.openNetwork(acct, c.Init.PID, "")
	return all
}

// lasting tells whether the same attempt would fail in the same way at the next scan.
func lasting(err error) bool {
	return errors.Is(err, ErrUnknown) || errors.Is(err, ErrRequest) || errors.Is(err, bandwidth.ErrNotAGroup)
}

// groupOf opens the cpu cgroup of a process.
func groupOf(pid int) (*bandwidth.Group, error) {
	g, err := bandwidth.OfProcess(pid)
	return g, isUnknown(err)
}

// isInside tells whether a process is in a cgroup or below it. The cgroup of placed helpers does
// not count.
func isInside(pid int, group string) (bool, error) {
	path, err := bandwidth.PathOfProcess(pid)
	if err != nil {
		return false, isUnknown(err)
	}
	rest, below := strings.CutPrefix(path+"/", group+"/")
	return below && !strings.HasPrefix(rest, bandwidth.HelperGroup+"/"), nil
}

// isUnknown adds ErrUnknown to the error about a process that has ended.
func isUnknown(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// complainEvery is the time after which a lasting fault is logged again.
const complainEvery = 10 * time.Minute

// complain logs a fault, at most once in complainEvery. Every scan may find the same fault.
func (a *Accounts) complain(what string, err error) {
	now, text := time.Now(), what+err.Error()
	maps.DeleteFunc(a.faults, func(_ string, at time.Time) bool { return now.Sub(at) > complainEvery })
	if _, logged := a.faults[text]; !logged {
		a.faults[text] = now
		a.log.Warn(what, "err", err)
	}
}
