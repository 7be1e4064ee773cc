// Package shared divides the CPU time of daemons that work for many containers
// among those containers, by the files that the daemons read and write.
//
// The sum is the exact CPU clock of the process. The parts are by events in the
// kernel, where system calls of the watched processes end and where their threads are
// switched (bpf/shared.bpf.c says how). What cannot be said to be for somebody,
// such as waiting for the next thing to do, is each one's in proportion. Work that
// io_uring does, and work for files that are not told by Own, is divided likewise
// or is the daemon's own.
//
// It does not find daemons or files, and charges nobody. It takes CAP_BPF,
// CAP_PERFMON and CAP_SYS_PTRACE; Linux 5.15 with BTF, on x86-64 or arm64. While
// anything is watched, every system call of the machine costs more: some ten
// nanoseconds, or more than a hundred where the processor's mitigations are dear.
package shared

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

// ErrProcesses says that as many daemons are watched as can be.
var ErrProcesses = errors.New("too many processes")

// File is what a file is known by, as stat(2) gives it: st_dev and st_ino. A file
// of btrfs or overlayfs has another device there than in the kernel: see Identify.
type File struct {
	Dev, Ino uint64
}

// Process is what a watched process has spent since it is watched.
type Process struct {
	PID     int
	CPU     time.Duration // divided so far
	Unowned time.Duration // of which for nobody but itself
}

// Meter divides. Its methods may be called by several goroutines.
type Meter struct {
	objects bpf.SharedObjects

	mu        sync.Mutex // guards all below
	sums      slots.Sums
	running   slots.Sums
	width     uint32 // slots in a row
	owners    *slots.Table
	files     map[File]uint32
	processes map[int]*process
	rows      []uint32 // free
	watches   uint32
	links     []link.Link
	taken     map[uint32]time.Duration // of processes that are not watched any more
	broken    error                    // of their last division
}

// New loads the kernel programs. They are attached, and cost something, only while
// something is watched. A kernel that cannot is a kernel.UnsupportedError.
func New() (*Meter, error) {
	m := &Meter{files: make(map[File]uint32), processes: make(map[int]*process), taken: make(map[uint32]time.Duration)}
	if err := m.load(); err != nil {
		m.objects.Close()
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = &kernel.UnsupportedError{Feature: "BPF at system calls with storage for tasks", MinVersion: "5.15"}
		}
		return nil, fmt.Errorf("load the programs of shared daemons: %w", err)
	}
	return m, nil
}

func (m *Meter) load() error {
	if err := features.HaveMapType(ebpf.TaskStorage); err != nil {
		return err
	}
	spec, err := bpf.LoadShared()
	if err != nil {
		return err
	}
	calls := spec.Variables["call_by_number"]
	if err := calls.Set(callByNumber(calls.Size())); err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	spec.Maps["running"].MaxEntries *= uint32(cpus)
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return err
	}
	rows := m.objects.ProcessByTgid.MaxEntries()
	m.width = m.objects.Spent.MaxEntries() / rows
	for r := range rows {
		m.rows = append(m.rows, r)
	}
	m.owners = slots.NewTable(uint32(bpf.SharedOwnerSlotSLOT_FIRST), m.width)
	if err := m.ownAnonymous(); err != nil {
		return err
	}
	if m.sums, err = slots.Map(m.objects.Spent); err != nil {
		return err
	}
	m.running, err = slots.Map(m.objects.Running)
	return err
}

// key has the device as the kernel keeps it, not as stat tells it.
func key(f File) bpf.SharedOwnedFile {
	return bpf.SharedOwnedFile{Ino: f.Ino, Dev: unix.Major(f.Dev)<<20 | unix.Minor(f.Dev)}
}

// Own makes work on a file the owner's: that of any watched process, from now on.
// The file may be a regular file, a pipe or a socket. What was owned by another
// owner is this one's now. Owner 0 is nobody: see Disown.
//
// A directory owns what is directly in it and has no owner itself.
func (m *Meter) Own(file File, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slot, err := m.owners.Hold(owner)
	if err == nil {
		err = m.objects.SlotByFile.Put(key(file), slot)
	}
	if err != nil {
		m.owners.Release(owner)
		return fmt.Errorf("own file %d of device %d: %w", file.Ino, file.Dev, err)
	}
	m.owners.Release(m.files[file])
	m.files[file] = owner
	return nil
}

// Disown makes work on a file nobody's. The inode number of a file that is gone
// comes back with another file: disown files that go.
func (m *Meter) Disown(file File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner, known := m.files[file]
	if !known {
		return nil
	}
	if err := m.objects.SlotByFile.Delete(key(file)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("disown file %d of device %d: %w", file.Ino, file.Dev, err)
	}
	delete(m.files, file)
	m.owners.Release(owner)
	return nil
}

// Take returns what the watched processes have spent since the last Take, by
// owner. 0 is the daemons themselves: files that nobody owns. Up to 500 ms of a
// process are left for the next time if no event tells yet whose they are. More than
// that of a thread that computes on is its owner's whom the last event told; what no
// event has told of yet is divided as the rest is. An error is of some process, and what
// the others have spent is returned with it.
func (m *Meter) Take() (map[uint32]time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.broken
	for _, p := range m.processes {
		switch e := p.divide(m.owners, m.taken, false); {
		case errors.Is(e, os.ErrProcessDone):
			err = errors.Join(err, m.forget(p))
		case e != nil:
			err = errors.Join(err, e)
		}
	}
	m.owners.Sweep()
	taken := m.taken
	m.taken, m.broken = make(map[uint32]time.Duration), nil
	return taken, err
}

// Processes returns what each watched process has spent, as far as it is divided.
func (m *Meter) Processes() []Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Process, 0, len(m.processes))
	for _, p := range m.processes {
		list = append(list, p.total)
	}
	return list
}

// Close detaches everything, which then costs nothing.
func (m *Meter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.detach()
	for _, p := range m.processes {
		err = errors.Join(err, p.of.Close())
	}
	clear(m.processes)
	for _, s := range []*slots.Sums{&m.sums, &m.running} {
		if *s != nil {
			err = errors.Join(err, s.Unmap())
			*s = nil
		}
	}
	return errors.Join(err, m.objects.Close())
}
