package daemon

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/launch"
)

// # Containers of a daemon
//
// No part of them ends with the daemon. Their programs are children of others. Their gates go on
// and wait at their adoption sockets. The kernel programs are in their cgroup. Established connections are
// sockets. The rest, which is in the daemon's memory alone, is also in its record or in the kernel,
// or the next daemon makes it anew: the relay, and keepers, which hold nothing.

// managed is a container of the daemon. It implements Owner.
type managed struct {
	*container.Container
	identity // never changes
	d        *Daemon
	tracer   *tracer
	log      *slog.Logger
	// following serializes changes by grants. Its holder may wait for gates.
	following sync.Mutex
	again     bool // its engine has started it again while no daemon ran

	attachment // of a guest
}

func (d *Daemon) newManaged(id identity, given rules.Rules) *managed {
	m := &managed{identity: id, d: d, log: d.log.With("container", id.Name)}
	m.tracer = newTracer(func(on bool) { m.Trace(on) })
	spec := container.Spec{
		Name: id.Name, RunDir: d.runDir, LoopbackOnly: id.LoopbackOnly, Programs: id.Programs, Outlives: id.VSock == "",
		Mark:  "-" + id.Token[:8], // other daemons may have the same names
		Rules: given, Annotated: id.Annotated, Granted: d.grants != nil && id.Pod != nil, Ports: d.ports.Holder(id.Name), Log: d.log,
		Decisions: slog.New(m.tracer.handler(d.log.Handler())).With("container", id.Name),
	}
	if id.UID != 0 || id.GID != 0 {
		spec.User = &launch.User{UID: id.UID, GID: id.GID}
	}
	m.Container = container.New(spec, m)
	return m
}

// Reserve implements Owner.
func (m *managed) Reserve(list []ports.Reservation) error {
	return m.d.ports.Reserve(m.Name, list)
}

// Save implements Owner.
func (m *managed) Save(s container.State) error {
	return m.d.store.put(&record{m.identity, s})
}

// Pool implements Owner.
func (m *managed) Pool() (*gate.Pool, error) { return m.d.gatePool() }

// PodNetwork implements Owner.
func (m *managed) PodNetwork(uid string) (cookie uint64, known bool) { return m.d.podNetwork(uid) }

// Entered implements Owner.
func (m *managed) Entered() {
	m.charge()
	if m.Pod != nil {
		go m.d.admitPod(m.Pod.UID) // the caller has locked m, which may name its own pod
	}
}

// Ended implements Owner. If a container was started again more than once, listeners of ended
// programs come before the listener of its first program. awaitProgram waits for the latter.
func (m *managed) Ended() {
	select {
	case <-m.d.attached:
	default:
		return // endEarly looks at this container
	}
	if !m.again || m.Begun() {
		m.d.end(m)
	}
}

// endEarly ends the containers whose programs ended while the daemon attached the waiting programs.
func (d *Daemon) endEarly() {
	close(d.attached)
	for _, m := range d.all() {
		if m.Begun() && m.Over() {
			m.Ended()
		}
	}
}

// attach adds the filter of a program to the container. Many programs may be starting at once.
func (m *managed) attach(listener *os.File, pid int) error {
	m.d.memory.setBusyGC()
	defer m.d.memory.giveBackLater()
	return m.Attach(listener, pid)
}

// release lets go of the container, which goes on without a daemon.
func (m *managed) release() error {
	defer m.tracer.close()
	if m.isGuest() {
		m.endMachine(true)
		return m.Remove() // the next daemon has its record
	}
	return m.Release()
}

// remove ends the container, if it still runs, and removes all that belongs to it.
func (m *managed) remove() error {
	defer m.tracer.close()
	m.endMachine(false)
	return m.Remove()
}

// show describes the container.
func (m *managed) show() api.Container {
	s := m.Show()
	c := api.Container{
		ID: m.ID, Name: m.Name, State: stateCreated, PID: s.PID, Mode: m.Mode,
		Created: m.Created.Format(time.RFC3339), Ports: s.Ports, Egress: s.Egress,
		Pod: m.Pod,
	}
	if m.isGuest() {
		c.Mode, c.PID = api.ModeGuest, int(m.vmm.Load())
	}
	if c.PID != 0 || m.isGuest() && m.guestState().Open > 0 {
		c.State = stateRunning
	}
	return c
}
