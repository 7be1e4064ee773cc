package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
)

// # Containers of a daemon
//
// Nothing of them ends with the daemon. Their programs are somebody else's
// children; their gates go on and wait at their doors; the kernel programs are in
// their cgroup; established connections are sockets. All that is only in the
// daemon's memory is in its record, or in the kernel, or made anew: keepers, which
// hold nothing, and the relay.

// managed is a container of a daemon.
type managed struct {
	*Container
	record    *record // Container.changes guards it; these are of it and never change:
	id, token string
	ownGroup  bool // for its programs
	d         *Daemon
	init      atomic.Pointer[process] // the first program; nil before there is one
	begun     atomic.Bool             // there is, or was, a first program
	attaching atomic.Int32            // programs
	late      atomic.Bool             // a gate does not answer yet, so it is not taken over
	shown     atomic.Pointer[api.Container]
	// adopted are the gates that nobody has answered yet.
	adopted []*gate.Gate
	tracer  *tracer
}

// doorsOf is where the doors of a container's gates are.
func doorsOf(runDir, name string) string { return filepath.Join(runDir, "gates", name) }

func (d *Daemon) newManaged(r *record, rules rules.Rules) *managed {
	spec := Spec{Name: r.Name, RunDir: d.runDir, Rules: rules, Annotated: r.Annotated, Log: d.log}
	if r.UID != 0 || r.GID != 0 {
		spec.User = &launch.User{UID: r.UID, GID: r.GID}
	}
	m := &managed{Container: newContainer(spec), record: r, id: r.ID, token: r.Token, ownGroup: r.Programs, d: d}
	m.tracer = newTracer(m.gates.trace)
	m.decisions = slog.New(m.tracer.handler(m.spec.Log.Handler())).With("container", r.Name)
	m.mark = "-" + r.Token[:8] // other daemons may have the same names
	m.loopback = r.LoopbackOnly
	m.ended = func() { d.end(m) }
	m.killAll = m.killPrograms
	m.porter = d.keptBy
	m.ports = d.ports.Holder(r.Name)
	m.changed = m.write
	return m
}

// create makes what is there before the container has a program.
func (m *managed) create() error {
	for _, step := range []func() error{
		m.compile, m.openHost, m.claimPorts, m.checkHost, m.writeDown, m.openDoors, m.makeGroups, m.makeOwnGroup, m.enforce,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writeDown makes the record durable, before anything is made that outlives us.
func (m *managed) writeDown() error {
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	m.record.Cgroup = filepath.Join(own, m.groupName())
	return m.write(m.table, m.endpoints.Load())
}

// claimPorts refuses ports that another container was promised before.
func (m *managed) claimPorts() error { return m.d.ports.Reserve(m.spec.Name, m.promises(m.table)) }

// makeOwnGroup makes one for the container's programs, if nobody else has put them in one.
func (m *managed) makeOwnGroup() error {
	if !m.ownGroup {
		return nil
	}
	return m.makePrograms()
}

func (m *managed) openDoors() error {
	dir := doorsOf(m.spec.RunDir, m.spec.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of doors: %w", err)
	}
	var err error
	m.doors, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return err
}

// newDoor is the path of a door that is not there yet.
func newDoor(dir *os.File) (string, error) {
	for n := 1; ; n++ {
		path := fmt.Sprintf("/proc/self/fd/%d/%d", dir.Fd(), n)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, nil
		} else if err != nil {
			return "", fmt.Errorf("find a place for a door: %w", err)
		}
	}
}

// write makes a record durable that says what is about to be in force.
func (m *managed) write(t *policy.Table, set *endpoint.Set) error {
	if err := m.d.ports.Reserve(m.spec.Name, m.promises(t)); err != nil {
		return err
	}
	r := *m.record
	r.Endpoints, r.Numbered = lines(set), names(t.Numbered())
	if err := m.d.store.put(&r); err != nil {
		return errors.Join(err, m.d.ports.Reserve(m.spec.Name, m.promises(m.table)))
	}
	*m.record = r
	return nil
}

// attach makes the filter of a program one of the container's. The listener is the
// container's from then on, unless it fails.
func (m *managed) attach(listener *os.File, pid int) error {
	m.attaching.Add(1)
	m.d.stir()
	err := m.tryAttach(listener, pid)
	m.d.tidy.Reset(tidyAfter)
	if m.attaching.Add(-1) == 0 && !m.runs() {
		go m.ended() // with the program, or because that is killed; no gate will say so
	}
	return err
}

// runs tells whether the container has a gate, or is known to have had one.
func (m *managed) runs() bool { return m.gates.count() > 0 || m.late.Load() }

func (m *managed) tryAttach(listener *os.File, pid int) error {
	if err := m.enter(pid); err != nil {
		return err
	}
	if m.gates.serve(listener) {
		return listener.Close() // the sender was not told, and has sent it again
	}
	err := m.serve(listener)
	if errors.Is(err, gate.ErrEnded) {
		m.log.Debug("the program ended at once", "pid", pid)
		return listener.Close()
	}
	if err == nil {
		m.changes.Lock()
		defer m.changes.Unlock()
		m.refresh() // not before: until it has a gate, it has only begun to run
	}
	return err
}

// enter makes the first program's namespace the container's own; later ones have to
// be there, as long as they are anywhere.
func (m *managed) enter(pid int) error {
	m.changes.Lock()
	defer m.changes.Unlock()
	if m.closing {
		return os.ErrClosed
	}
	if m.late.Load() {
		return errors.New("the container is not taken over yet, for its gate does not answer; somebody may have stopped it")
	}
	own, err := netns.Open(strconv.Itoa(pid))
	if m.ownNS == nil {
		if err == nil {
			err = m.enterFirst(own, pid)
		}
		return err
	}
	if err != nil {
		return nil
	}
	if own.Cookie() != m.ownNS.Cookie() {
		err = errors.New("the program is in another network namespace than the container")
	}
	return errors.Join(err, own.Close())
}

func (m *managed) enterFirst(own *netns.NS, pid int) error {
	first, err := openProcess(pid)
	if err != nil {
		return errors.Join(err, own.Close())
	}
	if !first.isFiltered() { // it is killed when the container ends
		err := fmt.Errorf("process %d has no seccomp filter, so it is not the container's program", pid)
		return errors.Join(err, own.Close(), first.close())
	}
	m.ownNS = own
	m.init.Store(first)
	m.begun.Store(true)
	r := *m.record
	r.PID, r.Started = first.pid, first.started
	for _, step := range []func() error{
		m.checkOwn, m.makeEngine, m.startRelay, m.rest,
		func() error { return m.d.store.put(&r) },
	} {
		if err := step(); err != nil {
			m.closing = true // half of what other programs would need is missing
			return err
		}
	}
	*m.record = r
	m.charge()
	return nil
}

// rest ends the keeper that has made the relay's sockets: most programs never need one
// where sockets are born on the host.
func (m *managed) rest() error {
	m.host[""].rest()
	return nil
}

// killPrograms ends the container's programs: all of them end with the first, if
// that is the first of a pid namespace; and those of tsugiki run are in a cgroup.
func (m *managed) killPrograms() error {
	if m.ownGroup && m.programs != nil {
		return m.programs.Kill()
	}
	return m.init.Load().kill()
}

// release lets go of the container, which goes on without a daemon.
func (m *managed) release() error {
	m.changes.Lock()
	defer m.changes.Unlock()
	m.closing = true
	var errs []error
	for _, g := range m.adopted {
		errs = append(errs, g.Release())
	}
	for _, s := range m.gates.take() {
		errs = append(errs, s.supervisor.Release(), s.listener.Close())
	}
	errs = append(errs, m.closeKeepers())
	m.tracer.close()
	if first := m.init.Load(); first != nil {
		errs = append(errs, first.close())
	}
	return errors.Join(append(errs, m.letGo())...)
}

// remove ends the container, if it has not, and removes all that belongs to it.
func (m *managed) remove() error {
	m.changes.Lock()
	m.closing = true
	err := m.closeKeepers() // else they are found dead, and said so
	m.changes.Unlock()
	err = errors.Join(err, m.killAll(), m.Close())
	m.tracer.close()
	if first := m.init.Load(); first != nil {
		err = errors.Join(err, first.close())
	}
	if dir := doorsOf(m.spec.RunDir, m.spec.Name); err == nil {
		err = os.RemoveAll(dir)
	}
	return err
}

func lines(set *endpoint.Set) []string {
	var list []string
	for _, ep := range set.All() {
		list = append(list, ep.String())
	}
	return list
}

func names(eps []*endpoint.Endpoint) []string {
	var list []string
	for _, ep := range eps {
		if ep == nil {
			list = append(list, "")
			continue
		}
		list = append(list, ep.Name)
	}
	return list
}
