package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

func TestControl(t *testing.T) {
	r := newRig(t)
	c := r.open(wire.ControlPort)
	q := r.request()
	if q.To != wire.ControlPort || q.Type != vsock.Stream {
		t.Fatalf("%+v", q)
	}
	s, peer := tcp(t)
	q.Accept(s)
	b := make([]byte, 8)
	for _, way := range [][2]net.Conn{{c, peer}, {peer, c}} {
		if _, err := way[0].Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], b); err != nil || string(b) != "question" {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// exchange sends bytes both ways at once, and compares them. Each side ends after its bytes.
func exchange(a, b interface {
	net.Conn
	CloseWrite() error
}, size int64,
) error {
	var all sync.WaitGroup
	var errs [4]error
	var sums [4][]byte
	ends := []interface {
		net.Conn
		CloseWrite() error
	}{a, b}
	for i, c := range ends {
		all.Go(func() {
			sum := sha256.New()
			_, err := io.CopyN(io.MultiWriter(c, sum), rand.NewChaCha8([32]byte{byte(i)}), size)
			sums[i], errs[i] = sum.Sum(nil), errors.Join(err, c.CloseWrite())
		})
		all.Go(func() {
			sum := sha256.New()
			n, err := io.Copy(sum, c)
			if err == nil && n != size {
				err = fmt.Errorf("%d bytes became %d", size, n)
			}
			sums[3-i], errs[3-i] = sum.Sum(nil), err
		})
	}
	all.Wait()
	if !bytes.Equal(sums[0], sums[2]) || !bytes.Equal(sums[1], sums[3]) {
		errs[0] = errors.Join(errs[0], errors.New("bytes changed"))
	}
	return errors.Join(errs[:]...)
}

// TestBulk sends much both ways: 10 GB where there is time.
func TestBulk(t *testing.T) {
	size := int64(32 << 20)
	if testkit.Soaking() {
		size = 10_000_000_000
	}
	r := newRig(t)
	c, peer := r.data(7)
	for _, end := range []net.Conn{c, peer} {
		if err := end.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := exchange(c, peer, size); err != nil {
		t.Error(err)
	}
	r.closed()
	if in, out := r.counters.FromGuest.Load(), r.counters.ToGuest.Load(); in != uint64(size) || out != in || r.counters.Resets.Load() != 0 {
		t.Errorf("%d and %d bytes, and %d resets are counted", in, out, r.counters.Resets.Load())
	}
}

// closed waits until no connection is open.
func (r *rig) closed() {
	r.Helper()
	testkit.Eventually(r, func() error {
		if n := r.counters.Open.Load(); n != 0 {
			return fmt.Errorf("%d connections are open", n)
		}
		return nil
	})
}

// TestThousand has 1,000 connections at once.
func TestThousand(t *testing.T) {
	const streams = 1000
	r := newRig(t)
	var ends [streams][2]interface {
		net.Conn
		CloseWrite() error
	}
	for i := range ends {
		ends[i][0], ends[i][1] = r.data(uint32(i + 1))
	}
	if n := r.counters.Open.Load(); n != streams {
		t.Errorf("%d connections are open", n)
	}
	var all sync.WaitGroup
	for i := range ends {
		all.Go(func() {
			if err := exchange(ends[i][0], ends[i][1], 30_000); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	all.Wait()
	r.closed()
}

// TestHalfClose has one side end what it sends. The other goes on.
func TestHalfClose(t *testing.T) {
	r := newRig(t)
	c, peer := r.data(7)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(peer); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := peer.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
	r.closed()
}

// TestGuestCloses has a guest's program close its socket while the peer has more to say. The peer hears that
// nobody listens.
func TestGuestCloses(t *testing.T) {
	r := newRig(t)
	c, peer := r.data(7)
	c.Close()
	if b, err := io.ReadAll(peer); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	testkit.Eventually(t, func() error {
		_, err := peer.Write([]byte("more"))
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		return fmt.Errorf("write: %v", err) //nolint:errorlint // it may be nil
	})
	r.closed()
}

// TestPeerResets has the host's peer reset a connection. The guest's ends.
func TestPeerResets(t *testing.T) {
	r := newRig(t)
	c, peer := r.data(7)
	if err := peer.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if _, err := io.ReadAll(c); err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Error(err)
	}
	r.closed()
	if n := r.counters.Resets.Load(); n != 1 {
		t.Errorf("%d resets are counted", n)
	}
}

// TestHostEnds ends a guest. Peers of its connections get a reset, because bytes may be missing, and no file
// is left.
func TestHostEnds(t *testing.T) {
	r := prepare(t)
	before := files(t)
	var err error
	if r.guest, err = Hybrid(r.path, r.config, func(*Guest) vsock.Handler { return r }); err != nil {
		t.Fatal(err)
	}
	c, peer := r.data(7)
	waiting := r.open(wire.DataPort(0)) // without a preamble
	r.end()
	if n, err := peer.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the peer has read %d bytes, %v", n, err)
	}
	for _, end := range []net.Conn{c, waiting} {
		if _, err := io.ReadAll(end); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
		end.Close()
	}
	peer.Close()
	if left, err := filepath.Glob(r.path + "*"); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	testkit.Eventually(t, func() error {
		if now := files(t); now > before {
			return fmt.Errorf("%d files are open, and were %d", now, before)
		}
		return nil
	})
	if err := r.dial(1, vsock.Socket{}); !errors.Is(err, vsock.ErrGone) {
		t.Errorf("dial of a guest that has ended: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	r := newRig(t)
	c := r.open(wire.DataPort(0))
	preamble := wire.Preamble(7)
	if _, err := c.Write(preamble[:]); err != nil {
		t.Fatal(err)
	}
	r.request().Refuse()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}

// TestNoPreamble has connections that do not say their handle, or say none. They end, and others work.
func TestNoPreamble(t *testing.T) {
	r := newRig(t)
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1\r\n"), make([]byte, 8), {'t', 's', 'g', wire.Version, 0, 0, 0, 0}, {'t', 's', 'g', wire.Version, 1, 0, 0, 1}} {
		c := r.open(wire.DataPort(0))
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("% x: %q, %v", b, got, err)
		}
	}
	var mute []*net.UnixConn
	for range namelessMax {
		mute = append(mute, r.open(wire.DataPort(0)))
	}
	testkit.Eventually(t, func() error {
		if n := len(r.guest.nameless); n != namelessMax {
			return fmt.Errorf("%d connections have not said their handle", n)
		}
		return nil
	})
	one := r.open(wire.DataPort(0))
	if b, err := io.ReadAll(one); err != nil || len(b) > 0 {
		t.Errorf("one too many: %q, %v", b, err)
	}
	r.open(wire.ControlPort)
	r.request().Refuse()
	for _, c := range mute {
		c.Close()
	}
	testkit.Eventually(t, func() error {
		if n := len(r.guest.nameless); n > 0 {
			return fmt.Errorf("%d connections have not said their handle", n)
		}
		return nil
	})
	r.data(7)
}

// TestFlood has a guest open connections until there is no room, and another once there is.
func TestFlood(t *testing.T) {
	r := newRig(t)
	var all []*net.UnixConn
	for range connsMax {
		all = append(all, r.open(wire.ControlPort))
	}
	var requests []*vsock.Request
	for range connsMax {
		requests = append(requests, r.request())
	}
	one := r.open(wire.ControlPort)
	if b, err := io.ReadAll(one); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	if err := r.dial(1, vsock.Socket{}); !errors.Is(err, vsock.ErrMany) {
		t.Errorf("dial: %v", err)
	}
	requests[0].Refuse()
	r.data(7)
	for _, q := range requests[1:] {
		q.Refuse()
	}
	for _, c := range all {
		c.Close()
	}
}

// TestGuestReadsNothing has guests that do not read, and peers that send to them without end. Once there is no
// room on their way, another connection works.
func TestGuestReadsNothing(t *testing.T) {
	r := newRig(t)
	const stalled = 20
	for handle := range uint32(stalled) {
		_, peer := r.data(handle + 1)
		go func() {
			for err := error(nil); err == nil; { // it is closed at the end of the test
				_, err = peer.Write(make([]byte, 1<<16))
			}
		}()
	}
	testkit.Eventually(t, func() error {
		if n := r.full(); n < stalled {
			return fmt.Errorf("of %d connections %d are full", stalled, n)
		}
		return nil
	})
	a, b := r.data(100)
	if err := exchange(a, b, 4<<20); err != nil {
		t.Error(err)
	}
}

// full is the number of joints whose connections with the guest take no more bytes.
func (r *rig) full() (n int) {
	r.guest.mu.Lock()
	defer r.guest.mu.Unlock()
	for c := range r.guest.open {
		j, is := c.(*joint)
		if !is {
			continue
		}
		onFile(j.guest, func(fd int) {
			if _, err := unix.SendmsgN(fd, []byte{0}, nil, nil, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
				n++
			}
		})
	}
	return n
}

// TestGuestTakesNoGreeting has a connection without room for the greeting, as a guest with AF_VSOCK has that
// gives no credit. Neither the handler nor the guest's end waits for it.
func TestGuestTakesNoGreeting(t *testing.T) {
	r := newRig(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	guest := os.NewFile(uintptr(pair[1]), "guest")
	defer guest.Close()
	for err == nil {
		_, err = unix.SendmsgN(pair[0], make([]byte, 4096), nil, nil, unix.MSG_DONTWAIT)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	c, err := fileOf(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	preamble := wire.Preamble(7)
	if _, err := guest.Write(preamble[:]); err != nil {
		t.Fatal(err)
	}
	r.guest.arrive(c, wire.DataPort(0))
	q := r.request()
	s, _ := tcp(t)
	accepted := make(chan struct{})
	go func() {
		q.Accept(s)
		close(accepted)
	}()
	select {
	case <-accepted:
	case <-time.After(testkit.Patience):
		t.Fatal("the handler waits for the guest")
	}
	r.end()
}
