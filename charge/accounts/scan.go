package accounts

import (
	"errors"
	"fmt"
	"os"
	"strings"

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
		if acct := a.byName[c.ID]; acct != nil {
			a.setFiles(acct, nil) // its cgroup may outlive it, its files do not
		}
	}
	for _, c := range changes.Started {
		a.follow(c)
	}
	for _, c := range changes.Changed {
		a.follow(c)
	}
	if len(a.config.Shared) > 0 {
		a.shareKnown()
	}
}

// follow has an account for a container, and measures who works for it.
func (a *Accounts) follow(c discover.Container) {
	g, err := groupOf(c.Init.PID)
	if err != nil {
		return // it has just ended
	}
	if g.Root() {
		_ = g.Close() // it has no cgroup of its own
		return
	}
	if a.config.Within != "" && !g.Within(a.config.Within) {
		_ = g.Close()
		return
	}
	acct, err := a.open(g, c.ID, c.ID)
	if err != nil {
		if !errors.Is(err, ErrUnknown) {
			a.complain("a container is not charged", err)
		}
		return
	}
	for _, h := range c.Helpers {
		// Only of one container's alone is known for whom it works. Shims are not
		// moved: they start what removes the cgroup.
		if len(h.Containers) != 1 {
			continue
		}
		_, err := a.attach(acct, Helper{PID: h.PID, Source: string(h.Kind), NoPlace: h.Kind != discover.Logger})
		if err != nil && !errors.Is(err, ErrUnknown) {
			a.complain("a helper is not charged", err)
		}
	}
	a.setFiles(acct, c.Files)
	a.openNetwork(acct, c.Init.PID, "")
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

// complain logs a fault once, until there is another one.
func (a *Accounts) complain(what string, err error) {
	if text := what + err.Error(); text != a.fault {
		a.fault = text
		a.log.Warn(what, "err", err)
	}
}
