// Package shared divides the CPU time of a daemon that works for many containers among those
// containers, by the files that the daemon reads and writes.
//
// The total is the exact CPU clock of the process. The parts come from events in the kernel: the
// end of each system call of a watched process, and each switch of its threads (bpf/shared.bpf.c
// has the details). Time that belongs to no single owner, such as the search for the next thing to
// do, is divided in proportion. The work of io_uring, and work on files without an owner, is
// divided in the same way or is the daemon's own.
//
// The package does not find daemons or files, and charges nobody. It needs CAP_BPF, CAP_PERFMON and
// CAP_SYS_PTRACE; Linux 5.15 with BTF, on x86-64 or arm64. While a process is watched, every system
// call on the machine costs about ten nanoseconds more, or over a hundred on processors with
// expensive mitigations.
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

// ErrProcesses says that the largest possible number of daemons is watched already.
var ErrProcesses = errors.New("too many processes")

// File identifies a file by st_dev and st_ino of stat(2). On btrfs and overlayfs the kernel has
// another device than stat(2): see Identify.
type File struct {
	Dev, Ino uint64
}

// Process has the CPU time of a watched process since Watch.
type Process struct {
	PID     int
	CPU     time.Duration // divided so far
	Unowned time.Duration // the part of CPU without an owner
}

// Meter divides the CPU time of watched processes. Several goroutines may call its methods.
type Meter struct {
	objects bpf.SharedObjects

	mu        sync.Mutex // guards the fields below
	sums      slots.Sums
	running   slots.Sums
	width     uint32 // slots in a row
	owners    *slots.Table
	files     map[File]uint32
	processes map[int]*process
	rows      []uint32 // free rows
	watches   uint32
	links     []link.Link
	taken     map[uint32]time.Duration // of processes that are no longer watched
	broken    error                    // of the last division of such processes
}

// New loads the kernel programs. They are attached, and cost CPU time, only while a process is
// watched. On a kernel without the features the error is a kernel.UnsupportedError.
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

// key returns the kernel's form of a file's identity: the kernel encodes the device otherwise than
// stat(2).
func key(f File) bpf.SharedOwnedFile {
	return bpf.SharedOwnedFile{Ino: f.Ino, Dev: unix.Major(f.Dev)<<20 | unix.Minor(f.Dev)}
}

// Own makes owner the owner of a file: work of any watched process on the file is charged to the
// owner from now on. The file may be a regular file, a pipe or a socket. Own replaces an earlier
// owner. Owner 0 means none and is refused: see Disown.
//
// A directory makes its direct children owned, and is not owned itself.
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

// Disown removes the owner of a file, unless the file has another owner by now. The kernel gives the
// inode number of a deleted file to another file, so disown files that are deleted.
func (m *Meter) Disown(file File, owner uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[file] != owner {
		return nil
	}
	if err := m.objects.SlotByFile.Delete(key(file)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("disown file %d of device %d: %w", file.Ino, file.Dev, err)
	}
	delete(m.files, file)
	m.owners.Release(owner)
	return nil
}

// Take returns the CPU time of the watched processes since the last Take, by owner. Owner 0 is the
// time without an owner. Up to 500 ms of a process wait for a later Take if no event tells yet
// whose they are. If a thread computes for longer, the time above that goes to the owner of its
// last event. Time without any event is divided in proportion. After an error of one process, the
// result still has the time of the others.
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

// Processes returns the divided CPU time of each watched process.
func (m *Meter) Processes() []Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Process, 0, len(m.processes))
	for _, p := range m.processes {
		list = append(list, p.total)
	}
	return list
}

// Close detaches the kernel programs, which then cost nothing, and frees everything.
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
