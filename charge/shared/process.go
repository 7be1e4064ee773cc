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
	row   uint32        // the row of its sums
	seen  []uint64      // the sums at the last division
	at    time.Duration // the time of the last division
	clock time.Duration // the clock at the last division
	total Process
	wakes []File // pipes by which the process wakes itself
	division
}

// source has the kernel's data about a process. Tests simulate it.
type source struct {
	of      cpuClock
	sums    slots.Sums // counted times, by slot
	running slots.Sums // what each CPU does now
	watch   uint32     // the number of this watch in running
	now     func() time.Duration
}

// cpuClock is a process's CPU clock. helper.Process implements it.
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

// native returns an error for a program of a 32-bit ABI: its system calls have other numbers.
func native(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return err // a kernel thread has no program
	}
	defer f.Close()
	var ident [5]byte
	if _, err := io.ReadFull(f, ident[:]); err != nil {
		return err
	}
	if ident[4] != 2 { // ELFCLASS64
		return errors.New("the program does not have the native ABI")
	}
	return nil
}

// divide adds the process's CPU time since the last division to its owners' sums. If last is set or
// the process has ended, nothing is left for later. If the process has ended, divide returns
// os.ErrProcessDone after that.
func (p *process) divide(owners *slots.Table, to map[uint32]time.Duration, last bool) error {
	now, err := p.of.Elapsed()
	gone := errors.Is(err, os.ErrProcessDone)
	if err != nil && !gone {
		return err
	}
	m := p.read(owners)
	gained := now - p.clock
	if gone { // the clock is gone, too: only the counts have the last part
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

// read returns the counts since the last division. It reads the running words before the sums: if a
// thread is counted in between, its time is in both and counts twice until the next division. In
// the other order it would be in neither.
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

// since returns by how much a sum grew since the last call.
func (p *process) since(slot uint32) time.Duration {
	sum := atomic.LoadUint64(&p.sums[slot])
	ns := sum - p.seen[slot]
	p.seen[slot] = sum
	return time.Duration(ns)
}
