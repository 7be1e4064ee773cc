package accounts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/enforce"
	"github.com/tsugiki/tsugiki/charge/helper"
	"github.com/tsugiki/tsugiki/charge/ledger"
)

// Clock is a CPU clock: CPU time since any fixed moment.
type Clock = enforce.Clock

// Helper is a process or a cgroup that works for one container, or for many if it is shared.
type Helper struct {
	PID            int    // the process; or 0, and Group is set
	Group          string // the path of the helper's cgroup
	Container      string // the container's name, id or cgroup, as for Charge
	Source         string // empty: the name of the process or the cgroup
	Place, NoPlace bool   // Place: fail if it cannot be placed; NoPlace: do not place it
	Shared         bool
	divided        bool // it may work for several containers, and is attached to each
}

// Attached is a helper whose time is measured.
type Attached struct {
	Helper
	ID         int
	By, Reason string // api.ByPlace, ByQuota or ByMarks; why it was not placed
	Known      bool   // the helper was attached before this request
}

// helping is an attached helper with the objects that measure it.
type helping struct {
	Attached
	id         int
	account    *account // nil: shared
	process    *helper.Process
	group      *helper.Group
	placement  *helper.Placement
	share      *share // nil unless the helper is divided
	attachment *enforce.Attachment
	ended      atomic.Bool // the process has ended
}

// Container is a container that the agent itself runs.
type Container struct {
	Name, ID string
	PID      int    // of its first program
	Sockets  string // directory of the v2 cgroup that its host sockets belong to
	Sources  map[string]Clock
}

// Open opens the account of a container and measures its helpers. The account ends when the
// container's cgroup is removed.
func (a *Accounts) Open(c Container) error {
	g, err := groupOf(c.PID)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	acct, err := a.open(g, c.Name, c.ID)
	if err != nil {
		return err
	}
	acct.first = c.PID
	for source, clock := range c.Sources {
		acct.Attach(source, clock, false)
	}
	a.openNetwork(acct, c.PID, c.Sockets)
	return nil
}

// Attach measures a helper until the helper ends. It changes nothing if the helper is already
// attached to that container.
func (a *Accounts) Attach(h Helper) (Attached, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return Attached{}, os.ErrClosed
	}
	if h.Shared {
		return a.share(h)
	}
	acct, err := a.resolve(h.Container)
	if err != nil {
		return Attached{}, err
	}
	return a.attach(acct, h)
}

func (a *Accounts) attach(acct *account, h Helper) (Attached, error) {
	for _, known := range a.helpers {
		if known.account == acct && known.PID == h.PID && known.Group == h.Group && known.alive() {
			return known.again(), nil
		}
	}
	x := &helping{account: acct}
	var err error
	if h.PID != 0 {
		err = a.attachProcess(x, &h)
	} else {
		err = a.attachGroup(x, &h)
	}
	if err != nil {
		return Attached{}, err
	}
	a.keep(x, h)
	return x.Attached, nil
}

// again returns the answer for a helper that is attached already.
func (h *helping) again() Attached {
	attached := h.Attached
	attached.Known = true
	return attached
}

func (a *Accounts) keep(x *helping, h Helper) {
	a.lastID++
	x.id = a.lastID
	x.ID, x.Helper = x.id, h
	if x.account != nil {
		x.Container = x.account.names[0]
		x.account.by[h.Source] = x.By
	}
	a.helpers[x.id] = x
	if p := x.process; p != nil {
		go func() {
			p.Await() // Close of the process ends Await, too
			x.ended.Store(true)
		}()
	}
	a.log.Info("helper is charged", "helper", x.id, "container", x.Container, "pid", h.PID, "source", h.Source, "by", x.By, "reason", x.Reason)
}

// openProcess is helper.Open. Tests replace it with a function that fails.
var openProcess = helper.Open

func (a *Accounts) attachProcess(x *helping, h *Helper) (err error) {
	if x.process, err = openProcess(h.PID); err != nil {
		return isUnknown(err)
	}
	if inside, err := isInside(h.PID, x.account.group.Path()); err != nil || inside {
		if inside {
			err = fmt.Errorf("%w: process %d is in the container; its time is the container's own", ErrRequest, h.PID)
		}
		return errors.Join(err, x.process.Close())
	}
	if h.Source == "" {
		h.Source = sourceName(x.process.Name())
	}
	x.By = api.ByQuota
	var clock Clock = x.process
	switch {
	case h.divided:
		if x.share, err = a.join(x.account, x.process); err != nil {
			return errors.Join(isUnknown(err), x.process.Close())
		}
		clock = x.share
	case h.NoPlace:
	case a.counted[x.account.id] != "":
		x.Reason = a.counted[x.account.id]
	case !a.config.Placement && !h.Place:
		x.Reason = "the configuration has no placement"
	default:
		err = full(a.place(x))
		if err != nil && h.Place {
			if !errors.Is(err, ErrFull) {
				err = fmt.Errorf("%w: %w", ErrRequest, err)
			}
			return errors.Join(err, x.process.Close())
		} else if err != nil {
			x.Reason = err.Error()
		} else {
			x.By = api.ByPlace
		}
	}
	x.attachment = x.account.Attach(h.Source, clock, x.By == api.ByPlace)
	return nil
}

func (a *Accounts) attachGroup(x *helping, h *Helper) (err error) {
	if h.Place {
		return fmt.Errorf("%w: a cgroup cannot be placed, only a process", ErrRequest)
	}
	g, err := helper.OfGroup(h.Group)
	if errors.Is(err, bandwidth.ErrNotAGroup) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		return err
	}
	below := strings.HasPrefix(g.Path()+"/", x.account.group.Path()+"/")
	above := strings.HasPrefix(x.account.group.Path()+"/", g.Path()+"/")
	if below || above {
		return errors.Join(fmt.Errorf("%w: one of the cgroups is in the other", ErrRequest), g.Close())
	}
	if h.Source == "" {
		h.Source = sourceName(g.Name())
	}
	x.group = g
	x.By, x.Reason = api.ByQuota, "a cgroup is not moved"
	x.attachment = x.account.Attach(h.Source, x.group, false)
	return nil
}

// Detach stops measuring a helper, and moves a placed helper back to its own cgroup.
func (a *Accounts) Detach(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, err := strconv.Atoi(id)
	h := a.helpers[n]
	if err != nil || h == nil {
		return fmt.Errorf("%w: no helper %s; tsugiki charge show lists the helpers", ErrUnknown, id)
	}
	return a.detach(h)
}

// detach stops measuring a helper. The caller holds mu.
func (a *Accounts) detach(h *helping) error {
	delete(a.helpers, h.id)
	var errs []error
	if h.attachment != nil {
		h.attachment.Detach()
	}
	if h.share != nil {
		errs = append(errs, a.leave(h.account, h.share))
	}
	if h.placement != nil {
		errs = append(errs, h.placement.Undo())
	}
	if h.process != nil {
		errs = append(errs, h.process.Close())
	}
	if h.group != nil {
		errs = append(errs, h.group.Close())
	}
	if h.Shared {
		errs = append(errs, a.daemons.Unwatch(h.PID))
	}
	return errors.Join(errs...)
}

// reap detaches helpers that have ended, and measures those that were moved back. The caller holds
// mu.
func (a *Accounts) reap() {
	for _, h := range a.helpers {
		if h.alive() {
			a.measure(h)
			continue
		}
		if err := a.detach(h); err != nil {
			a.log.Error("forget helper that has ended", "helper", h.id, "err", err)
		}
	}
}

func (h *helping) alive() bool { return !h.ended.Load() }

// sourceName makes a source's name from the name of a process or a cgroup. The argument may have
// any bytes. The result has only characters that package api allows.
func sourceName(text string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r) {
			return r
		}
		return '-'
	}, text)
	if len(name) > api.ChargeSourceMax {
		name = name[:api.ChargeSourceMax]
	}
	if name == "" {
		name = "helper"
	}
	return name
}

// A source's name fits into the ledger.
var _ [ledger.SourceSize - api.ChargeSourceMax]struct{}
