package marks

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
	pid   int
	of    *helper.Process
	row   uint32
	sums  slots.Sums // its row
	seen  []uint64   // sums at the last division
	at    time.Time  // of the last division
	clock time.Duration
	total Process
	division
}

func openProcess(pid int, row uint32, sums slots.Sums) (*process, error) {
	of, err := helper.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("watch process: %w", err)
	}
	p := &process{pid: pid, of: of, row: row, sums: sums, at: time.Now(), total: Process{PID: pid}}
	if err = native(pid); err == nil {
		p.clock, err = of.Elapsed()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch process %d: %w", pid, err), of.Close())
	}
	p.seen = make([]uint64, len(sums))
	for i := range sums {
		p.seen[i] = atomic.LoadUint64(&sums[i])
	}
	return p, nil
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
	overhead := p.since(uint32(bpf.MarksMarkSlotMARK_OVERHEAD))
	marked, sum := map[uint32]time.Duration{0: p.since(uint32(bpf.MarksMarkSlotMARK_OWN))}, overhead
	for owner, slot := range owners.All() {
		if d := p.since(slot); d > 0 {
			marked[owner] = d
			sum += d
		}
	}
	gained := now - p.clock
	if gone { // and its clock with it: the marks know the last bit
		gained = max(sum+marked[0]-p.rest, 0)
	}
	p.clock = now
	at := time.Now()
	for owner, d := range p.step(gained, at.Sub(p.at), marked, overhead, last || gone) {
		to[owner] += d
		p.total.CPU += d
		if owner == 0 {
			p.total.Unowned += d
		}
	}
	p.at = at
	return err
}

// since is what was added to a sum since the last time.
func (p *process) since(slot uint32) time.Duration {
	sum := atomic.LoadUint64(&p.sums[slot])
	ns := sum - p.seen[slot]
	p.seen[slot] = sum
	return time.Duration(ns)
}
