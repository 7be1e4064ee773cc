package marks

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
)

// patience is how much CPU time may be left for a later Take, because the marks do
// not tell yet whose it is: a thread is accounted at its next mark.
const patience = 20 * time.Millisecond

// process is a watched daemon.
type process struct {
	pid   int
	fd    int // pidfd
	row   uint32
	sums  slots.Sums // its row
	seen  []uint64   // sums at the last division
	clock time.Duration
	// rest is CPU time that is not divided yet.
	rest  time.Duration
	total Process
}

func openProcess(pid int, row uint32, sums slots.Sums) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: fd, row: row, sums: sums, total: Process{PID: pid}}
	if err = native(pid); err == nil {
		p.clock, err = p.elapsed()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p.seen = make([]uint64, len(sums))
	for i := range sums {
		p.seen[i] = atomic.LoadUint64(&sums[i])
	}
	return p, nil
}

func (p *process) close() { unix.Close(p.fd) }

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

// elapsed is the CPU time of all threads that the process has and had, or
// os.ErrProcessDone.
func (p *process) elapsed() (time.Duration, error) {
	const cpuClockSched = 2 // of the process, in linux/posix-timers.h
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^p.pid<<3|cpuClockSched), &ts)
	// Another process may have the number by now.
	if gone := unix.PidfdSendSignal(p.fd, 0, nil, 0); errors.Is(gone, unix.ESRCH) {
		return 0, os.ErrProcessDone
	}
	if err != nil {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", p.pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// divide adds what the process has spent since the last time to its owners' sums.
// It returns os.ErrProcessDone, having divided everything, if that was the last time.
func (p *process) divide(owners *slots.Table, to map[uint32]time.Duration) error {
	own := p.since(uint32(bpf.MarksMarkSlotMARK_OWN))
	owned, marked := own, own+p.since(uint32(bpf.MarksMarkSlotMARK_OVERHEAD))
	weights := make(map[uint32]time.Duration)
	for owner, slot := range owners.All() {
		if w := p.since(slot); w > 0 {
			weights[owner] = w
			owned, marked = owned+w, marked+w
		}
	}
	now, err := p.elapsed()
	switch {
	case errors.Is(err, os.ErrProcessDone):
		p.rest = max(p.rest, marked) // its clock went with it: the marks know the last bit
	case err != nil:
		return err
	default:
		p.rest += now - p.clock
		p.clock = now
	}
	due := min(p.rest, marked)
	if left := p.rest - due; err != nil {
		due = p.rest
	} else if left > patience {
		due += left - patience
	}
	given := due
	for owner, w := range weights {
		part := share(due, w, owned)
		to[owner] += part
		given -= part
	}
	// What is left is the daemon's own, and all of it if nobody gave it work; and some
	// nanoseconds of the division.
	to[0] += given
	p.rest -= due
	p.total.CPU += due
	p.total.Unowned += given
	return err
}

// since is what was added to a sum since the last time.
func (p *process) since(slot uint32) time.Duration {
	sum := atomic.LoadUint64(&p.sums[slot])
	ns := sum - p.seen[slot]
	p.seen[slot] = sum
	return time.Duration(ns)
}

// share is due·part/all, where part is not more than all.
func share(due, part, all time.Duration) time.Duration {
	high, low := bits.Mul64(uint64(due), uint64(part))
	q, _ := bits.Div64(high, low, uint64(all))
	return time.Duration(q)
}
