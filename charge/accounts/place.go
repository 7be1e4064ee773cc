package accounts

import (
	"fmt"
	"slices"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/helper"
)

// place moves a helper into the cgroup of its container, so that the container's quota holds for
// both. When the container's first process ends, the helper is moved back: the runtime removes the
// cgroup then.
func (a *Accounts) place(x *helping) error {
	acct := x.account
	if acct.init != nil && acct.init.Ended() {
		_ = acct.init.Close()
		acct.init = nil
	}
	if acct.init == nil {
		first, err := firstOf(acct)
		if err != nil {
			return err
		}
		acct.init = first
	}
	var err error
	x.placement, err = helper.Place(a.journal, x.process, acct.init, acct.group)
	return err
}

// firstOf opens the container's first process. If it is not known, the process with the lowest pid
// in the cgroup is taken for it.
func firstOf(acct *account) (*helper.Process, error) {
	if first := known(acct); first != nil {
		return first, nil
	}
	pids, err := acct.group.Processes()
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("%w: nothing runs in %s", helper.ErrNotPlaceable, acct.group.Path())
	}
	return helper.Open(slices.Min(pids))
}

// known opens the process that whoever found the container named as its first one. It returns nil
// if that process has ended. Another process with its pid is hardly in the cgroup.
func known(acct *account) *helper.Process {
	if acct.first == 0 {
		return nil
	}
	p, err := helper.Open(acct.first)
	if err != nil {
		return nil
	}
	if inside, err := isInside(acct.first, acct.group.Path()); err != nil || !inside {
		_ = p.Close()
		return nil
	}
	return p
}

// measure takes a helper's time from the quota after the helper was moved back. The process that
// was taken for the container's first one has ended, and the container has not. The caller holds
// mu.
func (a *Accounts) measure(h *helping) {
	if h.placement == nil {
		return
	}
	select {
	case <-h.placement.Done():
	default:
		return
	}
	h.attachment.Detach()
	h.placement = nil
	h.By, h.Reason = api.ByQuota, "the container's first process has ended"
	h.account.by[h.Source] = h.By
	h.attachment = h.account.Attach(h.Source, h.process, false)
	a.log.Info("helper was moved back", "helper", h.id, "container", h.Container, "pid", h.PID, "by", h.By, "reason", h.Reason)
}
