package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/tsugiki/tsugiki/bpf"
)

// How containers share programs.
//
// To load and verify the programs takes more time, and to keep them more memory, than
// all else that a container needs in the kernel. So a set of them is loaded once and
// attached to the cgroups of many containers. What is one container's own is in rows, and
// in tables, that the programs find by its number, which is in the storage of its cgroup:
// no number is given twice, and a set that has no more is succeeded by another.
//
// A set lasts as long as one of its programs is attached somewhere, with all that is
// in its tables; so it does not matter what a process that is killed leaves there.

// containersMax is CONTAINERS_MAX of the BPF programs. 0 is no container's number.
const containersMax = 1024

// preparedMax is for how many containers there are tables in advance: the kernel takes a
// grace period of RCU to enter one.
const preparedMax = 4

// set is programs, and the maps that all of their containers share. What this process
// holds of it, it lets go with the last container that uses it.
type set struct {
	bpf.PolicyMaps
	programs bpf.PolicyPrograms // none, if others have loaded them
	users    int                // guarded by sets.mu
	next     uint32             // number that nobody has had; prepare's own, once that runs
	ready    chan prepared      // what it has made, closed when there are no more numbers; nil: it does not run
	unused   chan struct{}      // closed when ready is not read any more

	finding sync.Mutex         // guards what follows
	found   map[uint32]*shared // by number: what others have written, and nobody has taken over yet
}

// sets are those that this process uses.
var sets struct {
	mu      sync.Mutex          // guards what follows
	current *set                // what new containers get; nil: has to be loaded
	adopted map[ebpf.MapID]*set // loaded by others; by their map of containers
	kept    int                 // how many want current to stay though no container uses it
}

// Prepare loads what containers will need, and keeps it until letGo is called: else it is
// loaded with the first container, in some tenths of a second on a busy machine, and goes with the
// last. It needs what Enforce does.
func Prepare() (letGo func() error, err error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if sets.current == nil {
		if sets.current, err = loadSet(); err != nil {
			return nil, fmt.Errorf("load policy programs: %w", err)
		}
	}
	sets.kept++
	sets.current.makeAhead()
	return sync.OnceValue(func() error {
		sets.mu.Lock()
		defer sets.mu.Unlock()
		sets.kept--
		if sets.current == nil {
			return nil
		}
		return sets.current.closeUnused()
	}), nil
}

// prepared is a container that there is not yet.
type prepared struct {
	id     uint32
	tables tables
	err    error
}

// tables are one container's own.
type tables struct {
	senders *ebpf.Map
	peers   *ebpf.Map // nil until it is needed
}

func (t *tables) all() []**ebpf.Map {
	return []**ebpf.Map{&t.senders, &t.peers}
}

// first are those that each container needs, or may need in a hurry.
func (t *tables) first() []**ebpf.Map { return t.all()[:1] }

func (t *tables) close() error {
	var errs []error
	for _, m := range t.all() {
		errs = append(errs, (*m).Close())
	}
	return errors.Join(errs...)
}

// parsed is the object, which takes longer to read than to load.
var parsed = sync.OnceValues(func() (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadPolicy()
	if err != nil {
		return nil, err
	}
	// The kernel would keep a copy of their types for each table of a container. Without them
	// those that are put in place of the first must be (before 6.4, map_meta_equal).
	for _, m := range spec.Maps {
		if m.InnerMap != nil {
			m.InnerMap.Key, m.InnerMap.Value = nil, nil
		}
	}
	for _, p := range spec.Programs {
		withoutErrno(p)
	}
	return spec, nil
})

// setsErrno tells whether a program can say with which errno a call fails (Linux 6.0).
var setsErrno = sync.OnceValue(func() bool {
	return features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval) == nil
})

// withoutErrno takes out of a program what the kernel does not know.
func withoutErrno(p *ebpf.ProgramSpec) {
	for i, ins := range p.Instructions {
		if ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnSetRetval && !setsErrno() {
			p.Instructions[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
		}
	}
}

// takePrepared returns what a new container gets. The caller is a user of its set.
func takePrepared() (*set, prepared, error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	for {
		if sets.current == nil {
			var err error
			if sets.current, err = loadSet(); err != nil {
				return nil, prepared{}, fmt.Errorf("load policy programs: %w", err)
			}
		}
		s := sets.current
		p, more := s.take()
		switch {
		case !more:
			sets.current = nil
			if err := s.closeUnused(); err != nil {
				return nil, p, err
			}
		case p.err != nil:
			return nil, p, errors.Join(fmt.Errorf("make policy maps: %w", p.err), s.closeUnused())
		default:
			s.users++
			return s, p, nil
		}
	}
}

func loadSet() (*set, error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	var objs bpf.PolicyObjects
	if err := spec.LoadAndAssign(&objs, loopbacksOfOthers()); err != nil {
		return nil, err
	}
	s := &set{PolicyMaps: objs.PolicyMaps, programs: objs.PolicyPrograms, next: 1}
	// The programs use none of these, and would let them go, with what is in them, when
	// we end.
	for _, m := range []*ebpf.Map{s.GraftBySocket, s.QueueBySocket} {
		if err := s.programs.Setsockopt.BindMap(m); err != nil {
			return nil, errors.Join(fmt.Errorf("keep map %s with the policy programs: %w", m, err), objs.Close())
		}
	}
	return s, s.closeTheirs()
}

// closeTheirs lets go of the maps that only the programs use, which keep them: many
// supervisors have few files.
func (s *set) closeTheirs() error {
	var errs []error
	for _, m := range []**ebpf.Map{&s.HeardBySocket, &s.KeptBySocket, &s.LentBySocket, &s.RelayedSockets, &s.TriedBySocket} {
		errs = append(errs, (*m).Close())
		*m = nil
	}
	return errors.Join(errs...)
}

// take is what another container gets, unless there are no more numbers. It is made in
// advance from the second one on, because many programs have but one.
func (s *set) take() (p prepared, more bool) {
	if s.ready == nil {
		if s.next == 1 {
			return s.makeNext(), true
		}
		s.makeAhead()
	}
	p, more = <-s.ready
	return p, more
}

// makeAhead has what containers get made before they come.
func (s *set) makeAhead() {
	if s.ready == nil {
		s.ready, s.unused = make(chan prepared, preparedMax), make(chan struct{})
		go s.prepare()
	}
}

// makeNext makes what the next container gets. An error is that one's alone.
func (s *set) makeNext() prepared {
	p := prepared{id: s.next}
	s.next++
	p.tables.senders, p.err = s.makeTable(sendersTable, p.id)
	return p
}

// prepare makes what containers get, until there are no more numbers.
func (s *set) prepare() {
	defer close(s.ready)
	for s.next < containersMax {
		p := s.makeNext()
		select {
		case s.ready <- p:
		case <-s.unused:
			_ = p.tables.close()
			return
		}
	}
}

// LetGoOfPrograms closes the programs of the container's set, which stay attached: a process
// with one container has no more use for them. The next container loads a set of its own.
func (e *Enforcement) LetGoOfPrograms() error {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if sets.current == e.set {
		sets.current = nil
	}
	programs := e.set.programs
	e.set.programs = bpf.PolicyPrograms{}
	return programs.Close()
}

// outer are the maps that have the containers' tables, in the order of tables.all.
func (s *set) outer() []*ebpf.Map {
	return []*ebpf.Map{s.SenderTables, s.PeerTables}
}

// tableSpecs are what is in those, in the same order.
func tableSpecs() ([]*ebpf.MapSpec, error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	var list []*ebpf.MapSpec
	for _, name := range []string{"sender_tables", "peer_tables"} {
		list = append(list, spec.Maps[name].InnerMap)
	}
	return list, nil
}

// The places of tables in tables.all.
const (
	sendersTable = 0
	peersTable   = 1
)

func (s *set) makeTable(kind int, id uint32) (*ebpf.Map, error) {
	specs, err := tableSpecs()
	if err != nil {
		return nil, err
	}
	m, err := ebpf.NewMap(specs[kind])
	if err != nil {
		return nil, err
	}
	if err := s.outer()[kind].Put(id, m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// openTables opens those that there are for a container.
func (s *set) openTables(id uint32) (t tables, err error) {
	specs, err := tableSpecs()
	if err != nil {
		return t, err
	}
	list := t.all()
	for i, outer := range s.outer() {
		err := outer.Lookup(id, list[i])
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist) && i >= len(t.first()):
			continue
		case err == nil:
			err = specs[i].Compatible(*list[i])
		}
		if err != nil {
			return tables{}, errors.Join(fmt.Errorf("%w: %w", ErrNotAdopted, err), t.close())
		}
	}
	return t, nil
}

// clear takes the tables of a container away. It takes some grace periods.
func (s *set) clear(id uint32) error {
	var errs []error
	for _, outer := range s.outer() {
		if err := outer.Delete(id); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *set) use() {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	s.users++
}

func (s *set) leave() error {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	s.users--
	return s.closeUnused()
}

// closeUnused lets go of a set that has no user. With sets.mu held.
func (s *set) closeUnused() error {
	if s.users > 0 || (s == sets.current && sets.kept > 0) {
		return nil
	}
	if sets.current == s {
		sets.current = nil
	}
	maps.DeleteFunc(sets.adopted, func(_ ebpf.MapID, other *set) bool { return other == s })
	var errs []error
	if s.ready != nil {
		close(s.unused)
		for p := range s.ready {
			errs = append(errs, p.tables.close())
		}
	}
	return errors.Join(append(errs, s.PolicyMaps.Close(), s.programs.Close())...)
}

// attach puts the programs in force for the sockets of a cgroup. They stay so until the
// cgroup is gone and the last of its sockets is closed, whatever becomes of this
// process: they are attached by BPF_PROG_ATTACH, not by a link that its owner's death
// would undo.
func (s *set) attach(cgroup *os.File) error {
	for _, p := range hooks(&s.programs) {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{
			Target:  int(cgroup.Fd()),
			Program: p.program,
			Attach:  p.at,
			Flags:   flagAllowMulti,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.at, err)
		}
	}
	return nil
}

// hook is where a program is attached.
type hook struct {
	program *ebpf.Program
	at      ebpf.AttachType
}

func hooks(p *bpf.PolicyPrograms) []hook {
	return []hook{
		{p.Connect4, ebpf.AttachCGroupInet4Connect},
		{p.Connect6, ebpf.AttachCGroupInet6Connect},
		{p.Bind4, ebpf.AttachCGroupInet4Bind},
		{p.Bind6, ebpf.AttachCGroupInet6Bind},
		{p.Sendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{p.Sendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		{p.Recvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{p.Recvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{p.Getsockname4, ebpf.AttachCgroupInet4GetSockname},
		{p.Getsockname6, ebpf.AttachCgroupInet6GetSockname},
		{p.Getpeername4, ebpf.AttachCgroupInet4GetPeername},
		{p.Getpeername6, ebpf.AttachCgroupInet6GetPeername},
		{p.Setsockopt, ebpf.AttachCGroupSetsockopt},
		{p.Getsockopt, ebpf.AttachCGroupGetsockopt},
		{p.Leave, ebpf.AttachCGroupInetEgress},
		{p.Enter, ebpf.AttachCGroupInetIngress},
		{p.GuardListen, ebpf.AttachCGroupSockOps},
	}
}

// flagAllowMulti is BPF_F_ALLOW_MULTI: programs that others have attached to
// this cgroup or above it stay in force too.
const flagAllowMulti = 2
