package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// MayPass tells whether a container can be taken over later after an error of Adopt.
func MayPass(err error) bool {
	return !errors.Is(err, gate.ErrProtocol) && !errors.Is(err, gate.ErrRefused) && !errors.Is(err, enforcer.ErrNotAdopted)
}

// Adopt takes over a container that an earlier process made and that Outlives it, and tells whether
// the container still lives. The container's calls wait until Resume. If a gate does not answer
// within patience, Adopt returns gate.ErrSilent. After this and other errors that may pass, the
// container is Late, and AdoptLate does the rest. If it is not Late, it can only be released, and a new
// Container may try it again.
func (c *Container) Adopt(s State, patience time.Duration) (lives bool, err error) {
	if lives, err = c.Restore(s); err != nil {
		return lives, err
	}
	lives, err = c.takeOver(patience)
	c.late.Store(lives && err != nil && MayPass(err))
	c.refresh()
	return lives, err
}

// Restore does the part of Adopt that waits for no helper. Without an error, the container is Late then.
func (c *Container) Restore(s State) (lives bool, err error) {
	c.state = s
	c.group = cgroup.At(s.Cgroup)
	c.keepers = cgroup.At(filepath.Join(s.Cgroup, keepersGroup))
	if c.spec.Programs {
		c.programs = cgroup.At(filepath.Join(s.Cgroup, programsGroup))
	}
	if s.PID != 0 {
		first, err := reopenProcess(s.PID, s.Started)
		if err != nil && !HasEnded(err) {
			return true, err
		}
		if err != nil {
			c.log.Debug("the first program is gone", "pid", s.PID)
		}
		c.first.Store(first)
	}
	if err := c.restore(); err != nil {
		// The reason does not matter: a container without a program has nothing to lose.
		return c.first.Load() != nil || c.group.Populated(), err
	}
	c.late.Store(true)
	c.refresh()
	return true, nil
}

// takeOver becomes the supervisor of the container's gates. On an error it undoes what it has done.
func (c *Container) takeOver(patience time.Duration) (lives bool, err error) {
	lives, err = c.tryTakeOver(patience)
	if err != nil {
		err = errors.Join(err, c.undoTakeOver())
	}
	return lives, err
}

func (c *Container) tryTakeOver(patience time.Duration) (_ bool, err error) {
	if c.adopted, err = c.adoptGates(patience); err != nil {
		return true, err
	}
	if len(c.adopted) == 0 {
		return c.awaits(), nil
	}
	rules := c.table.Snapshot(c.netnsOf)
	for _, g := range c.adopted {
		if err := g.SetRules(rules); err != nil { // if it is silent, it asks, or has them when it goes on
			c.log.Warn("a gate has no rules", "err", err)
		}
	}
	if c.ownNS, err = netns.Open(fmt.Sprintf("/proc/self/fd/%d", c.adopted[0].Own().File().Fd())); err != nil {
		return true, err
	}
	err = inOrder(c.makeEngine, c.engineRecover, c.reachLoopback, c.serveNames)
	if err == nil && c.translation != nil {
		err = c.endIdleKeeper() // it has made the sockets of the DNS proxy
	}
	return true, err
}

// undoTakeOver lets go of the gates, and of what tryTakeOver has made for them.
func (c *Container) undoTakeOver() error {
	var errs []error
	for _, g := range c.adopted {
		errs = append(errs, g.Release())
	}
	if c.own != nil {
		errs = append(errs, c.own.close()) // the relay's end may wait for it
	}
	c.setTracing(func(t *tracing) { t.possible = false })
	errs = append(errs, c.endWorkers())
	if c.ownNS != nil {
		errs = append(errs, c.ownNS.Close())
	}
	c.adopted, c.own, c.engine, c.relay, c.translation, c.ownNS = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// awaits tells whether a container without a gate still gets one: no program was ever attached, or
// the process that was just attaching one asks again, as tsugiki run does. An OCI runtime does not
// ask again: its program has lost its listener, and ends.
func (c *Container) awaits() bool {
	if first := c.first.Load(); c.state.PID != 0 && c.spec.Programs && first != nil {
		_ = first.Close() // it is opened again
		c.first.Store(nil)
		c.state.PID = 0
	}
	return c.state.PID == 0
}

// Awaits tells whether no program has entered the container.
func (c *Container) Awaits() bool {
	c.changes.Lock()
	defer c.changes.Unlock()
	return c.state.PID == 0
}

// Late tells whether the container is not taken over yet, and AdoptLate is to try it again.
func (c *Container) Late() bool { return c.late.Load() }

// Resume answers the calls of a container that was adopted.
func (c *Container) Resume() {
	for _, g := range c.adopted {
		c.supervise(&supervised{gate: g, listener: g.TakeListener()})
	}
	c.adopted = nil
}

func (c *Container) engineRecover() error { return c.engine.Recover() }

// restore rebuilds from the record and the kernel what create made. The record has what was about
// to be in force. If a daemon was killed while it changed endpoints, kernel and gates may still
// have the state before.
func (c *Container) restore() error {
	var set endpoint.Set
	byName := map[string]*endpoint.Endpoint{}
	for _, line := range c.state.Endpoints {
		ep, err := endpoint.Parse(line)
		if err == nil {
			err = set.Add(ep)
		}
		if err != nil {
			return err
		}
		byName[ep.Name] = ep
	}
	var numbered []*endpoint.Endpoint
	for _, name := range c.state.Numbered {
		numbered = append(numbered, byName[name])
	}
	c.endpoints.Store(&set)
	if err := c.openHost(); err != nil {
		return err
	}
	if err := c.restoreRules(&set); err != nil {
		return err
	}
	ingress, egress, names, err := c.given.Load().in(&set)
	if err != nil {
		return err
	}
	if c.table, err = policy.Restore(ingress, egress, numbered, names...); err != nil {
		return err
	}
	dir, err := c.keepers.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if c.enforced, err = enforcer.Adopt(dir, c.table, c.endpointNumbered); err != nil {
		return err
	}
	if err := c.updateKernel(c.table); err != nil {
		return err
	}
	if err := c.reserve(); err != nil {
		return err
	}
	return c.openAdoptSockets()
}

// restoreRules puts the rules of the State into the container, with the endpoints of a set.
func (c *Container) restoreRules(set *endpoint.Set) error {
	first := begin(&c.spec.Rules)
	var err error
	if c.began, err = policy.NewTable(first.ingress, first.egress, first.names...); err != nil {
		return err
	}
	g, err := restored(&c.state, &c.spec)
	if err != nil {
		return err
	}
	g.place(set)
	c.given.Store(g)
	return nil
}

// adoptGates connects to the gates that wait at their adoption sockets.
func (c *Container) adoptGates(patience time.Duration) ([]*gate.Gate, error) {
	entries, err := os.ReadDir(adoptSocketsOf(c.spec.RunDir, c.spec.Name))
	if err != nil {
		return nil, fmt.Errorf("find gates: %w", err)
	}
	var gates []*gate.Gate
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		socket := fmt.Sprintf("/proc/self/fd/%d/%s", c.adoptDir.Fd(), e.Name())
		g, err := adoptPatiently(socket, patience)
		if errors.Is(err, gate.ErrGone) {
			if err := os.Remove(socket); err != nil {
				return gates, err
			}
			continue
		}
		if err != nil {
			for _, g := range gates {
				err = errors.Join(err, g.Release())
			}
			return nil, err
		}
		gates = append(gates, g)
	}
	return gates, nil
}

const (
	// takenPatience is how long a helper that a killed daemon was about to start may hold the
	// daemon's files, and with them the gate.
	takenPatience = 5 * time.Second
	// latePatience limits the wait for a gate that did not answer before.
	latePatience = 10 * time.Second
)

func adoptPatiently(socket string, patience time.Duration) (*gate.Gate, error) {
	for deadline := time.Now().Add(takenPatience); ; time.Sleep(5 * time.Millisecond) {
		g, err := gate.Adopt(socket, patience)
		if !errors.Is(err, gate.ErrTaken) || time.Now().After(deadline) {
			return g, err
		}
	}
}

// AdoptLate takes over a container that is late, and tells whether to try again.
func (c *Container) AdoptLate() (again, lives bool, err error) {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing {
		return false, true, os.ErrClosed
	}
	lives, err = c.takeOver(latePatience)
	if err != nil || !lives {
		return MayPass(err), lives, err
	}
	c.late.Store(false)
	c.Resume()
	c.refresh()
	return false, true, nil
}
