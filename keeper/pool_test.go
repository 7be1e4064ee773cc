package keeper

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestBatchesDouble(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	results := p.ask(tcp, 1)
	r := p.request()
	for _, want := range []uint32{2, 4, 8, 16, 32, 64, 64, 64} {
		if r.op != opSockets || r.kind != tcp || r.count != want {
			t.Fatalf("request %+v, want %d sockets", r, want)
		}
		p.serve(r)
		if want == 2 {
			if err := p.result(results); err != nil {
				t.Fatal(err)
			}
			p.idle() // one socket does not cost a second batch
		}
		testkit.Eventually(t, func() error {
			p.client.mu.Lock()
			defer p.client.mu.Unlock()
			if p.client.batch != nil {
				return errors.New("batch is not in the pool")
			}
			return nil
		})
		// Half a batch is left when the next one is asked for, and the call
		// that asks does not wait for it.
		for p.stock(tcp) > int(want)/2 {
			if err := p.result(p.ask(tcp, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if want == 2 {
			if err := p.result(p.ask(tcp, 1)); err != nil {
				t.Fatal(err)
			}
		}
		r = p.request()
	}
	p.serve(r)
}

func TestOneBatchUnderWay(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	six := Kind{unix.AF_INET6, unix.SOCK_STREAM, 0}
	a := p.ask(tcp, 1)
	first := p.request()
	b, c := p.ask(udp, 1), p.ask(six, 1)
	p.waiting(udp, 1)
	p.waiting(six, 1)
	p.idle()
	// An epoll request goes out at once, behind the one batch.
	added := make(chan error, 1)
	go func() { added <- p.client.EpollAdd(p.fd, p.fd, 5, 0, 0) }()
	epoll := p.request()
	if epoll.op != opEpollAdd {
		t.Fatalf("request %+v, want an epoll request", epoll)
	}
	p.serve(first)
	p.answer(reply{op: opEpollAdd, tag: epoll.tag}, 0)
	for range 2 {
		r := p.request()
		p.idle()
		p.serve(r)
	}
	for _, results := range []<-chan error{a, b, c, added} {
		if err := p.result(results); err != nil {
			t.Error(err)
		}
	}
}

// A request that the kernel does not send ends the waits for that kind, and the next pool has its
// turn. The client lives on.
func TestRequestIsNotSent(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newUnreadPeer(t)
	raw, err := p.client.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	pathOnly, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pathOnly)
	kept := -1
	// replace puts another file at the control socket's descriptor.
	replace := func(file int) {
		t.Helper()
		cerr := raw.Control(func(fd uintptr) {
			if kept < 0 {
				kept, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			}
			if err == nil {
				err = unix.Dup3(file, int(fd), unix.O_CLOEXEC)
			}
		})
		if err := errors.Join(cerr, err); err != nil {
			t.Fatal(err)
		}
	}

	answered := p.ask(tcp, 1)
	first := p.request()
	queued := []<-chan error{p.ask(udp, 2), p.ask(Kind{unix.AF_INET6, unix.SOCK_STREAM, 0}, 1)}
	p.waiting(udp, 2)
	p.waiting(Kind{unix.AF_INET6, unix.SOCK_STREAM, 0}, 1)
	replace(pathOnly) // sendmsg(2) gives EBADF
	if err := p.client.complete(reply{op: opSockets, tag: first.tag, status: statusRefused, errno: unix.ENFILE}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.result(answered); !errors.Is(err, unix.ENFILE) {
		t.Errorf("the call whose request was sent: %v, want ENFILE", err)
	}
	for _, results := range queued {
		for range cap(results) {
			if err := p.result(results); !errors.Is(err, unix.EBADF) || errors.Is(err, ErrGone) {
				t.Errorf("a call whose request was not sent: %v, want EBADF", err)
			}
		}
	}
	if n := p.client.kinds(); n != 0 {
		t.Errorf("%d pools left after every request failed", n)
	}

	replace(kept)
	defer unix.Close(kept)
	again := p.ask(udp, 1)
	second := p.request()
	if second.op != opSockets || second.kind != udp {
		t.Fatalf("request %+v, want sockets of %v", second, udp)
	}
	// An answer to a request that nobody waits for ends the client.
	if err := p.client.complete(reply{op: opSockets, tag: first.tag}, nil); !errors.Is(err, errProtocol) {
		t.Errorf("an answer that comes twice: %v, want a broken protocol", err)
	}
	p.client.fail(ErrGone)
	if err := p.result(again); !errors.Is(err, ErrGone) {
		t.Errorf("a call that waits when the client ends: %v", err)
	}
	// What comes after the end is not kept.
	if err := p.client.complete(reply{op: opSockets, tag: second.tag}, nil); err != nil {
		t.Errorf("an answer after the end: %v", err)
	}
}

func TestManyWaiters(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	results := p.ask(tcp, 1)
	first := p.request()
	more := p.ask(tcp, 99)
	p.waiting(tcp, 100)
	p.serve(first) // two of them
	for _, want := range []uint32{64, 64} {
		r := p.request()
		if r.count != want {
			t.Errorf("%d sockets asked for, want %d", r.count, want)
		}
		p.serve(r)
	}
	for range 99 {
		if err := p.result(more); err != nil {
			t.Error(err)
		}
	}
	if err := p.result(results); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	testkit.CheckLeaks(t)
	for name, test := range map[string]struct {
		status status
		errno  unix.Errno
		made   int
		kernel bool
	}{
		"kernel refuses":         {statusRefused, unix.ENFILE, 0, true},
		"kernel refuses some":    {statusRefused, unix.ENOBUFS, 1, true},
		"keeper's fault":         {statusFault, unix.EMFILE, 0, false},
		"keeper's after the 1st": {statusFault, unix.ETOOMANYREFS, 1, false},
	} {
		p := newPeer(t)
		results := p.ask(tcp, 3)
		r := p.request()
		p.waiting(tcp, 3)
		p.answer(reply{op: opSockets, tag: r.tag, status: test.status, errno: test.errno, count: test.made}, test.made)
		good := 0
		for range 3 {
			err := p.result(results)
			if err == nil {
				good++
				continue
			}
			var refused *SocketError
			if errors.As(err, &refused) != test.kernel || !errors.Is(err, test.errno) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if good != test.made {
			t.Errorf("%s: %d sockets, want %d", name, good, test.made)
		}
		p.idle()
		// Nothing is remembered of it.
		results = p.ask(tcp, 1)
		r = p.request()
		if r.count != 2 {
			t.Errorf("%s: %d sockets asked for afterwards, want 2", name, r.count)
		}
		p.serve(r)
		if err := p.result(results); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
}

func TestRawSocketsAreNotMadeAhead(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	for _, kind := range []Kind{
		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {unix.AF_PACKET, unix.SOCK_DGRAM, 8}, {unix.AF_NETLINK, unix.SOCK_RAW, 0},
	} {
		for range 3 {
			results := p.ask(kind, 1)
			r := p.request()
			if r.count != 1 || r.kind != kind {
				t.Errorf("%v: request %+v, want one socket", kind, r)
			}
			p.serve(r)
			if err := p.result(results); err != nil {
				t.Error(err)
			}
		}
	}
	p.idle()
	if n := p.client.kinds(); n != 0 {
		t.Errorf("%d pools are left", n)
	}
}

func TestUnusedPoolsShrink(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	results := p.ask(tcp, 65)
	r := p.request()
	p.waiting(tcp, 65)
	p.serve(r)
	p.serve(p.request())
	for range 65 {
		if err := p.result(results); err != nil {
			t.Error(err)
		}
	}
	p.serve(p.request()) // for nobody
	testkit.Eventually(t, func() error {
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		if p.client.pools[tcp].size == batchMax {
			return errors.New("the pool does not shrink by itself")
		}
		return nil
	})
	for range 6 {
		p.client.shrink() // rather than wait for it
	}
	if n := p.stock(tcp); n != 1 {
		t.Errorf("%d idle sockets are left, want 1", n)
	}
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	if p.client.timed {
		t.Error("the timer runs with nothing to do")
	}
}

func TestBrokenProtocol(t *testing.T) {
	testkit.CheckLeaks(t)
	for name, send := range map[string]func(p *peer, tag uint32){
		"bytes":             func(p *peer, _ uint32) { p.send([]byte("hello"), nil) },
		"a long one":        func(p *peer, _ uint32) { p.send(make([]byte, replySize+1), []int{p.fd, p.fd}) },
		"another tag":       func(p *peer, tag uint32) { p.answer(reply{op: opSockets, tag: tag + 1, count: 2}, 2) },
		"another op":        func(p *peer, tag uint32) { p.answer(reply{op: opEpollAdd, tag: tag}, 0) },
		"too few files":     func(p *peer, tag uint32) { p.answer(reply{op: opSockets, tag: tag, count: 2}, 1) },
		"too many":          func(p *peer, tag uint32) { p.answer(reply{op: opSockets, tag: tag, count: 1}, 2) },
		"files twice":       func(p *peer, _ uint32) { p.send([]byte{0}, []int{p.fd}); p.send([]byte{0}, []int{p.fd}) },
		"files, no sockets": func(p *peer, tag uint32) { p.answer(reply{op: opEpollAdd, tag: tag}, 1) },
		"malformed":         func(p *peer, tag uint32) { p.answer(reply{tag: tag, status: statusMalformed, errno: unix.EPROTO}, 0) },
		"end of file":       func(p *peer, _ uint32) { _ = unix.Shutdown(p.fd, unix.SHUT_RDWR) },
	} {
		p := newPeer(t)
		results := p.ask(tcp, 1)
		r := p.request()
		send(p, r.tag)
		if err := p.result(results); !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, want %v", name, err, ErrGone)
		}
		testkit.Eventually(t, func() error {
			if n := p.broken.Load(); n != 1 {
				return errors.New("process was not ended")
			}
			return nil
		})
	}
}

func TestNoSuchSocket(t *testing.T) {
	testkit.CheckLeaks(t)
	k := start(t, Config{})
	for _, test := range []struct {
		kind Kind
		want unix.Errno
	}{
		{Kind{60, unix.SOCK_STREAM, 0}, unix.EAFNOSUPPORT},
		{Kind{-1, unix.SOCK_STREAM, 0}, unix.EAFNOSUPPORT},
		{Kind{unix.AF_INET, 9, 0}, unix.ESOCKTNOSUPPORT},
		{Kind{unix.AF_INET, 12, 0}, unix.EINVAL},
		{Kind{unix.AF_INET, unix.SOCK_STREAM | 1<<20, 0}, unix.EINVAL},
		{Kind{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_UDP}, unix.EPROTONOSUPPORT},
	} {
		for range 3 {
			_, err := k.Socket(test.kind)
			var refused *SocketError
			if !errors.As(err, &refused) || refused.Errno != test.want {
				t.Errorf("%v: %v, want %v", test.kind, err, test.want)
			}
		}
	}
	if _, err := k.Socket(Kind{1 << 40, unix.SOCK_STREAM, 0}); err == nil {
		t.Error("family that is no int was accepted")
	}
	if n := k.kinds(); n != 0 {
		t.Errorf("%d pools are left", n)
	}
	socket(t, k, tcp)
}

func TestCloexecIsNoKind(t *testing.T) {
	testkit.CheckLeaks(t)
	p := newPeer(t)
	for _, typ := range []int{tcp.Type, tcp.Type | unix.SOCK_CLOEXEC} {
		results := p.ask(Kind{tcp.Family, typ, tcp.Protocol}, 1)
		if typ == tcp.Type {
			p.serve(p.request()) // both are in it
		}
		if err := p.result(results); err != nil {
			t.Error(err)
		}
	}
}
