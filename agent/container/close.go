package container

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// Close kills what is left of the container and removes it. The container may be only half made.
// removed says that nothing is left for which the State is needed.
func (c *Container) Close() (removed bool, err error) {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	c.changes.Lock()
	defer c.changes.Unlock()
	c.closing = true
	gates := c.gates.take()
	for _, s := range gates {
		s.supervisor.End()
	}
	note(c.closeKeepers())
	// This comes before the wait for gates: a stopped gate ends in no other way.
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
	c.setTracing(func(t *tracing) { t.possible = false })
	if c.enforced != nil {
		c.reportDenied()
	}
	removed = true
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
	// This comes after all programs are dead: a call that waits would fail with ENOSYS.
	note(each(gates, (*supervised).forget))
	if !c.spec.Outlives {
		enforcer.Settle() // nobody else does what is left then
	}
	return removed, errors.Join(errs...)
}

// ForgetKilled removes what is left of a container whose process was killed: its rows in the
// kernel's tables, and its cgroup. It needs root.
func ForgetKilled(group string) error {
	g := cgroup.At(group)
	if err := g.Kill(); err != nil {
		return err
	}
	if dir, err := cgroup.At(filepath.Join(group, keepersGroup)).Open(); err == nil {
		_ = enforcer.ForgetKilled(dir) // rows that remain go with their set; nobody finds them
		dir.Close()
	}
	return g.Remove()
}

// ForgetState removes what is left of a container that outlived its process, was not adopted, and
// has ended. It needs root.
func ForgetState(runDir, name string, s State) error {
	if err := ForgetKilled(s.Cgroup); err != nil {
		return err
	}
	return os.RemoveAll(adoptSocketsOf(runDir, name))
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

// places returns all places of the host's side.
func (c *Container) places() []*place {
	return append(slices.Collect(maps.Values(c.host)), c.former...)
}

// letGo closes the resources that only this process has, once nobody uses them any more.
func (c *Container) letGo() error {
	c.retiring.Wait()
	errs := []error{c.endWorkers()}
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
	if c.adoptDir != nil {
		errs = append(errs, c.adoptDir.Close())
	}
	return errors.Join(errs...)
}

// endWorkers ends the container's workers in this process, but for keepers and supervisors.
func (c *Container) endWorkers() error {
	var errs []error
	if c.engine != nil {
		c.engine.CloseRelays()
		c.engine.CloseOwn()
		errs = append(errs, c.engine.LetGo())
	}
	if c.relay != nil {
		errs = append(errs, c.relay.Close())
	}
	return errors.Join(append(errs, c.translation.close())...)
}

// reportDenied logs what the kernel refused, because the program itself may not report it.
func (c *Container) reportDenied() {
	d, err := c.enforced.Denied()
	if err == nil && d != (policy.Denied{}) {
		c.spec.Decisions.Info("refused by policy",
			"connect", d.Connect, "bind", d.Bind, "send", d.Send, "setsockopt", d.SetOption, "leave", d.Leave, "enter", d.Enter)
	}
}

// Release lets go of a container that goes on without us.
func (c *Container) Release() error {
	c.changes.Lock()
	defer c.changes.Unlock()
	c.closing = true
	var errs []error
	for _, g := range c.adopted {
		errs = append(errs, g.Release())
	}
	for _, s := range c.gates.take() {
		errs = append(errs, s.supervisor.Release(), s.forget())
	}
	errs = append(errs, c.closeKeepers())
	c.setTracing(func(t *tracing) { t.possible = false })
	if first := c.first.Load(); first != nil {
		errs = append(errs, first.Close())
	}
	return errors.Join(append(errs, c.letGo())...)
}

// Remove ends a container that outlives us, if it still runs, and removes all that belongs to it.
func (c *Container) Remove() error {
	c.changes.Lock()
	c.closing = true
	err := c.closeKeepers() // else the log would call them dead
	c.changes.Unlock()
	err = errors.Join(err, c.killAll())
	_, cerr := c.Close()
	err = errors.Join(err, cerr)
	if first := c.first.Load(); first != nil {
		err = errors.Join(err, first.Close())
	}
	if dir := adoptSocketsOf(c.spec.RunDir, c.spec.Name); err == nil {
		err = os.RemoveAll(dir)
	}
	return err
}

// killAll ends all programs of the container. If they are in a cgroup of ours, it kills the cgroup.
// Otherwise it kills the first program; if that is the first of a pid namespace, all end with it.
func (c *Container) killAll() error {
	switch {
	case !c.spec.Outlives:
		return c.group.Kill()
	case c.programs != nil:
		return c.programs.Kill()
	}
	return c.first.Load().Kill()
}
