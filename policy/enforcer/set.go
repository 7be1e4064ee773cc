package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// How containers share programs.
//
// To load and verify the programs takes more time, and to keep them more memory, than
// all else that a container needs in the kernel. So a set of them is loaded once and
// attached to the cgroups of many containers. What is one container's own is in rows, and
// in tables, that the programs find by its number, which is in the storage of its cgroup:
// no number is given twice, and a set that has no more is succeeded by another. Processes share
// a set too, see pin.go.
//
// A set lasts as long as one of its programs is attached somewhere or pinned, with all that is
// in its tables. What a killed process leaves there, ForgetKilled or the end of the set removes.

// containersMax is CONTAINERS_MAX of the BPF programs. 0 is no container's number.
const containersMax = 1024

// set is programs, and the maps that all of their containers share. What this process
// holds of it, it lets go with the last container that uses it.
type set struct {
	bpf.PolicyMaps
	programs bpf.PolicyPrograms // none, if the set was adopted
	users    int                // guarded by sets.mu
	last     *uint32            // the number that was given last, by any process; nil, if the set was adopted
	shared   []byte             // memory that last is in; nil: no other process has the set

	finding sync.Mutex         // guards what follows
	found   map[uint32]*shared // by number: what others have written, and nobody has taken over yet

	steering sync.Mutex           // guards what follows
	steered  map[uint64]link.Link // by the cookie of a network namespace: see Steer
}

// sets are those that this process uses.
var sets struct {
	mu      sync.Mutex          // guards what follows
	current *set                // what new containers get; nil: has to be loaded
	adopted map[ebpf.MapID]*set // loaded by others; by their map of containers
	kept    int                 // how many want current to stay though no container uses it
}

// Prepare loads or finds what containers will need, and keeps it until letGo is called: else that
// is done with the first container, in some tenths of a second on a busy machine, and undone with
// the last. It needs what Enforce does.
func Prepare() (letGo func() error, err error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if sets.current == nil {
		if sets.current, err = loadSet(); err != nil {
			return nil, fmt.Errorf("load policy programs: %w", err)
		}
	}
	sets.kept++
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

// tables are one container's own.
type tables struct {
	senders *ebpf.Map // all nil until they are needed
	peers   *ebpf.Map
	ring    *ebpf.Map
	hosts   *ebpf.Map
}

func (t *tables) all() []**ebpf.Map {
	return []**ebpf.Map{&t.senders, &t.peers, &t.ring, &t.hosts}
}

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
		fn := asm.BuiltinFunc(ins.Constant)
		if ins.IsBuiltinCall() && (fn == asm.FnSetRetval || fn == asm.FnGetRetval) && !setsErrno() {
			p.Instructions[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
		}
	}
}

// takeNumber returns a set, and a number in it for a new container. The caller is a user of the
// set.
func takeNumber() (*set, uint32, error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	for {
		if sets.current == nil {
			var err error
			if sets.current, err = loadSet(); err != nil {
				return nil, 0, fmt.Errorf("load policy programs: %w", err)
			}
		}
		s := sets.current
		if number := atomic.AddUint32(s.last, 1); number < containersMax {
			s.users++
			return s, number, nil
		}
		sets.current = nil
		if err := s.closeUnused(); err != nil {
			return nil, 0, err
		}
	}
}

// loadSet returns the set that processes share, or one of this process's own where they cannot
// share any: Pins says why.
func loadSet() (*set, error) {
	p, err := openPins()
	if err != nil {
		return loadOwn()
	}
	s, err := p.shares()
	return s, errors.Join(err, p.dir.Close())
}

// loadOwn loads a set that no other process has.
func loadOwn() (*set, error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	var objs bpf.PolicyObjects
	if err := spec.LoadAndAssign(&objs, loopbacksOfOthers()); err != nil {
		return nil, err
	}
	s := &set{PolicyMaps: objs.PolicyMaps, programs: objs.PolicyPrograms, last: new(uint32)}
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
	for _, m := range s.theirs() {
		errs = append(errs, (*m).Close())
		*m = nil
	}
	return errors.Join(errs...)
}

func (s *set) theirs() []**ebpf.Map {
	return []**ebpf.Map{&s.HeardBySocket, &s.KeptBySocket, &s.LentBySocket, &s.NameserverBySocket, &s.RelayedSockets, &s.ReportedBySocket, &s.TriedBySocket}
}

func (s *set) isTheirs(m **ebpf.Map) bool { return slices.Contains(s.theirs(), m) }

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
	return []*ebpf.Map{s.SenderTables, s.PeerTables, s.TraceTables, s.HostTables}
}

// tableSpecs are what is in those, in the same order. To read them from the object takes longer
// than all else that a container needs.
var tableSpecs = []*ebpf.MapSpec{
	{
		Name: "sender_tables_inner", Type: ebpf.LPMTrie, MaxEntries: relaySendersMax, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicySender{})), ValueSize: uint32(unsafe.Sizeof(bpf.PolicyAddr{})),
	},
	{
		Name: "peer_tables_inner", Type: ebpf.LRUHash, MaxEntries: udpPeersMax,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicyPeer{})), ValueSize: 1,
	},
	{Name: "trace_tables_inner", Type: ebpf.RingBuf, MaxEntries: traceBytes},
	{
		Name: "host_tables_inner", Type: ebpf.LPMTrie, MaxEntries: virtualHosts, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicyVirtualAddr{})), ValueSize: uint32(unsafe.Sizeof(bpf.PolicyVirtualHost{})),
	},
}

// RELAY_SENDERS_MAX, UDP_PEERS_MAX and VIRTUAL_HOSTS of the BPF programs.
const (
	relaySendersMax = 4096
	udpPeersMax     = 4096
	virtualHosts    = 1 << 17
)

// The places of tables in tables.all.
const (
	sendersTable = 0
	peersTable   = 1
	traceTable   = 2
	hostsTable   = 3
)

// makeTable makes a table of a container's own, unless it has it. The programs see it when
// makeTable returns.
func (e *Enforcement) makeTable(kind int) error {
	e.making.Lock()
	defer e.making.Unlock()
	table := e.tables.all()[kind]
	if *table != nil {
		return nil
	}
	m, err := ebpf.NewMap(tableSpecs[kind])
	if err != nil {
		return err
	}
	if err := e.enter(e.set.outer()[kind], m); err != nil {
		return errors.Join(err, m.Close())
	}
	*table = m
	return nil
}

// enter puts a table into a map of tables. The kernel does so at once; but its call returns only
// when all programs that run have ended (8 to 16 ms), and nobody here needs to know that.
func (e *Enforcement) enter(outer, table *ebpf.Map) error {
	done := make(chan error, 1)
	e.entering.Add(1)
	go func() {
		defer e.entering.Done()
		done <- outer.Put(e.id, table)
	}()
	for {
		var there ebpf.MapID
		err := outer.Lookup(e.id, &there)
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// openTables opens those that there are for a container.
func (s *set) openTables(id uint32) (t tables, err error) {
	list := t.all()
	for i, outer := range s.outer() {
		err := outer.Lookup(id, list[i])
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			continue
		case err == nil:
			err = tableSpecs[i].Compatible(*list[i])
		}
		if err != nil {
			return tables{}, errors.Join(fmt.Errorf("%w: %w", ErrNotAdopted, err), t.close())
		}
	}
	return t, nil
}

// clear takes the tables of a container away. It takes a grace period for each that there is.
func (s *set) clear(id uint32) error {
	var errs []error
	for _, outer := range s.outer() {
		var there ebpf.MapID
		if err := outer.Lookup(id, &there); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
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
	return s.close()
}

func (s *set) close() error {
	var err error
	if s.shared != nil {
		err = unix.Munmap(s.shared)
		s.shared, s.last = nil, nil
	}
	return errors.Join(err, s.closeSteering(), s.PolicyMaps.Close(), s.programs.Close())
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
