package enforcer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// How containers share programs.
//
// To load and verify the programs takes more time, and to keep them takes more memory, than all
// else that a container needs in the kernel. So a set of programs is loaded once and attached to
// the cgroups of many containers. The data of one container is in rows and tables that the programs
// find by the container's number, which is in the storage of its cgroup. No number is given twice.
// When a set has no more numbers, another set replaces it for new containers. Processes share a set
// too, see pin.go.
//
// The containers of one loopback may be of several sets, because numbers may run out while a pod
// goes on. Their programs look at each other's sockets. So all sets of a process have those tables
// in common that tell whose a socket is (commonTables).
//
// A set and the rows of its tables last as long as one of its programs is attached or pinned.
// ForgetKilled, or the end of the set, removes the rows of a killed process.

// containersMax is CONTAINERS_MAX of the BPF programs. No container has the number 0 in a set.
const containersMax = 1024

// set has programs, and the maps that all of their containers share. This process lets go of it
// with the last container that uses it.
type set struct {
	bpf.PolicyMaps
	programs bpf.PolicyPrograms // none, if the set was adopted
	adopted  ebpf.MapID         // by which map of containers it was; 0: this process loaded or found it
	users    int                // guarded by sets.mu
	first    uint32             // is added to the numbers, so that no two sets have the same number
	last     *uint32            // the number that was given last, by any process; nil, if the set was adopted
	shared   []byte             // memory with last; nil: no other process has the set

	finding sync.Mutex         // guards what follows
	found   map[uint32]*shared // by number: rows of other processes that nobody has taken over yet

	steering sync.Mutex           // guards what follows
	steered  map[uint64]link.Link // by the cookie of a network namespace: see Steer
}

// sets has the sets that this process uses.
var sets struct {
	mu      sync.Mutex        // guards what follows
	current *set              // the set for new containers; nil: it has to be loaded
	open    map[*set]struct{} // current, and all that have a user
	kept    int               // number of callers that want current to stay though no container uses it
}

// Prepare loads or finds the set for containers, and keeps it until letGo is called. Without
// Prepare, the set is loaded with the first container, which takes some tenths of a second on a
// busy machine, and closed with the last one. Prepare needs the privileges of Enforce.
func Prepare() (letGo func() error, err error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if err := haveCurrent(); err != nil {
		return nil, err
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

// parsed returns the object. To read the object takes longer than to load it.
var parsed = sync.OnceValues(func() (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadPolicy()
	if err != nil {
		return nil, err
	}
	// The kernel would keep a copy of the types for each table of a container. If the first table
	// has no types, those that replace it must have none either (before 6.4, map_meta_equal).
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

// withoutErrno removes those calls from a program that the running kernel does not know.
func withoutErrno(p *ebpf.ProgramSpec) {
	for i, ins := range p.Instructions {
		fn := asm.BuiltinFunc(ins.Constant)
		if ins.IsBuiltinCall() && (fn == asm.FnSetRetval || fn == asm.FnGetRetval) && !setsErrno() {
			p.Instructions[i] = asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
		}
	}
}

// takeNumber returns a set, and a number in it for a new container. The caller becomes a user of
// the set.
func takeNumber() (*set, uint32, error) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	for {
		if err := haveCurrent(); err != nil {
			return nil, 0, err
		}
		s := sets.current
		if number := atomic.AddUint32(s.last, 1); number < containersMax {
			s.users++
			return s, s.first + number, nil
		}
		sets.current = nil
		if err := s.closeUnused(); err != nil {
			return nil, 0, err
		}
	}
}

// haveCurrent loads or finds a set, unless there is one. The caller holds sets.mu.
func haveCurrent() error {
	if sets.current != nil {
		return nil
	}
	s, err := loadSet()
	if err != nil {
		return fmt.Errorf("load policy programs: %w", err)
	}
	s.opened()
	sets.current = s
	return nil
}

// opened makes the next sets share this set's tables. The caller holds sets.mu.
func (s *set) opened() {
	if sets.open == nil {
		sets.open = map[*set]struct{}{}
	}
	sets.open[s] = struct{}{}
}

// loadSet returns the set that processes share, or one of this process's own if they cannot share
// any: Pins says why. The caller holds sets.mu.
func loadSet() (*set, error) {
	former := anyOpen()
	p, err := openPins()
	if err != nil {
		return loadOwn(former)
	}
	s, err := p.shares(former)
	return s, errors.Join(err, p.dir.Close())
}

// anyOpen returns a set that this process uses, or nil. All have the same common tables. The caller
// holds sets.mu.
func anyOpen() *set {
	for s := range sets.open {
		return s
	}
	return nil
}

// commonTables returns the tables that tell a program about other containers' sockets on its
// loopback.
func (s *set) commonTables() map[string]*ebpf.Map {
	if s == nil {
		return nil
	}
	return map[string]*ebpf.Map{
		"location_by_loopback": s.LocationByLoopback,
		"loopback_by_socket":   s.LoopbackBySocket,
		"binding_by_socket":    s.BindingBySocket,
		"second_by_socket":     s.SecondBySocket,
	}
}

// hasTablesOf tells whether a set has the common tables of another, which may be nil.
func (s *set) hasTablesOf(former *set) bool {
	own := s.commonTables()
	for name, m := range former.commonTables() {
		a, aerr := mapID(own[name])
		b, berr := mapID(m)
		if aerr != nil || berr != nil || a != b {
			return false
		}
	}
	return true
}

// mapID returns the kernel's number of a map, which no other existing map has.
func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("identify map: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}

// beginNumbers chooses the number that is added to the set's numbers. It derives it from the number
// of a map of the set. As the owner of a row, a loopback has another bit (loopbackBit).
func (s *set) beginNumbers() error {
	id, err := mapID(s.ContainerByCgroup)
	s.first = uint32(id) % (loopbackBit / containersMax) * containersMax
	return err
}

// loadOwn loads a set that no other process has, with the common tables of former, or with its own
// if former is nil.
func loadOwn(former *set) (*set, error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	if err := roomFor(len(spec.Maps) + len(spec.Programs) + spareFiles); err != nil {
		return nil, err
	}
	var objs bpf.PolicyObjects
	if err := spec.LoadAndAssign(&objs, &ebpf.CollectionOptions{MapReplacements: former.commonTables()}); err != nil {
		return nil, err
	}
	s := &set{PolicyMaps: objs.PolicyMaps, programs: objs.PolicyPrograms, last: new(uint32)}
	err = s.beginNumbers()
	// The programs use none of these maps, so the maps and their contents would end with this
	// process. BindMap keeps them with a program.
	for _, m := range []*ebpf.Map{s.GraftBySocket, s.QueueBySocket} {
		if bound := s.programs.Setsockopt.BindMap(m); bound != nil {
			err = errors.Join(err, fmt.Errorf("keep map %s with the policy programs: %w", m, bound))
		}
	}
	if err = errors.Join(err, s.closeTheirs()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// spareFiles are those that the library has open for a moment while it loads a set.
const spareFiles = 4

// roomFor returns EMFILE or ENFILE unless this process can open n more files. Without it the library
// would take a lack of files for a lack of features.
func roomFor(n int) error {
	files := make([]int, 0, n)
	defer func() {
		for _, file := range files {
			unix.Close(file)
		}
	}()
	for range n {
		file, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %d files: %w", n, err)
		}
		files = append(files, file)
	}
	return nil
}

// closeTheirs closes the maps that only the programs use, because a supervisor may have few files.
// The programs keep these maps.
func (s *set) closeTheirs() error {
	var errs []error
	for _, m := range s.theirs() {
		errs = append(errs, (*m).Close())
		*m = nil
	}
	return errors.Join(errs...)
}

func (s *set) theirs() []**ebpf.Map {
	return []**ebpf.Map{&s.KeptBySocket, &s.LentBySocket, &s.NameserverBySocket, &s.RelayedSockets, &s.ReportedBySocket, &s.TriedBySocket}
}

func (s *set) isTheirs(m **ebpf.Map) bool { return slices.Contains(s.theirs(), m) }

// LetGoOfPrograms closes the programs of the container's set, which stay attached. A process with
// one container does not need them any more. The next container loads a set of its own.
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

// closeUnused lets go of a set that has no user. The caller holds sets.mu.
func (s *set) closeUnused() error {
	if s.users > 0 || (s == sets.current && sets.kept > 0) {
		return nil
	}
	if sets.current == s {
		sets.current = nil
	}
	delete(sets.open, s)
	return s.close()
}

// close lets go of a set, which may be nil.
func (s *set) close() error {
	if s == nil {
		return nil
	}
	var err error
	if s.shared != nil {
		err = unix.Munmap(s.shared)
		s.shared, s.last = nil, nil
	}
	return errors.Join(err, s.closeSteering(), s.PolicyMaps.Close(), s.programs.Close())
}

// attach puts the programs in force for the sockets of a cgroup. They stay in force until the
// cgroup is gone and the last of its sockets is closed, even if this process ends: they are
// attached by BPF_PROG_ATTACH, not by a link, which would end with its owner.
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

// hook is a point at which a program is attached.
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

// flagAllowMulti is BPF_F_ALLOW_MULTI: programs that others have attached to this cgroup or to its
// parents stay in force too.
const flagAllowMulti = 2
