package vsock

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// The driver sees at once that a packet was sent, and is interrupted for several packets together, or
// when the thread has nothing to do, or after some turns. No thread runs here: the test makes its turns.
func TestInterruptsForSentPackets(t *testing.T) {
	for name, test := range map[string]struct {
		packets int
		turns   func(d *Device) // after the packets
		want    uint64          // interrupts
	}{
		"one":                    {1, func(*Device) {}, 0},
		"one, and nothing to do": {1, func(d *Device) { d.tellSent(true) }, 1},
		"twice nothing to do": {1, func(d *Device) {
			d.tellSent(true)
			d.tellSent(true)
		}, 1},
		"one, and other things": {1, func(d *Device) {
			for range owedMax {
				d.tellSent(false)
			}
		}, 0},
		"one, and other things for long": {1, func(d *Device) {
			for range owedMax + 1 {
				d.tellSent(false)
			}
		}, 1},
		"many": {testQuarter, func(*Device) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d, call := sender(t)
			at := ringAt(txQueue)
			for i := range test.packets {
				binary.LittleEndian.PutUint16(d.memory[0].data[at+0x1000+ringHeader+2*uint64(i):], 0)
				head(d.memory[0].data[at+0x1000:]).Store(uint32(i+1) << 16)
				if _, err := d.transmit(); err != nil {
					t.Fatal(err)
				}
				if used := head(d.memory[0].data[at+0x2000:]).Load() >> 16; int(used) != i+1 {
					t.Errorf("the driver sees %d packets sent of %d", used, i+1)
				}
			}
			test.turns(d)
			var b [8]byte
			_, _ = unix.Read(call, b[:]) // EAGAIN: none
			if got := binary.NativeEndian.Uint64(b[:]); got != test.want {
				t.Errorf("%d interrupts, want %d", got, test.want)
			}
		})
	}
}

// testQuarter is a quarter of sender's ring.
const testQuarter = 4

// sender is a device without a thread, whose transmit ring has a reset of no connection in descriptor 0,
// which needs no answer.
func sender(t *testing.T) (d *Device, call int) {
	t.Helper()
	const num = 4 * testQuarter
	call, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(call) })
	d = &Device{cid: testCID, memory: memory{{user: testUser, data: make([]byte, testMemory)}}, conns: map[key]*conn{}}
	data, at := d.memory[0].data, ringAt(txQueue)
	h := header{from: testCID, to: HostCID, typ: Stream, op: opReset}
	raw := h.bytes()
	copy(data[buffer(txQueue, 0):], raw[:])
	binary.LittleEndian.PutUint64(data[at:], buffer(txQueue, 0))
	binary.LittleEndian.PutUint32(data[at+8:], headerSize)
	q := &d.queues[txQueue]
	*q = queue{num: num, descAt: testUser + at, availAt: testUser + at + 0x1000, usedAt: testUser + at + 0x2000, kick: 0, call: call, enabled: true}
	if err := q.place(d.memory); err != nil {
		t.Fatal(err)
	}
	return d, call
}
