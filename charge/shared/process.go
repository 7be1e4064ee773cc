package shared

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/helper"
	"github.com/tsugiki/tsugiki/charge/slots"
)

// process is a watched daemon.
type process struct {
	source
	pid   int
	row   uint32        // of its sums
	seen  []uint64      // sums at the last division
	at    time.Duration // of the last division
	clock time.Duration // at the last division
	total Process
	wakes []File // pipes by which it wakes itself
	division
}

// source is what the kernel tells of a process. In tests a simulation fills it.
type source struct {
	of      cpuClock
	sums    slots.Sums // of what is counted, by slot
	running slots.Sums // what each CPU does now
	watch   uint32     // how this watch is called there
	now     func() time.Duration
}

// cpuClock is a process's CPU clock: a helper.Process.
type cpuClock interface {
	Elapsed() (time.Duration, error)
	Close() error
}

func openProcess(pid int, row uint32, from source) (*process, error) {
	of, err := helper.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("watch process: %w", err)
	}
	if err = native(pid); err == nil {
		from.of = of
		var p *process
		if p, err = newProcess(pid, row, from); err == nil {
			return p, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("watch process %d: %w", pid, err), of.Close())
}

func newProcess(pid int, row uint32, from source) (*process, error) {
	p := &process{source: from, pid: pid, row: row, seen: make([]uint64, len(from.sums)), at: from.now(), total: Process{PID: pid}}
	for i := range from.sums {
		p.seen[i] = atomic.LoadUint64(&from.sums[i])
	}
	var err error
	p.clock, err = from.of.Elapsed()
	return p, err
}

// native refuses programs of a 32-bit ABI, whose system calls have other numbers.
func native(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return err // a kernel thread has none
	}
	defer f.Close()
	var ident [5]byte
	if _, err := io.ReadFull(f, ident[:]); err != nil {
		return err
	}
	if ident[4] != 2 { // ELFCLASS64
		return errors.New("its program is not of the native ABI")
	}
	return nil
}

// divide adds what the process has spent since the last time to its owners' sums,
// and leaves nothing undivided if that is the last time. It returns
// os.ErrProcessDone, having done that, if the process has ended.
func (p *process) divide(owners *slots.Table, to map[uint32]time.Duration, last bool) error {
	now, err := p.of.Elapsed()
	gone := errors.Is(err, os.ErrProcessDone)
	if err != nil && !gone {
		return err
	}
	m := p.read(owners)
	gained := now - p.clock
	if gone { // and its clock with it: the counts have the last bit
		gained = max(m.sum()-p.ahead()-p.rest, 0)
	}
	p.clock = now
	at := p.now()
	for owner, d := range p.step(gained, at-p.at, m, last || gone) {
		to[owner] += d
		p.total.CPU += d
		if owner == 0 {
			p.total.Unowned += d
		}
	}
	p.at = at
	return err
}

// read returns what was counted since the last time. What a CPU does now is read
// first: a thread that is accounted in between is in the sums, and then counts twice
// until the next time, not never.
func (p *process) read(owners *slots.Table) counts {
	open := openTime(p.running, p.watch, p.now())
	m := counts{overhead: p.since(uint32(bpf.SharedOwnerSlotSLOT_OVERHEAD)), of: map[uint32]time.Duration{}, open: map[uint32]time.Duration{}}
	add := func(owner, slot uint32) {
		if d := p.since(slot); d > 0 {
			m.of[owner] = d
		}
		if d := open[slot]; d > 0 {
			m.open[owner] = d
		}
	}
	add(0, uint32(bpf.SharedOwnerSlotSLOT_OWN))
	for owner, slot := range owners.All() {
		add(owner, slot)
	}
	return m
}

// since is what was added to a sum since the last time.
func (p *process) since(slot uint32) time.Duration {
	sum := atomic.LoadUint64(&p.sums[slot])
	ns := sum - p.seen[slot]
	p.seen[slot] = sum
	return time.Duration(ns)
}
