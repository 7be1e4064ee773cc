package vsock

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const testAlloc = 1 << 16 // room of the guest, that it tells

// connect has the guest connect, and accepts it. It returns the peer of the host's socket.
func (d *driver) connect(port uint32, typ uint16) *net.UnixConn {
	d.t.Helper()
	d.send(header{fromPort: port, toPort: 80, op: opRequest, typ: typ, alloc: testAlloc}, nil)
	kind := unix.SOCK_STREAM
	if typ == SeqPacket {
		kind = unix.SOCK_SEQPACKET
	}
	sock, peer := joined(d.t, kind)
	r := <-d.asked
	if r.From != port || r.To != 80 || r.Type != typ {
		d.t.Fatalf("request %+v", r)
	}
	r.Accept(Socket{File: sock})
	if p := d.expect(opResponse); p.toPort != port || p.fromPort != 80 || p.from != HostCID || p.to != testCID || p.alloc != windowWide {
		d.t.Fatalf("response %+v", p)
	}
	if err := peer.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		d.t.Fatal(err)
	}
	return peer
}

// end ends the device, and returns Serve's error.
func (d *driver) end() error {
	d.t.Helper()
	d.vmm.Close()
	return d.wantEnd()
}

func (d *driver) wantEnd() error {
	d.t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(testkit.Patience):
		d.t.Fatal("the device does not end")
		return nil
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

func TestStream(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, Stream)

	d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, []byte("question"))
	b := make([]byte, 100)
	if n, err := peer.Read(b); err != nil || string(b[:n]) != "question" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	if _, err := peer.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if p := d.expect(opData); string(p.data) != "answer" || p.forwarded != 8 {
		t.Errorf("got %+v %q", p.header, p.data)
	}
	// One end, and then the other.
	if err := peer.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if p := d.expect(opShutdown); p.flags != noSend {
		t.Errorf("end: %+v", p.header)
	}
	d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, []byte("last"))
	d.send(header{fromPort: 1000, toPort: 80, op: opShutdown, flags: noSend | noReceive}, nil)
	d.expect(opReset)
	if b, err := io.ReadAll(peer); err != nil || string(b) != "last" {
		t.Errorf("%q, %v", b, err)
	}
	if err := d.end(); err != nil {
		t.Error(err)
	}
}

// TestWindow has a peer that does not read: the guest may send its window, and no byte more. Then
// the peer reads all.
func TestWindow(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, Stream)
	other := d.connect(2000, Stream)
	want := random(windowWide)
	var sent int
	for sent < windowWide {
		n := min(8000, windowWide-sent)
		d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, want[sent:sent+n])
		sent += n
	}
	// The other connection is not held up.
	d.send(header{fromPort: 2000, toPort: 80, op: opData, alloc: testAlloc}, []byte("other"))
	b := make([]byte, 100)
	if n, err := other.Read(b); err != nil || string(b[:n]) != "other" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	d.send(header{fromPort: 1000, toPort: 80, op: opShutdown, flags: noSend}, nil)
	if got, err := io.ReadAll(peer); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestWindowIsExceeded(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, Stream)
	// What the socket has taken counts no more, so this is more than the window and the socket have.
	for range 200 {
		d.send(header{fromPort: 1000, toPort: 80, op: opData, alloc: testAlloc}, make([]byte, 8000))
	}
	d.expect(opReset)
	for range 10 {
		if _, err := io.Copy(io.Discard, peer); err != nil {
			break
		}
	}
}

// TestCredit has a peer that sends much: the guest gets no byte more than it has room for, and the
// rest once it says so.
func TestCredit(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, Stream)
	want := random(4 * testAlloc)
	written := make(chan error, 1)
	go func() {
		_, err := peer.Write(want)
		written <- errors.Join(err, peer.CloseWrite())
	}()
	var got []byte
	room := testAlloc
	for len(got) < len(want) {
		p := d.expect(opData)
		got = append(got, p.data...)
		if len(got) > room {
			t.Fatalf("%d bytes, where the guest has room for %d", len(got), room)
		}
		if len(got) == room {
			room += testAlloc
			d.send(header{fromPort: 1000, toPort: 80, op: opCreditUpdate, alloc: testAlloc, forwarded: uint32(len(got))}, nil)
		}
	}
	d.expect(opShutdown)
	if err := <-written; err != nil || !bytes.Equal(got, want) {
		t.Errorf("bytes changed; write: %v", err)
	}
}

func TestRefused(t *testing.T) {
	d := newDriver(t)
	d.start()
	d.send(header{fromPort: 1, toPort: 2, op: opRequest, alloc: testAlloc}, nil)
	(<-d.asked).Refuse()
	if p := d.expect(opReset); p.toPort != 1 || p.fromPort != 2 {
		t.Errorf("%+v", p.header)
	}
	for _, h := range []header{
		{fromPort: 5, toPort: 6, op: opData},
		{fromPort: 5, toPort: 6, op: opResponse},
		{fromPort: 5, toPort: 6, op: opShutdown},
		{fromPort: 5, toPort: 6, op: 99},
		{fromPort: 5, toPort: 6, op: opRequest, typ: 3},
	} {
		d.send(h, nil)
		if p := d.expect(opReset); p.toPort != 5 || p.fromPort != 6 {
			t.Errorf("%+v: %+v", h, p.header)
		}
	}
}

func TestDial(t *testing.T) {
	d := newDriver(t)
	d.start()
	sock, peer := joined(t, unix.SOCK_STREAM)
	done := make(chan error, 2)
	d.device.Dial(Stream, 7, 8, Socket{File: sock}, func(err error) { done <- err })
	if p := d.expect(opRequest); p.fromPort != 7 || p.toPort != 8 {
		t.Fatalf("%+v", p.header)
	}
	d.send(header{fromPort: 8, toPort: 7, op: opResponse, alloc: testAlloc}, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	d.send(header{fromPort: 8, toPort: 7, op: opData, alloc: testAlloc}, []byte("hello"))
	b := make([]byte, 100)
	if n, err := peer.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("%q, %v", b[:n], err)
	}

	refused, _ := joined(t, unix.SOCK_STREAM)
	defer unix.Close(refused)
	d.device.Dial(Stream, 9, 8, Socket{File: refused}, func(err error) { done <- err })
	d.expect(opRequest)
	d.send(header{fromPort: 8, toPort: 9, op: opReset}, nil)
	if err := <-done; !errors.Is(err, ErrRefused) {
		t.Errorf("refused: %v", err)
	}
	if _, err := d.end(), <-doneDial(d, refused); !errors.Is(err, ErrGone) {
		t.Errorf("after the end: %v", err)
	}
}

func doneDial(d *driver, sock int) chan error {
	done := make(chan error, 1)
	d.device.Dial(Stream, 9, 8, Socket{File: sock}, func(err error) { done <- err })
	return done
}

func TestMessages(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, SeqPacket)
	b := make([]byte, 1<<17)
	for _, size := range []int{1, 100, 8000} {
		want := random(size)
		d.send(header{fromPort: 1000, toPort: 80, op: opData, typ: SeqPacket, flags: endMsg, alloc: testAlloc}, want)
		if n, err := peer.Read(b); err != nil || !bytes.Equal(b[:n], want) {
			t.Fatalf("message of %d bytes: %d, %v", size, n, err)
		}
		if _, err := peer.Write(want); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for {
			p := d.expect(opData)
			if got = append(got, p.data...); p.flags&endMsg != 0 {
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("message of %d bytes became %d", size, len(got))
		}
	}
	// In parts.
	d.send(header{fromPort: 1000, toPort: 80, op: opData, typ: SeqPacket, alloc: testAlloc}, []byte("one "))
	d.send(header{fromPort: 1000, toPort: 80, op: opData, typ: SeqPacket, flags: endMsg, alloc: testAlloc}, []byte("message"))
	if n, err := peer.Read(b); err != nil || string(b[:n]) != "one message" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

func TestFlood(t *testing.T) {
	d := newDriver(t)
	d.start()
	for i := range uint32(connsMax) {
		d.post(header{fromPort: i + 1, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
	}
	for range connsMax {
		<-d.asked
	}
	d.send(header{fromPort: connsMax + 1, toPort: 80, op: opRequest, alloc: testAlloc}, nil)
	if p := d.expect(opReset); p.toPort != connsMax+1 {
		t.Errorf("%+v", p.header)
	}
	d.send(header{fromPort: 1, toPort: 80, op: opReset}, nil)
	d.connect(connsMax+1, Stream)
}

// TestRestart has the guest boot anew: its connections end, and its rings begin where it says.
func TestRestart(t *testing.T) {
	d := newDriver(t)
	d.start()
	peer := d.connect(1000, Stream)
	for i := range d.kicks {
		base := d.ask(getVringBase, words(uint32(i), 0))
		if got, want := base[4], byte(d.seen[i]); i == txQueue && got != want {
			t.Errorf("ring %d is at %d, want %d", i, got, want)
		}
		unix.Close(d.kicks[i])
		unix.Close(d.calls[i])
		d.filled[i], d.seen[i] = 0, 0
		clear(d.mem[ringAt(i):][:0x4000])
	}
	if _, err := io.ReadAll(peer); err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Error(err)
	}
	for i := range d.kicks {
		d.setRing(i)
	}
	d.offer()
	d.connect(1000, Stream)
}
