package accounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/discover"
	"github.com/tsugiki/tsugiki/charge/helper"
	"github.com/tsugiki/tsugiki/charge/shared"
)

// share starts to divide the time of a daemon that works for many containers. The caller holds mu.
func (a *Accounts) share(h Helper) (Attached, error) {
	for _, known := range a.helpers {
		if known.Shared && known.PID == h.PID && known.alive() {
			return known.again(), nil
		}
	}
	p, err := helper.Open(h.PID)
	if err != nil {
		return Attached{}, isUnknown(err)
	}
	if err := a.watch(h.PID); err != nil {
		return Attached{}, errors.Join(err, p.Close())
	}
	if h.Source == "" {
		h.Source = sourceName(p.Name())
	}
	x := &helping{process: p}
	x.By = api.ByMarks
	a.keep(x, h)
	return x.Attached, nil
}

func (a *Accounts) watch(pid int) error {
	if a.daemons == nil {
		var err error
		if a.daemons, err = shared.New(); err != nil {
			a.daemons = nil
			return err
		}
		for _, acct := range a.byGroup {
			a.ownFiles(acct)
		}
		a.meter()
	}
	if a.scanner != nil {
		a.scanner.Daemon(pid)
	}
	return a.daemons.Watch(pid)
}

// shareKnown divides the time of the daemons that the configuration names. It starts when a daemon
// works for a container with a quota. The caller holds mu.
func (a *Accounts) shareKnown() {
	daemons := a.scanner.Daemons()
	for _, c := range a.scanner.Containers() {
		acct := a.byName[c.ID]
		if acct == nil || !acct.limited() {
			continue
		}
		for _, f := range c.Files {
			if !slices.Contains(a.config.Shared, daemons[f.Daemon.PID]) {
				continue
			}
			if _, err := a.share(Helper{PID: f.Daemon.PID, Shared: true}); err != nil && !errors.Is(err, ErrUnknown) {
				a.complain("the time of a daemon is not divided", err)
			}
		}
	}
}

// setFiles sets the files that daemons read and write for a container. The caller holds mu.
func (a *Accounts) setFiles(acct *account, files []discover.File) {
	next := map[shared.File]bool{}
	for _, f := range files {
		next[identify(f)] = true
		// A file that is created later in the container's directory is for the container, too.
		if f.Directory {
			if known, err := shared.Identify(fmt.Sprintf("/proc/%d/root%s", f.Daemon.PID, filepath.Dir(f.Path))); err == nil {
				next[known] = true
			}
		}
	}
	for f := range acct.files {
		if !next[f] {
			a.disown(f, acct.owner)
		}
	}
	acct.files = next
	a.ownFiles(acct)
}

// identify returns the kernel's own numbers of a file. On btrfs and overlayfs stat(2) returns
// others.
func identify(f discover.File) shared.File {
	if f.Daemon.PID != 0 {
		if known, err := shared.Identify(fmt.Sprintf("/proc/%d/root%s", f.Daemon.PID, f.Path)); err == nil {
			return known
		}
	}
	return shared.File{Dev: f.Device, Ino: f.Inode}
}

func (a *Accounts) ownFiles(acct *account) {
	if a.daemons == nil {
		return
	}
	for f := range acct.files {
		if err := a.daemons.Own(f, acct.owner); err != nil {
			a.complain("work on a file is not charged", err)
		}
	}
}

func (a *Accounts) disown(f shared.File, owner uint32) {
	if a.daemons == nil {
		return
	}
	if err := a.daemons.Disown(f, owner); err != nil {
		a.complain("work on a file is still charged to the container that had it", err)
	}
}

func (a *Accounts) forgetFiles(acct *account) { a.setFiles(acct, nil) }

// takeShared charges the CPU time of shared daemons. The caller holds mu.
func (a *Accounts) takeShared() {
	if a.daemons == nil {
		return
	}
	spent, err := a.daemons.Take()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.complain("the time of a daemon is not divided", err)
	}
	for owner, d := range spent {
		if acct := a.byOwner[owner]; acct != nil {
			acct.Charge(sourceShared, d)
			acct.by[sourceShared] = api.ByMarks
		}
	}
}

// sourceShared is the source under which the time of shared daemons is charged.
const sourceShared = "shared"
