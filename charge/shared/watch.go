package shared

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tsugiki/tsugiki/bpf"
)

// Watch divides the CPU time of all threads of a process from now on, until the process ends. pid
// is the leader of the thread group.
func (m *Meter) Watch(pid int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sums == nil {
		return fmt.Errorf("watch process %d: %w", pid, os.ErrClosed)
	}
	if old := m.processes[pid]; old != nil {
		if _, err := old.of.Elapsed(); !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		if err := m.part(old); err != nil {
			return err
		}
	}
	if len(m.rows) == 0 {
		return fmt.Errorf("watch process %d: %w", pid, ErrProcesses)
	}
	row := m.rows[0]
	m.watches++
	p, err := openProcess(pid, row, source{
		sums: m.sums[row*m.width : (row+1)*m.width], running: m.running, watch: m.watches, now: monotonic,
	})
	if err != nil {
		return err
	}
	m.rows = m.rows[1:]
	m.processes[pid] = p
	err = m.objects.ProcessByTgid.Put(uint32(pid), bpf.SharedWatchedProcess{Row: row, Watch: m.watches})
	for _, step := range []func() error{func() error { return m.ownPipes(p) }, m.setBits, m.attach} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		err = fmt.Errorf("watch process %d: %w", pid, err)
		return errors.Join(err, m.forget(p))
	}
	return nil
}

// Unwatch ends a watch. The next Take returns the time that is not taken yet.
func (m *Meter) Unwatch(pid int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.processes[pid]
	if p == nil {
		return nil
	}
	return m.part(p)
}

// part divides the rest of a process's time and ends the watch. The caller holds m.mu.
func (m *Meter) part(p *process) error {
	if err := p.divide(m.owners, m.taken, true); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.broken = errors.Join(m.broken, err)
	}
	return m.forget(p)
}

// forget ends a watch. The caller holds m.mu.
func (m *Meter) forget(p *process) error {
	err := m.objects.ProcessByTgid.Delete(uint32(p.pid))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	err = errors.Join(err, m.forgetPipes(p), p.of.Close())
	delete(m.processes, p.pid)
	m.rows = append(m.rows, p.row)
	if err := errors.Join(err, m.setBits()); err != nil {
		return fmt.Errorf("forget process %d: %w", p.pid, err)
	}
	if len(m.processes) == 0 {
		return m.detach()
	}
	return nil
}

// setBits sets the bits by which the kernel programs skip system calls of other processes. The
// caller holds m.mu.
func (m *Meter) setBits() error {
	words := make([]uint64, m.objects.WatchedBits.Size()/8)
	for pid := range m.processes {
		bit := pid % (len(words) * 64)
		words[bit/64] |= 1 << (bit % 64)
	}
	return m.objects.WatchedBits.Set(words)
}

// attach attaches the kernel programs. The program at switches is first, because it ends open time.
// The caller holds m.mu.
func (m *Meter) attach() error {
	if len(m.links) > 0 {
		return nil
	}
	for _, p := range []*ebpf.Program{m.objects.SharedSwitch, m.objects.SharedExit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %w", p, err), m.detach())
		}
		m.links = append(m.links, l)
	}
	return nil
}

func (m *Meter) detach() error {
	var err error
	for _, l := range m.links {
		err = errors.Join(err, l.Close())
	}
	m.links = nil
	return err
}
