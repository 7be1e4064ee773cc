package agent

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

// adopt takes over what an earlier daemon has made, and tells whether it is still
// there. Its calls wait until it is resumed. If a gate does not answer within patience, that is
// gate.ErrSilent, and all but takeOver is done.
func (m *managed) adopt(patience time.Duration) (bool, error) {
	m.group = cgroup.At(m.record.Cgroup)
	m.keepers = cgroup.At(filepath.Join(m.record.Cgroup, keepersGroup))
	if m.ownGroup {
		m.programs = cgroup.At(filepath.Join(m.record.Cgroup, programsGroup))
	}
	if m.record.PID != 0 {
		first, err := reopenProcess(m.record.PID, m.record.Started)
		if err != nil {
			m.log.Debug("the first program is gone", "pid", m.record.PID)
		}
		m.init.Store(first)
	}
	if err := m.restore(); err != nil {
		// Whatever the reason is: of what has no program, nothing is left to lose.
		return m.init.Load() != nil || m.group.Populated(), err
	}
	return m.takeOver(patience)
}

// takeOver becomes the supervisor of the container's gates.
func (m *managed) takeOver(patience time.Duration) (_ bool, err error) {
	if m.adopted, err = m.adoptGates(patience); err != nil {
		return true, err
	}
	if len(m.adopted) == 0 {
		return m.awaits(), nil
	}
	rules := m.table.Snapshot(m.netnsOf)
	for _, g := range m.adopted {
		if err := g.SetRules(rules); err != nil { // it asks, or has them when it goes on
			m.log.Warn("a gate has no rules", "err", err)
		}
	}
	if m.ownNS, err = netns.Open(fmt.Sprintf("/proc/self/fd/%d", m.adopted[0].Own().File().Fd())); err != nil {
		return true, err
	}
	for _, step := range []func() error{m.makeEngine, m.engineRecover, m.startRelay} {
		if err := step(); err != nil {
			return true, err
		}
	}
	return true, nil
}

// awaits tells whether a container without a gate still gets one: it was never
// attached, or who was just attaching it will ask again, as tsugiki run does. An
// OCI runtime does not: its program has lost its listener, and ends.
func (m *managed) awaits() bool {
	if first := m.init.Load(); m.record.PID != 0 && m.ownGroup && first != nil {
		_ = first.close() // it is opened again
		m.init.Store(nil)
		m.record.PID = 0
	}
	return m.record.PID == 0
}

// resume answers the calls of a container that was adopted.
func (m *managed) resume() {
	for _, g := range m.adopted {
		m.supervise(&supervised{gate: g, listener: g.TakeListener()})
	}
	m.adopted = nil
}

func (m *managed) engineRecover() error { return m.engine.Recover() }

// restore makes what create has made, out of the record and the kernel. The record is what was
// about to be in force: a daemon that was killed while it changed endpoints has perhaps not
// got that far, in the kernel nor at the gates.
func (m *managed) restore() error {
	var set endpoint.Set
	byName := map[string]*endpoint.Endpoint{}
	for _, line := range m.record.Endpoints {
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
	for _, name := range m.record.Numbered {
		numbered = append(numbered, byName[name])
	}
	m.endpoints.Store(&set)
	if err := m.openHost(); err != nil {
		return err
	}
	ingress, egress, err := m.rulesFor(&set)
	if err != nil {
		return err
	}
	if m.table, err = policy.Restore(ingress, egress, numbered); err != nil {
		return err
	}
	dir, err := m.keepers.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if m.enforced, err = enforcer.Adopt(dir, m.table, m.endpointNamed); err != nil {
		return err
	}
	if err := m.updateKernel(m.table); err != nil {
		return err
	}
	if err := m.claimPorts(); err != nil {
		return err
	}
	return m.openDoors()
}

// adoptGates connects to the gates that wait at their doors.
func (m *managed) adoptGates(patience time.Duration) ([]*gate.Gate, error) {
	entries, err := os.ReadDir(doorsOf(m.spec.RunDir, m.spec.Name))
	if err != nil {
		return nil, fmt.Errorf("find gates: %w", err)
	}
	var gates []*gate.Gate
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		door := fmt.Sprintf("/proc/self/fd/%d/%s", m.doors.Fd(), e.Name())
		g, err := adoptPatiently(door, patience)
		if errors.Is(err, gate.ErrGone) {
			if err := os.Remove(door); err != nil {
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
	// takenPatience is how long a helper that a killed daemon was about to start may hold
	// that one's files, and with them the gate.
	takenPatience = 5 * time.Second
	// adoptPatience is how long gates that do not answer may hold up the others when a daemon
	// starts, all together. Each has adoptLeast all the same.
	adoptPatience = 2 * time.Second
	adoptLeast    = 100 * time.Millisecond
	// lateAgain is after how long a gate that did not answer is tried again, for latePatience.
	lateAgain    = 500 * time.Millisecond
	latePatience = 10 * time.Second
)

func adoptPatiently(door string, patience time.Duration) (*gate.Gate, error) {
	for deadline := time.Now().Add(takenPatience); ; time.Sleep(5 * time.Millisecond) {
		g, err := gate.Adopt(door, patience)
		if !errors.Is(err, gate.ErrTaken) || time.Now().After(deadline) {
			return g, err
		}
	}
}

// adoptLate takes over a container with a gate that did not answer when the daemon started, once it
// does.
func (d *Daemon) adoptLate(m *managed) {
	for {
		again, lives, err := m.tryLate()
		switch {
		case !lives:
			d.end(m)
			return
		case err != nil && !again:
			d.log.Error("container not taken over; it runs on without an agent", "container", m.spec.Name, "err", err)
			return
		case err == nil:
			d.log.Info("container taken over", "container", m.spec.Name, "gates", m.gates.count())
			return
		}
		select {
		case <-time.After(lateAgain):
		case <-d.closing:
			return
		}
	}
}

func (m *managed) tryLate() (again, lives bool, err error) {
	m.changes.Lock()
	defer m.changes.Unlock()
	if m.closing {
		return false, true, os.ErrClosed
	}
	lives, err = m.takeOver(latePatience)
	if err != nil || !lives {
		for _, g := range m.adopted {
			err = errors.Join(err, g.Release())
		}
		m.adopted = nil
		return errors.Is(err, gate.ErrSilent), lives, err
	}
	m.late.Store(false)
	m.resume()
	m.refresh()
	return false, true, nil
}
