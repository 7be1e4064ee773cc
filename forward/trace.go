package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// A trace has a ring buffer, which the kernel programs find by the pod, and a flag in the pod's row.
// Who traces holds the lock of a folder beside the table: what a killed process has left is found by
// the lock that nobody holds. The next trace of the pod removes it, as do Sweep and Remove.

// ErrTraced says that another process traces the pod.
var ErrTraced = errors.New("somebody else traces the pod; wait for the end of that")

// Packet is one that a traced pod has sent.
type Packet struct {
	Time      time.Time
	Reason    Reason
	Length    int // of the frame, or of all segments that the kernel keeps together
	EtherType uint16
	From, To  netip.Addr // zero where the frame has no whole IP header
	Protocol  uint8      // that of Ports; 0 if there are none
	FromPort  uint16     // of an echo: its identifier
	ToPort    uint16
	FromMAC   net.HardwareAddr
	ToMAC     net.HardwareAddr
}

// tracePrefix is that of the folders of traces, which end in the pod's device.
const tracePrefix = "trace-"

// traceInterval is how often a trace looks whether the pod is still there.
const traceInterval = time.Second

// Trace calls a function for each packet that a pod sends from now on, until the context ends or the
// pod is removed. It returns how many packets more there were, for which the buffer of 256 KiB had
// no room. An error is ErrUnknown, ErrTraced, or the kernel's.
func (t *Table) Trace(ctx context.Context, device int, tell func(Packet)) (lost uint64, err error) {
	reader, held, err := t.beginTrace(device)
	if err != nil {
		return 0, fmt.Errorf("trace pod of link %d: %w", device, err)
	}
	defer func() {
		end := t.locked(func() error { return t.endTrace(device) })
		err = errors.Join(err, end, reader.Close(), held.Close())
	}()
	stop := context.AfterFunc(ctx, func() { _ = reader.Flush() }) // what is in the buffer is read first
	defer stop()
	for {
		reader.SetDeadline(time.Now().Add(traceInterval))
		record, err := reader.Read()
		switch {
		case errors.Is(err, ringbuf.ErrFlushed):
			return t.untold(device)
		case errors.Is(err, os.ErrDeadlineExceeded):
			if ctx.Err() != nil {
				return t.untold(device)
			}
			if _, err := t.Pod(device); err != nil {
				return lost, ignore(err, ErrUnknown)
			}
			if lost, err = t.untold(device); err != nil {
				return lost, err
			}
			continue
		case err != nil:
			return 0, fmt.Errorf("read packets: %w", err)
		}
		p, err := packetOf(record.RawSample)
		if err != nil {
			return 0, err
		}
		tell(p)
	}
}

func packetOf(raw []byte) (Packet, error) {
	var r bpf.ForwardTold
	if _, err := binary.Decode(raw, binary.NativeEndian, &r); err != nil || int(r.Why) >= len(Reasons) {
		return Packet{}, fmt.Errorf("the kernel program tells of a packet %x: %w", raw, err)
	}
	p := Packet{
		Time: timeOf(r.Time), Reason: Reasons[r.Why], Length: int(r.Length), EtherType: r.Ethertype,
		Protocol: r.Upper, FromPort: r.FromPort, ToPort: r.ToPort, FromMAC: r.FromMac[:], ToMAC: r.ToMac[:],
	}
	if r.From != (bpf.ForwardPodAddr{}) || r.To != (bpf.ForwardPodAddr{}) {
		p.From, p.To = addrOf(r.From), addrOf(r.To)
	}
	return p, nil
}

// timeOf is the time of the kernel's CLOCK_MONOTONIC, in nanoseconds.
func timeOf(monotonic uint64) time.Time {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // never fails
	return time.Now().Add(time.Duration(int64(monotonic) - now.Nano()))
}

func (t *Table) traceFolder(device int) string {
	return filepath.Join(t.dir, tracePrefix+strconv.Itoa(device))
}

// beginTrace has the kernel programs tell of a pod's packets. The trace lasts as long as held is open.
func (t *Table) beginTrace(device int) (reader *ringbuf.Reader, held *os.File, err error) {
	err = t.locked(func() error {
		if _, err := t.Pod(device); err != nil {
			return err
		}
		if err := os.Mkdir(t.traceFolder(device), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if held, err = os.Open(t.traceFolder(device)); err != nil {
			return err
		}
		if err = lock.Take(held); err == nil {
			reader, err = t.enterTrace(device)
		} else if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrTraced
		}
		if err != nil {
			err = errors.Join(err, held.Close())
		}
		return err
	})
	return reader, held, err
}

// enterTrace makes the ring buffer.
func (t *Table) enterTrace(device int) (*ringbuf.Reader, error) {
	spec, err := bpf.LoadForward()
	if err != nil {
		return nil, err
	}
	ring, err := ebpf.NewMap(spec.Maps["told_by_device"].InnerMap)
	if err != nil {
		return nil, fmt.Errorf("make ring buffer: %w", err)
	}
	defer ring.Close()
	reader, err := ringbuf.NewReader(ring)
	if err != nil {
		return nil, err
	}
	key := uint32(device)
	err = errors.Join(t.maps.UntoldByDevice.Put(key, uint64(0)), t.maps.ToldByDevice.Put(key, ring))
	if err == nil {
		err = t.setTraced(device, true)
	}
	if err != nil {
		return nil, errors.Join(err, t.endTrace(device), reader.Close())
	}
	return reader, nil
}

// endTrace undoes beginTrace. The table is locked. The pod may have been removed.
func (t *Table) endTrace(device int) error {
	err := ignore(t.setTraced(device, false), ErrUnknown)
	for _, m := range []*ebpf.Map{t.maps.ToldByDevice, t.maps.UntoldByDevice} {
		err = errors.Join(err, ignore(m.Delete(uint32(device)), ebpf.ErrKeyNotExist))
	}
	return errors.Join(err, ignore(os.Remove(t.traceFolder(device)), os.ErrNotExist))
}

func (t *Table) setTraced(device int, on bool) error {
	return t.change(device, func(p *Pod) { p.Traced = on })
}

// untold is how many packets the buffer had no room for.
func (t *Table) untold(device int) (count uint64, err error) {
	err = ignore(t.maps.UntoldByDevice.Lookup(uint32(device), &count), ebpf.ErrKeyNotExist)
	return count, err
}

// sweepTraces ends the traces whose processes are gone. The table is locked.
func (t *Table) sweepTraces() error {
	list, err := os.ReadDir(t.dir)
	if err != nil {
		return fmt.Errorf("list traces: %w", err)
	}
	var errs []error
	for _, entry := range list {
		number, found := strings.CutPrefix(entry.Name(), tracePrefix)
		device, err := strconv.Atoi(number)
		if !found || err != nil {
			continue
		}
		held, err := os.Open(t.traceFolder(device))
		if err != nil {
			errs = append(errs, ignore(err, os.ErrNotExist))
			continue
		}
		if lock.Take(held) == nil {
			errs = append(errs, t.endTrace(device))
		}
		errs = append(errs, held.Close())
	}
	return errors.Join(errs...)
}
