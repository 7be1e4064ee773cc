// Package softirq measures what the kernel spends on receiving packets, by the
// container that they are for, and by the container whose time it took.
//
// Packets are received in softirqs, on top of whatever task happens to run, to
// which the kernel bills them; a kernel with CONFIG_IRQ_TIME_ACCOUNTING bills them
// to nobody. bpf/softirq.bpf.c says how the time is cut into pieces, and what is
// left out: threaded NAPI, and packets that a task feeds in (tun).
//
// It does not know containers, only what is registered: network interfaces in
// namespaces, cgroups whose sockets are a container's, and groups of the cpu
// controller. It charges nobody. It takes CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN;
// Linux 5.15 with BTF. While anything is registered, softirqs and received packets
// cost more, machine-wide: some ten nanoseconds each, or some hundred where the
// processor's mitigations are dear.
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

// Work is time spent on receiving.
type Work struct {
	For    time.Duration // for the owner, whoever it was billed to
	Own    time.Duration // of For: billed to the owner by the kernel already
	Credit time.Duration // billed to the owner by the kernel, but for somebody else
}

// Charge is what the owner owes for it: negative if the kernel billed it too much.
func (w Work) Charge() time.Duration { return w.For - w.Own - w.Credit }

// Meter measures. Its methods may be called by several goroutines.
type Meter struct {
	objects bpf.SoftirqObjects
	billed  bool

	mu         sync.Mutex // guards all below
	sums       slots.Sums
	seen       []uint64 // sums at the last Take
	owners     *slots.Table
	interfaces map[bpf.SoftirqReceiveDevice]uint32
	cpuGroups  map[uint64]uint32
	groups     map[uint64]group
	links      []link.Link
}

// New loads the kernel programs. They are attached, and cost something, only while
// something is registered. A kernel that cannot is a kernel.UnsupportedError.
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

// billed tells whether this kernel bills softirqs to the tasks that they interrupt.
// A runqueue counts them apart if it is built with CONFIG_IRQ_TIME_ACCOUNTING,
// unless the machine's clock is too slow for that or the command line forbids it.
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

// since is what was added to a sum since the last Take. m.mu is held.
func (m *Meter) since(i uint32) time.Duration {
	sum := atomic.LoadUint64(&m.sums[i])
	ns := sum - m.seen[i]
	m.seen[i] = sum
	return time.Duration(ns)
}

// Close detaches everything, which then costs nothing.
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

// attach begins measuring. m.mu is held.
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

// rest ends measuring if there is nothing left to measure. m.mu is held.
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
