// Package softirq measures the CPU time that the kernel spends on receiving packets. It measures
// the time for the container that gets the packets, and the time of the container that the kernel
// billed for it.
//
// The kernel receives packets in softirqs, which interrupt any running task. It bills the time to
// that task, or to no task with CONFIG_IRQ_TIME_ACCOUNTING. bpf/softirq.bpf.c explains how the time
// is divided among packets, and what is not measured: threaded NAPI, and packets that a task sends
// into a tun device.
//
// The package does not know containers. It knows the registered network interfaces, cgroups whose
// sockets belong to a container, and groups of the cpu controller. It charges nobody. It needs
// CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; Linux 5.15 with BTF. While anything is registered, each
// softirq and each received packet on the machine costs about ten nanoseconds more, or some hundred
// on processors with expensive mitigations.
package softirq

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

// Work is CPU time spent on receiving, for one owner.
type Work struct {
	For    time.Duration // for the owner's packets, no matter who was billed
	Own    time.Duration // the part of For that the kernel billed to the owner
	Credit time.Duration // for others' packets, but billed to the owner
}

// Charge returns the CPU time that the owner owes. It is negative if the kernel billed the owner
// too much.
func (w Work) Charge() time.Duration { return w.For - w.Own - w.Credit }

// Meter measures the receiving of packets. Several goroutines may call its methods.
type Meter struct {
	objects bpf.SoftirqObjects
	billed  bool

	mu         sync.Mutex // guards the fields below
	sums       slots.Sums
	seen       []uint64 // the sums at the last Take
	owners     *slots.Table
	interfaces map[bpf.SoftirqReceiveDevice]uint32
	cpuGroups  map[uint64]uint32
	groups     map[uint64]group
	links      []link.Link
}

// New loads the kernel programs. They are attached, and cost CPU time, only while something is
// registered. On a kernel without the features the error is a kernel.UnsupportedError.
func New() (*Meter, error) {
	m := &Meter{
		interfaces: make(map[bpf.SoftirqReceiveDevice]uint32),
		cpuGroups:  make(map[uint64]uint32),
		groups:     make(map[uint64]group),
	}
	if err := m.load(); err != nil {
		m.objects.Close()
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = &kernel.UnsupportedError{Feature: "BPF at softirqs and packets", MinVersion: "5.15"}
		}
		return nil, fmt.Errorf("load the programs at softirqs: %w", err)
	}
	return m, nil
}

func (m *Meter) load() error {
	spec, err := bpf.LoadSoftirq()
	if err != nil {
		return err
	}
	if m.billed, err = billed(); err != nil {
		return err
	}
	if err := spec.Variables["billed"].Set(m.billed); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return err
	}
	m.owners = slots.NewTable(uint32(bpf.SoftirqReceiveSlotRECEIVE_FIRST), m.objects.WorkBySlot.MaxEntries())
	if m.sums, err = slots.Map(m.objects.WorkBySlot); err != nil {
		return err
	}
	m.seen = make([]uint64, len(m.sums))
	return nil
}

// billed tells whether this kernel bills softirqs to the tasks that they interrupt. A kernel with
// CONFIG_IRQ_TIME_ACCOUNTING counts them separately in each runqueue, unless the machine's clock is
// too slow or the command line forbids it.
func billed() (bool, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return false, err
	}
	var rq *btf.Struct
	if err := types.TypeByName("rq", &rq); err != nil {
		return false, err
	}
	for _, member := range rq.Members {
		if member.Name == "prev_irq_time" {
			line, err := os.ReadFile("/proc/cmdline")
			return strings.Contains(string(line), "noirqtime"), err
		}
	}
	return true, nil
}

// Billed tells whether the kernel bills receiving to the tasks that it interrupts.
// If not, Own and Credit are 0.
func (m *Meter) Billed() bool { return m.billed }

// Take returns the work since the last Take, by owner.
func (m *Meter) Take() (map[uint32]Work, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sums == nil {
		return nil, fmt.Errorf("take the work at softirqs: %w", os.ErrClosed)
	}
	taken := make(map[uint32]Work)
	for owner, slot := range m.owners.All() {
		// As in struct receive_work.
		if w := (Work{m.since(3 * slot), m.since(3*slot + 1), m.since(3*slot + 2)}); w != (Work{}) {
			taken[owner] = w
		}
	}
	m.owners.Sweep()
	return taken, nil
}

// since returns by how much a sum grew since the last Take. The caller holds m.mu.
func (m *Meter) since(i uint32) time.Duration {
	sum := atomic.LoadUint64(&m.sums[i])
	ns := sum - m.seen[i]
	m.seen[i] = sum
	return time.Duration(ns)
}

// Close detaches the kernel programs, which then cost nothing, and frees everything.
func (m *Meter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.detach()
	for id, g := range m.groups {
		err = errors.Join(err, g.link.Close())
		delete(m.groups, id)
	}
	if m.sums != nil {
		err = errors.Join(err, m.sums.Unmap())
		m.sums = nil
	}
	return errors.Join(err, m.objects.Close())
}

// attach starts measuring. The caller holds m.mu.
func (m *Meter) attach() error {
	if len(m.links) > 0 {
		return nil
	}
	for _, p := range []*ebpf.Program{
		m.objects.ReceiveEnd, m.objects.ReceivePacket, m.objects.ReceiveHanded, m.objects.ReceiveBegin,
	} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %w", p, err), m.detach())
		}
		m.links = append(m.links, l)
	}
	return nil
}

// rest stops measuring if nothing is registered that needs it. The caller holds m.mu.
func (m *Meter) rest() error {
	if len(m.interfaces)+len(m.groups) > 0 {
		return nil
	}
	return m.detach()
}

func (m *Meter) detach() error {
	var err error
	for _, l := range m.links {
		err = errors.Join(err, l.Close())
	}
	m.links = nil
	return err
}
