package keeper

import (
	"testing"

	"golang.org/x/sys/unix"
)

// stocked is a client with a socket in its pool and a batch asked for, so that
// Socket takes the fast path; refill puts the socket back.
func stocked(t testing.TB) (c *client, refill func(fd int)) {
	p := newPeer(t)
	results := p.ask(tcp, 1)
	p.serve(p.request())
	if err := p.result(results); err != nil {
		t.Fatal(err)
	}
	c = p.client
	c.mu.Lock()
	defer c.mu.Unlock()
	pool := c.pools[tcp]
	pool.asked = true
	return c, func(fd int) { pool.idle = append(pool.idle, fd) }
}

func TestFastPathAllocatesNothing(t *testing.T) {
	c, refill := stocked(t)
	n := testing.AllocsPerRun(1000, func() {
		fd, err := c.Socket(tcp)
		if err != nil {
			t.Fatal(err)
		}
		refill(fd)
	})
	if n != 0 {
		t.Errorf("%v allocations per socket", n)
	}
}

// BenchmarkFastPath is a socket from the pool.
func BenchmarkFastPath(b *testing.B) {
	c, refill := stocked(b)
	b.ReportAllocs()
	for b.Loop() {
		fd, err := c.Socket(tcp)
		if err != nil {
			b.Fatal(err)
		}
		refill(fd)
	}
}

// BenchmarkSocket is what a socket costs in all, as fast as it can be had.
func BenchmarkSocket(b *testing.B) {
	k := start(b, Config{})
	b.ReportAllocs()
	for b.Loop() {
		fd, err := k.Socket(tcp)
		if err != nil {
			b.Fatal(err)
		}
		unix.Close(fd)
	}
}

// BenchmarkDirect is the same without a keeper, for comparison.
func BenchmarkDirect(b *testing.B) {
	for b.Loop() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		unix.Close(fd)
	}
}

func BenchmarkEpollAddDel(b *testing.B) {
	k := start(b, Config{})
	ep, s := newEpoll(b), bound(b, k)
	for b.Loop() {
		if err := k.EpollAdd(int(ep.Fd()), int(s.Fd()), 10, unix.EPOLLIN, 1); err != nil {
			b.Fatal(err)
		}
		if err := k.EpollDel(int(ep.Fd()), int(s.Fd()), 10); err != nil {
			b.Fatal(err)
		}
	}
}
