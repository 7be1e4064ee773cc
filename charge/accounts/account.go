package accounts

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/enforce"
	"github.com/tsugiki/tsugiki/charge/helper"
	"github.com/tsugiki/tsugiki/charge/ledger"
	"github.com/tsugiki/tsugiki/charge/shared"
)

// shortID is the number of characters of an id that engines show.
const shortID = 12

// account is the CPU account of one cgroup.
type account struct {
	*enforce.Account
	group   *bandwidth.Group
	first   int                  // pid of the container's first process, as far as is known; or 0
	init    *helper.Process      // the container's first process; nil until place needs it
	owner   uint32               // the account's number in the kernel's meters
	names   []string             // its keys in byName; the first is shown
	id      string               // the engine's id of the container; or empty
	by      map[string]string    // how a source is charged, where not by quota
	network *network             // nil: receiving is not charged
	files   map[shared.File]bool // a daemon's work on these files is for the container
}

func (acct *account) close() error {
	var err error
	if acct.init != nil {
		err = acct.init.Close()
	}
	return errors.Join(err, acct.group.Close())
}

// limited tells whether the container has a quota. Without one nothing can be taken.
func (acct *account) limited() bool { return acct.Status().Before.Quota > 0 }

// resolve finds the account of a container by its name, its id or the beginning of its id. It also
// finds the account of a cgroup by its path, and opens one if there is none. The caller holds mu.
func (a *Accounts) resolve(name string) (*account, error) {
	if acct := a.byName[name]; acct != nil {
		return acct, nil
	}
	if isGroup(name) {
		g, err := openGroup(name)
		if err != nil {
			return nil, err
		}
		return a.open(g, name, "")
	}
	var found *account
	for full, acct := range a.byName {
		if len(name) >= shortID && strings.HasPrefix(full, name) && acct != found {
			if found != nil {
				return nil, fmt.Errorf("%w: %s is the beginning of several containers' ids", ErrRequest, name)
			}
			found = acct
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: no container %s; tsugiki charge show lists the known containers", ErrUnknown, name)
	}
	return found, nil
}

// open returns the account of a cgroup, and makes one if there is none. An account that exists gets
// the name as a further name. The account owns g afterwards. The caller holds mu.
func (a *Accounts) open(g *bandwidth.Group, name, id string) (*account, error) {
	if acct := a.byGroup[g.ID()]; acct != nil {
		a.name(acct, name, id)
		return acct, g.Close()
	}
	if a.closed {
		return nil, errors.Join(os.ErrClosed, g.Close())
	}
	if g.Root() {
		return nil, errors.Join(fmt.Errorf("%w: the root of the cpu hierarchy is no container's cgroup", ErrRequest), g.Close())
	}
	// The lock makes this process the only agent that charges the cgroup.
	err := g.Lock()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another agent charges %s", ErrRequest, g.Path())
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	acct := &account{group: g, by: map[string]string{}}
	if acct.Account, err = a.controller.Add(ledgerName(g.Path()), g); err != nil {
		return nil, errors.Join(full(err), acct.close())
	}
	a.lastSlot++
	acct.owner = a.lastSlot
	a.byGroup[g.ID()], a.byOwner[acct.owner] = acct, acct
	a.name(acct, name, id)
	return acct, nil
}

// ledgerName returns the key of a cgroup in the ledger: its path, or a hash of a path that is too
// long (for example of a node within a container).
func ledgerName(path string) string {
	if len(path) <= ledger.NameSize {
		return path
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:])
}

// name gives an account a further name. The first name stays first, unless it is a path or the id.
func (a *Accounts) name(acct *account, name, id string) {
	if id != "" && acct.id == "" {
		acct.id = id
		a.byName[id] = acct
		acct.OnlyCount(a.counted[id])
		acct.names = append(acct.names, id)
	}
	a.byName[name] = acct
	switch at := slices.Index(acct.names, name); {
	case at >= 0:
	case len(acct.names) > 0 && (isGroup(acct.names[0]) || acct.names[0] == acct.id) && !isGroup(name):
		acct.names = slices.Insert(acct.names, 0, name)
	default:
		acct.names = append(acct.names, name)
	}
}

// gone forgets the account of a cgroup that was removed.
func (a *Accounts) gone(ended *enforce.Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, acct := range a.byGroup {
		if acct.Account == ended {
			a.forget(acct)
			return
		}
	}
}

// forget removes an account that the controller has ended. The caller holds mu.
func (a *Accounts) forget(acct *account) {
	for _, h := range a.helpers {
		if h.account == acct {
			if err := a.detach(h); err != nil {
				a.log.Error("detach helper", "helper", h.id, "err", err)
			}
		}
	}
	delete(a.byGroup, acct.group.ID())
	delete(a.byOwner, acct.owner)
	for _, name := range acct.names {
		if a.byName[name] == acct {
			delete(a.byName, name)
		}
	}
	a.forgetNetwork(acct)
	a.forgetFiles(acct)
	if err := acct.close(); err != nil {
		a.log.Error("close account", "container", acct.names[0], "err", err)
	}
}
