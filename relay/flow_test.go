package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/keeper"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func ask(t *testing.T, fd int, server netip.AddrPort) bool {
	t.Helper()
	if err := unix.Sendto(fd, []byte("ask"), 0, sockaddr(server)); err != nil {
		t.Fatal(err)
	}
	_, from, heard := hears(t, fd, soon)
	return heard && from == server
}

func TestIdleFlowsEnd(t *testing.T) {
	testkit.CheckLeaks(t)
	const idle = 300 * time.Millisecond
	c := newContainer(t, newHost(t), "a", idle)
	server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	fd := c.born(t, unix.AF_INET)
	var last *flow
	for began, used := time.Now(), time.Now(); time.Since(began) < 3*idle; time.Sleep(idle / 10) {
		before := used
		used = time.Now()
		if !ask(t, fd, server) {
			t.Fatal("no answer")
		}
		now := c.flowOf(t, fd)
		// One that a busy machine has kept the test from using may have ended.
		if inTime := time.Since(before) < idle; inTime && now == nil {
			t.Fatal("no flow while it is used")
		} else if inTime && last != nil && now != last {
			t.Fatal("another flow, though it was used")
		}
		last = now
	}
	testkit.Eventually(t, soon, func() error {
		if n := c.flowCount(); n != 0 {
			return fmt.Errorf("%d flows", n)
		}
		return nil
	})
	if c.enforced.SentToRelay(false, portOf(t, fd)) {
		t.Error("the sender takes up room though its flow has ended")
	}
	if !ask(t, fd, server) {
		t.Error("no answer after the flow had ended")
	}
}

// flowOf is the flow of a sender, or nil.
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
		fds = append(fds, c.born(t, unix.AF_INET))
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
	// The keeper's pool of sockets is some.
	if n := after.FDs - before.FDs; n > flowsMax+64 {
		t.Errorf("%d open files for %d flows", n, flowsMax)
	}
	if !ask(t, fds[0], server) {
		t.Error("the oldest sender gets no answer any more")
	}
}

// brokenPlace has no sockets to give.
type brokenPlace struct{ cookie uint64 }

func (p brokenPlace) Cookie() uint64                  { return p.cookie }
func (p brokenPlace) Keeper() (*keeper.Keeper, error) { return nil, errors.New("no keeper here") }

func TestWithoutKeeperDatagramsAreLost(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop4, 0))
	if err := c.own.keeper.Close(); err != nil {
		t.Fatal(err)
	}
	fd := c.born(t, unix.AF_INET)
	if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(server)); err != nil {
		t.Fatal(err)
	}
	if _, _, heard := hears(t, fd, silence); heard {
		t.Error("an answer without a socket to ask with")
	}
	_, err := Start(Config{Enforcement: c.enforced, Host: brokenPlace{c.host.Cookie()}, Own: c.own, Log: c.relay.config.Log})
	if err == nil {
		t.Error("a relay without sockets started")
	}
}
