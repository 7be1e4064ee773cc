package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
)

func ask(t *testing.T, fd int, server netip.AddrPort) bool {
	t.Helper()
	if err := unix.Sendto(fd, []byte("ask"), 0, sockaddr(server)); err != nil {
		t.Fatal(err)
	}
	_, from, heard := hears(t, fd, testkit.Patience)
	return heard && from == server
}

// At its deadline, a flow checks whether it was used since. The test moves the deadlines.
func TestIdleFlowsEnd(t *testing.T) {
	testkit.CheckLeaks(t)
	const idle = time.Hour
	c := newContainer(t, newHost(t), "a", idle)
	server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	fd := c.hostSocket(t, unix.AF_INET)
	answered := func(when string) *flow {
		t.Helper()
		if !ask(t, fd, server) {
			t.Fatalf("no answer %s", when)
		}
		return c.flowOf(t, fd)
	}
	first := answered("at first")
	for range 3 {
		first.expire(t)
		if now := answered("while the flow is used"); now != first {
			t.Fatal("another flow, though it was used")
		}
	}
	first.used.Store(int64(time.Since(start) - idle))
	first.expire(t)
	testkit.Eventually(t, func() error {
		if n := c.flowCount(); n != 0 {
			return fmt.Errorf("%d flows", n)
		}
		return nil
	})
	if c.enforced.SentToRelay(false, portOf(t, fd)) {
		t.Error("the sender takes up room though its flow has ended")
	}
	if now := answered("after the flow had ended"); now == nil || now == first {
		t.Error("a flow that has ended is used")
	}
}

// expire moves the deadline of a flow into the past.
func (f *flow) expire(t *testing.T) {
	t.Helper()
	if err := f.file.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
}

// The deadline comes without expire.
func TestUnusedFlowEnds(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", time.Millisecond)
	server, seen := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	if err := unix.Sendto(c.hostSocket(t, unix.AF_INET), []byte("x"), 0, sockaddr(server)); err != nil {
		t.Fatal(err)
	}
	<-seen // by a flow
	testkit.Eventually(t, func() error {
		if n := c.flowCount(); n != 0 {
			return fmt.Errorf("%d flows", n)
		}
		return nil
	})
}

// flowOf returns the flow of a sender, or nil.
func (c *container) flowOf(t *testing.T, fd int) *flow {
	t.Helper()
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	return c.relay.flows[flowKey{false, portOf(t, fd)}]
}

func TestFlowsAreBounded(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	var fds []int
	for range flowsMax + 20 {
		fds = append(fds, c.hostSocket(t, unix.AF_INET))
	}
	before, err := testkit.ProcessUsage(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		if !ask(t, fd, server) {
			t.Fatalf("sender %d got no answer", i)
		}
	}
	if n := c.flowCount(); n != flowsMax {
		t.Errorf("%d flows, want %d", n, flowsMax)
	}
	c.relay.mu.Lock()
	if c.relay.flows[flowKey{false, portOf(t, fds[0])}] != nil || c.relay.flows[flowKey{false, portOf(t, fds[len(fds)-1])}] == nil {
		t.Error("it is not the oldest flows that made room")
	}
	c.relay.mu.Unlock()
	after, err := testkit.ProcessUsage(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// The keeper has some sockets in its pool.
	if n := after.FDs - before.FDs; n > flowsMax+64 {
		t.Errorf("%d open files for %d flows", n, flowsMax)
	}
	if !ask(t, fds[0], server) {
		t.Error("the oldest sender gets no answer any more")
	}
}

// brokenNamespace is a namespace in which no socket can be made.
type brokenNamespace struct{ cookie uint64 }

func (n brokenNamespace) Cookie() uint64                  { return n.cookie }
func (n brokenNamespace) Keeper() (*keeper.Keeper, error) { return nil, errors.New("no keeper here") }

func TestWithoutKeeperDatagramsAreLost(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	if err := c.own.keeper.Close(); err != nil {
		t.Fatal(err)
	}
	fd := c.hostSocket(t, unix.AF_INET)
	if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(server)); err != nil {
		t.Fatal(err)
	}
	c.losesOne(t)
	if n, _, err := unix.Recvfrom(fd, make([]byte, 8), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an answer of %d bytes without a socket to ask with (%v)", n, err)
	}
	_, err := Start(Config{Enforcement: c.enforced, Host: brokenNamespace{c.host.Cookie()}, Own: c.own, Log: c.relay.config.Log})
	if err == nil {
		t.Error("a relay without sockets started")
	}
}
