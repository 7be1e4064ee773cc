package enforcer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/watch"
	"github.com/tsugiki/tsugiki/policy"
)

// Reports of the programs about a container whose loopback is on the host (bpf/trace.h).

const (
	// traceBytes is TRACE_BYTES of the BPF programs.
	traceBytes = 1 << 16
	// traceBatch is the number of decisions that are read at a time: all for which there is room.
	traceBatch = traceBytes / int(unsafe.Sizeof(bpf.PolicyDecision{}))
	// endpointsMax is ENDPOINTS_MAX of the BPF programs.
	endpointsMax = 256
)

// callNames are the names of the BPF programs' enum decided_call.
var callNames = [...]string{"connect", "send", "listen"}

// Trace reads a container's decisions.
type Trace struct {
	e      *Enforcement
	number uint32 // in each of its decisions
	reader *ringbuf.Reader
	file   *os.File // the ring buffer
	watch  *watch.Watch
	tell   func(list []policy.Decision, lost uint64)
	lost   uint64 // reported, since the container's beginning
	clocks func() moment
}

// Trace calls tell with the decisions of the kernel programs about connects and datagrams from now
// on, and with the number of decisions for which there was no room. Calls do not overlap. There is
// one trace at a time.
//
// A trace takes 64 KiB of kernel memory and four descriptors. It needs the privileges of Enforce.
func (e *Enforcement) Trace(tell func(list []policy.Decision, lost uint64)) (*Trace, error) {
	return e.traceBy(clocks, tell)
}

// traceBy is Trace with the clocks that tell a decision's time.
func (e *Enforcement) traceBy(clocks func() moment, tell func(list []policy.Decision, lost uint64)) (*Trace, error) {
	t := &Trace{e: e, number: rand.Uint32() | 1, tell: tell, clocks: clocks}
	if err := t.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("trace kernel programs: %w", err), t.Stop())
	}
	return t, nil
}

func (t *Trace) begin() error {
	counts, err := t.e.counts()
	if err != nil {
		return err
	}
	t.lost = counts.Unreported
	if err := t.e.makeTable(traceTable); err != nil {
		return err
	}
	ring := t.e.tables.ring
	if t.reader, err = ringbuf.NewReader(ring); err != nil {
		return err
	}
	t.reader.SetDeadline(time.Unix(0, 0)) // it never waits
	fd, err := unix.FcntlInt(uintptr(ring.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.file = os.NewFile(uintptr(fd), "ring buffer")
	if t.watch, err = watch.Start(t.file, func() bool { t.read(); return true }); err != nil {
		return err
	}
	return t.e.change(func(c *bpf.PolicyContainer) { c.Traced = t.number })
}

// Stop ends the calls of tell. The last call has the decisions from before Stop.
func (t *Trace) Stop() error {
	err := t.e.change(func(c *bpf.PolicyContainer) { c.Traced = 0 })
	if t.watch != nil {
		t.watch.Stop()
		t.watch.Wait()
		t.read()
	}
	if t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	if t.reader != nil {
		err = errors.Join(err, t.reader.Close())
	}
	return errors.Join(err, t.e.dropTable(traceTable))
}

// read reports the contents of the ring buffer. It reads again if programs fill the buffer
// meanwhile.
func (t *Trace) read() {
	var list []policy.Decision
	var record ringbuf.Record
	now := t.clocks()
	for range traceBatch {
		if t.reader.ReadInto(&record) != nil {
			break
		}
		var row bpf.PolicyDecision
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &row); err == nil && row.Traced == t.number {
			list = append(list, now.decision(&row))
		}
	}
	var lost uint64
	if counts, err := t.e.counts(); err == nil {
		lost, t.lost = counts.Unreported-t.lost, counts.Unreported
	}
	if len(list) > 0 || lost > 0 {
		t.tell(list, lost)
	}
}

// moment is one time by two clocks.
type moment struct {
	wall      time.Time
	monotonic time.Duration
}

// clocksTries is how often clocks reads both clocks, if something comes between.
const clocksTries = 10

// clocks reads both clocks until nothing comes between the two readings, or takes the best pair.
func clocks() (best moment) {
	least := time.Duration(math.MaxInt64)
	for i := 0; i < clocksTries && least > time.Microsecond; i++ {
		before := monotonic()
		wall := time.Now()
		if between := monotonic() - before; between < least {
			least, best = between, moment{wall, before + between/2}
		}
	}
	return best
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every kernel has it
	return time.Duration(ts.Nano())
}

func (m moment) decision(row *bpf.PolicyDecision) policy.Decision {
	d := policy.Decision{
		Time: m.wall.Add(time.Duration(row.Time) - m.monotonic), Thread: int(row.Thread), Syscall: callNames[row.Call],
		Socket: row.Socket, Protocol: int(row.Protocol), Endpoint: int(row.Endpoint), Errno: syscall.Errno(row.Errno),
		Asked: netip.AddrPortFrom(addrOf(row.Asked).Unmap(), row.AskedPort),
		Led:   netip.AddrPortFrom(addrOf(row.Led).Unmap(), row.LedPort),
	}
	if d.Endpoint >= endpointsMax {
		d.Endpoint = -1
	}
	return d
}

// dropTable removes a table of the container. If there is one, that takes a grace period of the
// kernel.
func (e *Enforcement) dropTable(kind int) error {
	e.making.Lock()
	defer e.making.Unlock()
	table := e.tables.all()[kind]
	if *table == nil {
		return nil
	}
	e.entering.Wait()
	err := e.set.outer()[kind].Delete(placeOf(e.id))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil // the container has ended
	}
	err = errors.Join(err, (*table).Close())
	*table = nil
	return err
}

// endFormerTrace ends the trace of a former process.
func (e *Enforcement) endFormerTrace() error {
	if e.own.row.Traced == 0 && e.tables.ring == nil {
		return nil
	}
	err := e.change(func(c *bpf.PolicyContainer) { c.Traced = 0 })
	return errors.Join(err, e.dropTable(traceTable))
}
