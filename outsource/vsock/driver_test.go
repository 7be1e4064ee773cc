package vsock

import (
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// driver is a VMM and a guest's driver in one: memory, rings, and packets. Where things are in
// its memory, of which the VMM's addresses are 1 MiB higher:
//
//	0x0000  rings: 0x4000 for each, descriptors, available at 0x1000, used at 0x2000
//	0xf000  the buffer for an event
//	0x10000 buffers, 0x2000 for each descriptor of each ring
type driver struct {
	t      testing.TB
	mem    []byte
	file   int
	vmm    *net.UnixConn
	kicks  [queueCount]int
	calls  [queueCount]int
	filled [queueCount]uint16 // entries that were made available
	seen   [queueCount]uint16 // entries of the used ring that were read
	ended  chan error

	device *Device
	asked  chan *Request
	counts Counters
	work   cputime.Meter
}

type packet struct {
	header
	data []byte
}

const (
	testRing   = 16
	testUser   = 1 << 20
	testMemory = 0x10000 + 2*testRing*0x2000
	testCID    = 3
	bufferSize = 0x2000
)

func (d *driver) Request(r *Request) { d.asked <- r }

// newDriver starts a device with a driver.
func newDriver(t testing.TB) *driver {
	t.Helper()
	d := &driver{t: t, ended: make(chan error, 1), asked: make(chan *Request, connsMax)}
	var err error
	if d.file, err = unix.MemfdCreate("guest", unix.MFD_CLOEXEC); err == nil {
		err = unix.Ftruncate(d.file, testMemory)
	}
	if err == nil {
		d.mem, err = unix.Mmap(d.file, 0, testMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.serve()
	t.Cleanup(func() {
		d.vmm.Close()
		_ = unix.Munmap(d.mem)
		unix.Close(d.file)
		for i := range d.kicks {
			unix.Close(d.kicks[i])
			unix.Close(d.calls[i])
		}
	})
	return d
}

// serve starts a device for the driver.
func (d *driver) serve() {
	d.t.Helper()
	ours, theirs := pair(d.t, unix.SOCK_STREAM)
	d.vmm = ours
	made := make(chan *Device, 1)
	go func() {
		d.ended <- Serve(theirs, testCID, func(dev *Device) Handler {
			dev.Observe(&d.counts, &d.work)
			made <- dev
			return d
		})
	}()
	d.device = <-made
}

// pair returns connected unix sockets.
func pair(t testing.TB, typ int) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// joined returns a socket for the device and the other end of it.
func joined(t testing.TB, typ int) (sock int, peer *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "peer")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return fds[0], c.(*net.UnixConn)
}

// tell sends a message of vhost-user, with files.
func (d *driver) tell(number uint32, payload []byte, files ...int) {
	d.t.Helper()
	b := binary.LittleEndian.AppendUint32(nil, number)
	b = binary.LittleEndian.AppendUint32(b, messageVersion)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(payload))), payload...)
	var control []byte
	if len(files) > 0 {
		control = unix.UnixRights(files...)
	}
	if _, _, err := d.vmm.WriteMsgUnix(b, control, nil); err != nil {
		d.t.Fatalf("message %d: %v", number, err)
	}
}

// ask sends a message and returns the payload of the reply.
func (d *driver) ask(number uint32, payload []byte) []byte {
	d.t.Helper()
	d.tell(number, payload)
	if err := d.vmm.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		d.t.Fatal(err)
	}
	b := make([]byte, 512)
	n, err := d.vmm.Read(b)
	if err != nil || n < messageHeader || binary.LittleEndian.Uint32(b) != number {
		d.t.Fatalf("reply to message %d: % x, %v", number, b[:n], err)
	}
	return b[messageHeader:n]
}

func words(list ...uint32) (b []byte) {
	for _, w := range list {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func doubles(list ...uint64) (b []byte) {
	for _, w := range list {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func ringAt(i int) uint64 { return uint64(i) * 0x4000 }

// start sets the rings up, and gives the device all receive buffers.
func (d *driver) start() {
	d.t.Helper()
	d.setUp()
	d.offer()
}

// setUp sets the rings up.
func (d *driver) setUp() {
	d.t.Helper()
	d.tell(setOwner, nil)
	if got := binary.LittleEndian.Uint64(d.ask(getFeatures, nil)); got != offered {
		d.t.Fatalf("features %#x", got)
	}
	d.tell(setFeatures, doubles(offered))
	d.tell(setMemTable, append(words(1, 0), doubles(0, testMemory, testUser, 0)...), d.file)
	for i := range d.kicks {
		d.setRing(i)
	}
}

func (d *driver) setRing(i int) {
	d.t.Helper()
	for _, f := range []*int{&d.kicks[i], &d.calls[i]} {
		var err error
		if *f, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			d.t.Fatal(err)
		}
	}
	at := testUser + ringAt(i)
	d.tell(setVringNum, words(uint32(i), testRing))
	d.tell(setVringAddr, append(words(uint32(i), 0), doubles(at, at+0x2000, at+0x1000, 0)...))
	d.tell(setVringBase, words(uint32(i), head(d.mem[ringAt(i)+0x2000:]).Load()>>16))
	d.tell(setVringKick, doubles(uint64(i)), d.kicks[i])
	d.tell(setVringCall, doubles(uint64(i)), d.calls[i])
	d.tell(setVringEnable, words(uint32(i), 1))
}

// descriptor writes one.
func (d *driver) descriptor(ring, i int, addr uint64, size uint32, flags, next uint16) {
	b := d.mem[ringAt(ring)+uint64(16*i):]
	copy(b, doubles(addr))
	binary.LittleEndian.PutUint32(b[8:], size)
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
}

// make makes a chain available, and kicks.
func (d *driver) make(ring int, descriptor uint16) {
	avail := d.mem[ringAt(ring)+0x1000:]
	binary.LittleEndian.PutUint16(avail[ringHeader+2*int(d.filled[ring]%testRing):], descriptor)
	d.filled[ring]++
	head(avail).Store(uint32(d.filled[ring]) << 16)
	d.kick(ring)
}

func (d *driver) kick(ring int) {
	d.t.Helper()
	if _, err := unix.Write(d.kicks[ring], []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		d.t.Fatal(err)
	}
}

// buffer is the address of a descriptor's buffer.
func buffer(ring, i int) uint64 { return 0x10000 + bufferSize*uint64(ring*testRing+i) }

// offer gives the device all receive buffers: a header, and bytes in another descriptor.
func (d *driver) offer() {
	for i := 0; i < testRing; i += 2 {
		d.offerOne(i)
	}
}

func (d *driver) offerOne(i int) {
	d.descriptor(rxQueue, i, buffer(rxQueue, i), headerSize, descWrite|descNext, uint16(i+1))
	d.descriptor(rxQueue, i+1, buffer(rxQueue, i+1), 4096, descWrite, 0)
	d.make(rxQueue, uint16(i))
}

// send sends a packet and waits until the device has it.
func (d *driver) send(h header, data []byte) {
	d.t.Helper()
	d.post(h, data)
	for d.filled[txQueue] != d.seen[txQueue] {
		d.sent()
	}
}

// post sends a packet, and waits only if the ring is full: the device takes many packets in one turn, and
// each wait takes a turn of both threads.
func (d *driver) post(h header, data []byte) {
	d.t.Helper()
	for d.filled[txQueue]-d.seen[txQueue] == testRing {
		d.sent()
	}
	d.give(h, data)
}

// sent waits until the device has the first packet of those in the ring.
func (d *driver) sent() {
	d.t.Helper()
	for !d.used(txQueue) {
		d.wait(txQueue)
	}
	d.seen[txQueue]++
}

// give gives the device a packet.
func (d *driver) give(h header, data []byte) {
	d.t.Helper()
	h.from, h.to, h.length = testCID, HostCID, uint32(len(data))
	if h.typ == 0 {
		h.typ = Stream
	}
	raw := h.bytes()
	i := int(d.filled[txQueue] % testRing)
	at := buffer(txQueue, i)
	copy(d.mem[at:], raw[:])
	copy(d.mem[at+headerSize:], data)
	d.descriptor(txQueue, i, at, uint32(headerSize+len(data)), 0, 0)
	d.make(txQueue, uint16(i))
}

// used tells whether the device has given a chain back.
func (d *driver) used(ring int) bool {
	return uint16(head(d.mem[ringAt(ring)+0x2000:]).Load()>>16) != d.seen[ring]
}

// wait waits for an interrupt.
func (d *driver) wait(ring int) {
	d.t.Helper()
	list := []unix.PollFd{{Fd: int32(d.calls[ring]), Events: unix.POLLIN}}
	if n, err := unix.Poll(list, int(testkit.Patience.Milliseconds())); n == 0 {
		d.t.Fatalf("the device does not interrupt: %v", err)
	}
	drain(d.calls[ring])
}

// next returns the next packet for the guest.
func (d *driver) next() packet {
	d.t.Helper()
	for !d.used(rxQueue) {
		d.wait(rxQueue)
	}
	used := d.mem[ringAt(rxQueue)+0x2000+ringHeader+usedElemSize*uint64(d.seen[rxQueue]%testRing):]
	i := int(binary.LittleEndian.Uint32(used))
	d.seen[rxQueue]++
	p := packet{header: parseHeader((*[headerSize]byte)(d.mem[buffer(rxQueue, i):]))}
	p.data = append(p.data, d.mem[buffer(rxQueue, i+1):][:p.length]...)
	d.offerOne(i)
	return p
}

// expect returns the next packet of an operation. It skips updates of credit.
func (d *driver) expect(op uint16) packet {
	d.t.Helper()
	for {
		p := d.next()
		if p.op == op {
			return p
		}
		if p.op != opCreditUpdate {
			d.t.Fatalf("got %+v, want operation %d", p.header, op)
		}
	}
}
