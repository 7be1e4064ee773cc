package accounts

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/discover"
)

// scan follows what containers there are and who works for them.
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
		a.complain("containers are not looked for", err)
		return
	}
	for _, c := range changes.Ended {
		delete(a.missed, c.ID)
		if acct := a.byName[c.ID]; acct != nil {
			a.setFiles(acct, nil) // its cgroup may outlive it, its files do not
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

// followMissed follows what was found and is not followed yet. With mu held.
func (a *Accounts) followMissed() {
	for id, c := range a.missed {
		if a.follow(c) {
			delete(a.missed, id)
		}
	}
}

// Missed is how many containers were found and cannot be charged. Each scan tries again.
func (a *Accounts) Missed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.missed)
}

// follow has an account for a container, and measures who works for it. It tells
// whether that is done: another agent may charge the container, which may just have
// been killed.
func (a *Accounts) follow(c discover.Container) bool {
	g, err := groupOf(c.Init.PID)
	if err != nil {
		return true // it has just ended
	}
	// It may have no cgroup of its own.
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
	for _, h := range c.Helpers {
		// Shims are not moved: they start what removes the cgroup. One may come to
		// serve more containers than it does now.
		alone := h.Kind == discover.Logger
		_, err := a.attach(acct, Helper{PID: h.PID, Source: string(h.Kind), NoPlace: !alone, divided: !alone})
		if err != nil && !errors.Is(err, ErrUnknown) {
			a.complain("a helper is not charged", err)
		}
	}
	a.setFiles(acct, c.Files)
	a.openNetwork(acct, c.Init.PID, "")
	return true
}

// groupOf opens the cpu cgroup of a process.
func groupOf(pid int) (*bandwidth.Group, error) {
	g, err := bandwidth.OfProcess(pid)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return g, err
}

// isInside tells whether a process is in a cgroup or below it, helpers apart.
func isInside(pid int, group string) (bool, error) {
	g, err := groupOf(pid)
	if err != nil {
		return false, err
	}
	rest, below := strings.CutPrefix(g.Path()+"/", group+"/")
	return below && !strings.HasPrefix(rest, bandwidth.HelperGroup+"/"), g.Close()
}

// complainEvery is how often a fault that stays is logged.
const complainEvery = 10 * time.Minute

// complain logs a fault, which may be found at every look.
func (a *Accounts) complain(what string, err error) {
	now, text := time.Now(), what+err.Error()
	maps.DeleteFunc(a.faults, func(_ string, at time.Time) bool { return now.Sub(at) > complainEvery })
	if _, logged := a.faults[text]; !logged {
		a.faults[text] = now
		a.log.Warn(what, "err", err)
	}
}
