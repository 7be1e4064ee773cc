package vsock

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// resources are what a device must give back: files of this process, and mappings of the guest's memory.
func resources(t *testing.T) (files, mappings int) {
	t.Helper()
	open, err := testkit.OpenFiles(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(open), strings.Count(string(maps), "/memfd:guest")
}

// TestGuestCrash has a VMM die while its guest's connections are in all their states. The host's sockets
// end by a reset, and nothing of the guest is left.
func TestGuestCrash(t *testing.T) {
	testkit.Eventually(t, func() error { // devices of tests before this one may be about to end
		if _, mappings := resources(t); mappings > 0 {
			return fmt.Errorf("%d mappings of other guests", mappings)
		}
		return nil
	})
	d := newDriver(t)
	files, mappings := resources(t) // the device has its own, and no mapping yet
	d.start()
	var peers []*net.UnixConn
	for port := range uint32(20) {
		peers = append(peers, d.connect(1000+port, Stream))
	}
	// One has bytes that wait for the host, one has bytes that wait for the guest.
	for range 10 {
		d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, make([]byte, 8000))
	}
	if _, err := peers[1].Write(make([]byte, testAlloc)); err != nil {
		t.Fatal(err)
	}
	d.send(header{fromPort: 1, toPort: 80, op: opRequest, alloc: testAlloc}, nil) // nobody answers it
	<-d.asked
	dialing, dialer := joined(t, unix.SOCK_STREAM)
	dialed := make(chan error, 1)
	d.device.Dial(Stream, 7, 8, Socket{File: dialing}, func(err error) { dialed <- err })

	if err := d.end(); err != nil {
		t.Errorf("the device ended: %v", err)
	}
	if err := <-dialed; err == nil {
		t.Error("a dead guest has answered a dial")
	}
	for i, peer := range peers {
		if _, err := io.Copy(io.Discard, peer); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("peer %d: %v", i, err)
		}
		peer.Close()
	}
	if open := d.counts.Open.Load(); open != 0 {
		t.Errorf("%d connections are counted as open", open)
	}
	d.vmm.Close()
	dialer.Close()
	unix.Close(dialing)
	for _, file := range append(d.kicks[:], d.calls[:]...) {
		unix.Close(file)
	}
	d.kicks, d.calls = [queueCount]int{-1, -1, -1}, [queueCount]int{-1, -1, -1}
	device := 6 // the VMM's socket, at both ends and as the thread has it; epoll; eventfd; the list of connections
	testkit.Eventually(t, func() error {
		nowFiles, nowMappings := resources(t)
		if nowFiles > files-device || nowMappings != mappings {
			return fmt.Errorf("%d files and %d mappings; before: %d, of which the device had %d, and %d", nowFiles, nowMappings, files, device, mappings)
		}
		return nil
	})
}

// TestCrashResetsTCP has a VMM die. A TCP peer of the guest's sees a reset, and not the end of the stream.
func TestCrashResetsTCP(t *testing.T) {
	d := newDriver(t)
	d.start()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	file, err := client.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	sock, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	file.Close()
	client.Close()
	if err != nil {
		t.Fatal(err)
	}
	d.send(header{fromPort: 1000, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
	(<-d.asked).Accept(Socket{File: sock})
	d.expect(opResponse)
	d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, []byte("half a mess"))
	b := make([]byte, 11)
	if _, err := io.ReadFull(peer, b); err != nil {
		t.Fatal(err)
	}
	if err := d.end(); err != nil {
		t.Error(err)
	}
	if err := peer.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := peer.Read(b); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the peer has read %d bytes, %v", n, err)
	}
}

// event offers the buffer for an event, with a value that is none.
func (d *driver) offerEvent() {
	const at = 0xf000
	copy(d.mem[at:], words(0xffffffff))
	d.descriptor(eventQueue, 0, at, 4, descWrite, 0)
	d.make(eventQueue, 0)
}

// TestReconnect has a VMM connect again, to another device, while its guest goes on: the guest is told that
// its connections are gone, those that it uses nevertheless are reset, and new ones work.
func TestReconnect(t *testing.T) {
	d := newDriver(t)
	d.start()
	d.offerEvent()
	peer := d.connect(1000, Stream)
	if err := d.end(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(peer); err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Error(err)
	}
	if d.used(eventQueue) {
		t.Fatal("an event, before the device was another")
	}
	for _, file := range append(d.kicks[:], d.calls[:]...) {
		unix.Close(file)
	}
	d.serve()
	d.setUp()
	for !d.used(eventQueue) {
		d.wait(eventQueue)
	}
	if event := d.mem[0xf000:0xf004]; !bytes.Equal(event, words(0)) {
		t.Errorf("event % x", event)
	}
	d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, []byte("goes on"))
	if p := d.expect(opReset); p.toPort != 1000 || p.fromPort != 80 {
		t.Errorf("%+v", p.header)
	}
	peer = d.connect(1000, Stream)
	d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, []byte("anew"))
	b := make([]byte, 4)
	if _, err := io.ReadFull(peer, b); err != nil || string(b) != "anew" {
		t.Errorf("%q, %v", b, err)
	}
}

// open has the guest connect, and returns the other end of the host's socket.
func (d *driver) open(port uint32) (peer int) {
	d.t.Helper()
	return d.openAll(port, 1)[0]
}

// openAll has the guest connect from ports, beginning with the first.
func (d *driver) openAll(first, count uint32) (peers []int) {
	d.t.Helper()
	for port := first; port < first+count; port++ {
		d.post(header{fromPort: port, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
	}
	for range count {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		(<-d.asked).Accept(Socket{File: fds[0]})
		peers = append(peers, fds[1])
	}
	return peers
}

// TestThousandStreams has 1,000 connections echo at once.
func TestThousandStreams(t *testing.T) {
	const streams, pieces, size = 1000, 3, 700
	d := newDriver(t)
	d.start()
	for _, peer := range d.openAll(0, streams) {
		d.expect(opResponse)
		f := os.NewFile(uintptr(peer), "echo")
		go func() {
			defer f.Close()
			_, _ = io.Copy(f, f)
		}()
	}
	if open := d.counts.Open.Load(); open != streams {
		t.Fatalf("%d connections are open", open)
	}
	sent, got := make([][]byte, streams), make([][]byte, streams)
	ended := 0
	take := func(p packet) {
		switch p.op {
		case opData:
			got[p.toPort] = append(got[p.toPort], p.data...)
		case opShutdown:
			ended++
		case opCreditUpdate:
		default:
			t.Fatalf("%+v", p.header)
		}
	}
	r := rand.NewChaCha8([32]byte{1})
	for range pieces {
		for i := range uint32(streams) {
			piece := make([]byte, size)
			_, _ = r.Read(piece)
			d.post(header{fromPort: i, toPort: 80, op: opData, alloc: testAlloc, forwarded: uint32(len(got[i]))}, piece)
			sent[i] = append(sent[i], piece...)
			for d.used(rxQueue) {
				take(d.next())
			}
		}
	}
	for i := range uint32(streams) {
		d.post(header{fromPort: i, toPort: 80, op: opShutdown, flags: noSend, alloc: testAlloc, forwarded: uint32(len(got[i]))}, nil)
	}
	for ended < streams {
		take(d.next())
	}
	for i := range sent {
		if !bytes.Equal(sent[i], got[i]) {
			t.Fatalf("stream %d: %d bytes became %d", i, len(sent[i]), len(got[i]))
		}
	}
	if in, out := d.counts.FromGuest.Load(), d.counts.ToGuest.Load(); in != streams*pieces*size || out != in {
		t.Errorf("%d and %d bytes are counted", in, out)
	}
}

// TestBulk sends much through one connection, and back: 10 GB where there is time.
func TestBulk(t *testing.T) {
	total := uint64(64 << 20)
	if testkit.Soaking() {
		total = 10_000_000_000
	}
	d := newDriver(t)
	d.start()
	f := os.NewFile(uintptr(d.open(1000)), "echo")
	d.expect(opResponse)
	go func() {
		defer f.Close()
		_, _ = io.Copy(f, f)
	}()
	out, in := sha256.New(), sha256.New()
	sent, got := d.exchange(1000, total, out, in)
	if sent != got || !bytes.Equal(out.Sum(nil), in.Sum(nil)) {
		t.Errorf("%d bytes became %d, or others", sent, got)
	}
}

// exchange sends random bytes to an echo, and takes what comes back. Both are added to sums.
func (d *driver) exchange(port uint32, total uint64, out, in hash.Hash) (sent, got uint64) {
	const inFlight = windowWide / 2
	r := rand.NewChaCha8([32]byte{2})
	piece := make([]byte, 8000)
	told := uint64(0)
	h := header{fromPort: port, toPort: 80, op: opData, alloc: testAlloc}
	for got < total {
		for sent < total && sent-got < inFlight && !d.used(rxQueue) {
			part := piece[:min(uint64(len(piece)), total-sent)]
			_, _ = r.Read(part)
			out.Write(part)
			h.forwarded = uint32(got)
			told = got
			d.post(h, part)
			sent += uint64(len(part))
		}
		p := d.next()
		if p.op != opData && p.op != opCreditUpdate {
			d.t.Fatalf("%+v", p.header)
		}
		in.Write(p.data)
		got += uint64(len(p.data))
		if got-told >= testAlloc/4 {
			d.send(header{fromPort: port, toPort: 80, op: opCreditUpdate, alloc: testAlloc, forwarded: uint32(got)}, nil)
			told = got
		}
	}
	return sent, got
}

// TestGuestDoesNotHoldUpAnother has a guest that takes nothing, while all its peers send. Another guest's
// connection works.
func TestGuestDoesNotHoldUpAnother(t *testing.T) {
	idle := newDriver(t)
	idle.setUp() // it has no buffers
	for i := range uint32(100) {
		peer := idle.open(i)
		defer unix.Close(peer)
		for {
			if _, err := unix.SendmsgN(peer, make([]byte, 8000), nil, nil, unix.MSG_DONTWAIT); err != nil {
				break // as much as the socket has room for
			}
		}
	}
	d := newDriver(t)
	d.start()
	f := os.NewFile(uintptr(d.open(1000)), "echo")
	d.expect(opResponse)
	go func() {
		defer f.Close()
		_, _ = io.Copy(f, f)
	}()
	out, in := sha256.New(), sha256.New()
	if sent, got := d.exchange(1000, 1<<20, out, in); sent != got || !bytes.Equal(out.Sum(nil), in.Sum(nil)) {
		t.Errorf("%d bytes became %d, or others", sent, got)
	}
	if sent := idle.counts.ToGuest.Load(); sent > 0 {
		t.Errorf("a guest without buffers got %d bytes", sent)
	}
}

// fill sends on connections as long as any of them has credit. told are their last packets. sentinel is
// another connection.
func (d *driver) fill(told []header, sentinel uint32) {
	d.t.Helper()
	const piece = 8000
	take := func() header {
		p := d.next()
		if p.op != opCreditUpdate {
			d.t.Fatalf("%+v", p.header)
		}
		if p.toPort != sentinel {
			told[p.toPort] = p.header
		}
		return p.header
	}
	sent := make([]uint32, len(told))
	for more := true; more; {
		more = false
		for port := range told {
			for {
				n := min(told[port].alloc-(sent[port]-told[port].forwarded), piece)
				if n == 0 {
					break
				}
				more = true
				d.post(header{fromPort: uint32(port), toPort: 80, op: opData, alloc: testAlloc}, make([]byte, n))
				sent[port] += n
				for d.used(rxQueue) {
					take()
				}
			}
		}
		d.post(header{fromPort: sentinel, toPort: 80, op: opCreditRequest, alloc: testAlloc}, nil)
		for take().toPort != sentinel { // behind the updates of what was sent before
		}
	}
}

// TestMemoryIsBounded has a guest fill the windows of as many connections as it may have, whose peers read
// nothing. What the host keeps of it has the bound of docs/design/outsource.md.
func TestMemoryIsBounded(t *testing.T) {
	const bound = wideWindows*windowWide + (connsMax-wideWindows)*windowSmall
	d := newDriver(t)
	d.start()
	told := make([]header, connsMax)
	for _, peer := range d.openAll(0, connsMax) {
		defer unix.Close(peer)
		h := d.expect(opResponse).header
		told[h.toPort] = h
	}
	d.fill(told[:connsMax-1], connsMax-1)
	kept, memory := 0, 0
	done := make(chan struct{})
	d.device.post(func() {
		for _, c := range d.device.conns {
			kept += len(c.backlog.b)
			memory += cap(c.backlog.b)
		}
		close(done)
	})
	<-done
	t.Logf("%d bytes are kept in %d bytes of memory; the bound is %d", kept, memory, bound)
	if memory > bound {
		t.Errorf("the host keeps %d bytes of a guest in %d bytes of memory; the bound is %d", kept, memory, bound)
	}
	if kept < bound/4 {
		t.Errorf("only %d bytes wait", kept)
	}
}
