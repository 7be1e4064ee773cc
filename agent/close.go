package agent

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/policy"
)

// Close takes the API away, kills what is left of the container and removes it.
// It may be called for one that is only half made.
func (c *Container) Close() error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.api != nil {
		note(c.api.close())
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	c.closing = true
	gates := c.gates.take()
	for _, s := range gates {
		s.supervisor.End()
	}
	note(c.closeKeepers())
	// Before gates are waited for: one that is stopped ends no other way.
	if c.group != nil {
		note(c.group.Kill())
	}
	note(each(gates, func(s *supervised) error {
		err := s.supervisor.Close()
		s.supervisor.Await()
		return err
	}))
	if c.engine != nil {
		note(c.engine.Close())
	}
	if c.enforced != nil {
		c.reportDenied()
	}
	removed := true
	if c.enforced != nil {
		c.enforced.End()
	}
	note(c.letGo())
	for _, g := range []*cgroup.Group{c.programs, c.keepers, c.group} {
		if g != nil {
			err := g.Remove()
			removed = removed && err == nil // else the next start tries again
			note(err)
		}
	}
	// Not before all are dead: a call that waits would fail with ENOSYS.
	note(each(gates, (*supervised).forget))
	if c.claim != nil && removed {
		note(c.claim.release())
	}
	return errors.Join(errs...)
}

// closeKeepers ends all at once: each may take its time.
func (c *Container) closeKeepers() error {
	list := c.places()
	if c.own != nil {
		list = append(list, c.own)
	}
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, p := range list {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = p.close()
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

// places are all of the host's side.
func (c *Container) places() []*place {
	return append(slices.Collect(maps.Values(c.host)), c.former...)
}

// letGo closes what is only this process's, once nobody uses it any more.
func (c *Container) letGo() error {
	c.retiring.Wait()
	var errs []error
	if c.relay != nil {
		errs = append(errs, c.relay.Close())
	}
	if c.enforced != nil {
		c.counting.Lock()
		c.uncounted = true
		errs = append(errs, c.enforced.Close())
		c.counting.Unlock()
	}
	for _, p := range c.places() {
		errs = append(errs, p.ns.Close())
	}
	if c.ownNS != nil {
		errs = append(errs, c.ownNS.Close())
	}
	if c.doors != nil {
		errs = append(errs, c.doors.Close())
	}
	return errors.Join(errs...)
}

// reportDenied says what the kernel refused, for the program itself may not.
func (c *Container) reportDenied() {
	d, err := c.enforced.Denied()
	if err == nil && d != (policy.Denied{}) {
		c.decisions.Info("refused by policy",
			"connect", d.Connect, "bind", d.Bind, "send", d.Send, "setsockopt", d.SetOption, "leave", d.Leave, "enter", d.Enter)
	}
}
