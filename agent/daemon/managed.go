package daemon

import (
	"log/slog"
	"os"
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
// Nothing of them ends with the daemon. Their programs are somebody else's
// children; their gates go on and wait at their adoption sockets; the
// kernel programs are in their cgroup; established connections are sockets. All that is only in the
// daemon's memory is in its record, or in the kernel, or made anew: keepers, which
// hold nothing, and the relay.

// managed is a container of the daemon. It implements Owner.
type managed struct {
	*container.Container
	identity // never changes
	d        *Daemon
	tracer   *tracer
	log      *slog.Logger
	again    bool // its engine has started it again while there was no daemon
}

func (d *Daemon) newManaged(id identity, given rules.Rules) *managed {
	m := &managed{identity: id, d: d, log: d.log.With("container", id.Name)}
	m.tracer = newTracer(func(on bool) { m.Trace(on) })
	spec := container.Spec{
		Name: id.Name, RunDir: d.runDir, LoopbackOnly: id.LoopbackOnly, Programs: id.Programs, Outlives: true,
		Mark:  "-" + id.Token[:8], // other daemons may have the same names
		Rules: given, Annotated: id.Annotated, Ports: d.ports.Holder(id.Name), Log: d.log,
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

// Entered implements Owner.
func (m *managed) Entered() { m.charge() }

// Ended implements Owner. A container that was started again more than once has listeners of
// programs that have ended, before that of its first program: awaitProgram waits for that one.
func (m *managed) Ended() {
	select {
	case <-m.d.attached:
	default:
		return // endEarly looks at it
	}
	if !m.again || m.Begun() {
		m.d.end(m)
	}
}

// endEarly ends the containers whose programs have ended while the daemon attached those that waited
// for it.
func (d *Daemon) endEarly() {
	close(d.attached)
	for _, m := range d.all() {
		if m.Begun() && m.Over() {
			m.Ended()
		}
	}
}

// attach makes the filter of a program one of the container's. Many may be starting.
func (m *managed) attach(listener *os.File, pid int) error {
	m.d.memory.setBusyGC()
	defer m.d.memory.giveBackLater()
	return m.Attach(listener, pid)
}

// release lets go of the container, which goes on without a daemon.
func (m *managed) release() error {
	defer m.tracer.close()
	return m.Release()
}

// remove ends the container, if it has not, and removes all that belongs to it.
func (m *managed) remove() error {
	defer m.tracer.close()
	return m.Remove()
}

// show says what the container is.
func (m *managed) show() api.Container {
	s := m.Show()
	c := api.Container{
		ID: m.ID, Name: m.Name, State: stateCreated, PID: s.PID, Mode: m.Mode,
		Created: m.Created.Format(time.RFC3339), Ports: s.Ports, Egress: s.Egress,
	}
	if c.PID != 0 {
		c.State = stateRunning
	}
	return c
}
