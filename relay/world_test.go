package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

var (
	loop4 = netip.MustParseAddr("127.0.0.1")
	loop6 = netip.IPv6Loopback()
	// The host's other addresses.
	host4 = netip.MustParseAddr("198.51.100.7")
	host6 = netip.MustParseAddr("2001:db8::7")
)

// namespace is a network namespace with a keeper in it.
type namespace struct {
	ns     *netns.NS
	keeper *keeper.Keeper
}

func (n *namespace) Keeper() (*keeper.Keeper, error) { return n.keeper, nil }
func (n *namespace) Cookie() uint64                  { return n.ns.Cookie() }

// container has the parts of a container of package agent that matter to a relay.
type container struct {
	enforced  *enforcer.Enforcement
	host, own *namespace
	relay     *Relay
	lost      atomic.Int32 // datagrams that the relay has logged as lost
}

// container implements slog.Handler for its relay's log.
func (c *container) Enabled(context.Context, slog.Level) bool { return true }
func (c *container) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *container) WithGroup(string) slog.Handler            { return c }
func (c *container) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "a datagram to the container's own loopback was lost" {
		c.lost.Add(1)
	}
	return nil
}

// losesOne waits until the relay has lost its first datagram.
func (c *container) losesOne(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if c.lost.Load() == 0 {
			return errors.New("the relay has not had the datagram")
		}
		return nil
	})
}

// newHost makes a namespace that stands for the host.
func newHost(t *testing.T) *netns.NS {
	t.Helper()
	return testkit.NewLoopback(t, host4, host6)
}

// newContainer makes a container on the host. It may send to any outside address.
func newContainer(t *testing.T, host *netns.NS, name string, idle time.Duration) *container {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Skipf("skip: needs cgroup v2 (%v)", err)
	}
	group, err := cgroup.Create(own, fmt.Sprintf("tsugiki-test-relay-%s-%d", name, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir, err := group.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := &container{
		host: &namespace{ns: host},
		own:  &namespace{ns: testkit.NewLoopback(t)},
	}
	if c.enforced, err = enforcer.Enforce(dir, rules(t), func(*endpoint.Endpoint) uint64 { return host.Cookie() }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.enforced.Close() })
	binary := filepath.Join(testkit.BuildTsugiki(t), keeper.Program)
	c.host.keeper = startKeeper(t, keeper.Config{Binary: binary, Netns: host, CgroupDir: dir})
	c.own.keeper = startKeeper(t, keeper.Config{Binary: binary, Netns: c.own.ns})
	c.relay, err = Start(Config{Enforcement: c.enforced, Host: c.host, Own: c.own, Log: slog.New(c), idle: idle})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.relay.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func startKeeper(t *testing.T, config keeper.Config) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func rules(t *testing.T) *policy.Table {
	t.Helper()
	eps := &endpoint.Set{}
	for _, text := range []string{"any type ipv4 addr 0.0.0.0 port dynamic", "six type ipv6 addr :: port dynamic"} {
		ep, err := endpoint.Parse(text)
		if err == nil {
			err = eps.Add(ep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var egress []policy.Egress
	for _, text := range []string{"0.0.0.0/0=any", "::/0=six"} {
		r, err := policy.ParseEgress(text, eps)
		if err != nil {
			t.Fatal(err)
		}
		egress = append(egress, r)
	}
	table, err := policy.NewTable(nil, egress)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// end returns the relay's end for a family.
func (c *container) end(t *testing.T, ip6 bool) *end {
	t.Helper()
	for _, e := range c.relay.ends {
		if e.ip6 == ip6 {
			return e
		}
	}
	t.Fatalf("relay has no end for IPv6 %v", ip6)
	return nil
}

func (c *container) flowCount() int {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	return len(c.relay.flows)
}

// hostSocket makes a socket on the host, as the container's programs get one.
func (c *container) hostSocket(t *testing.T, family int) int {
	t.Helper()
	fd := c.shortLived(t, family)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// shortLived is hostSocket for a test that closes the socket itself.
func (c *container) shortLived(t *testing.T, family int) int {
	t.Helper()
	fd, err := c.host.keeper.Socket(keeper.Kind{Family: family, Type: unix.SOCK_DGRAM, Protocol: 0})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// serve answers each datagram to an address in a namespace with the same data, and reports the
// sender.
func serve(t *testing.T, ns *netns.NS, at netip.AddrPort) (netip.AddrPort, <-chan netip.AddrPort) {
	t.Helper()
	conn := listen(t, ns, at)
	seen := make(chan netip.AddrPort, 1024)
	go func() {
		b := make([]byte, datagramMax)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				seen <- from
				_, _ = conn.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), seen
}

func listen(t *testing.T, ns *netns.NS, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := ns.Do(func() (err error) {
		network := "udp6"
		if at.Addr().Is4() {
			network = "udp4"
		}
		conn, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// hears returns the datagram that a socket gets within a time.
func hears(t *testing.T, fd int, within time.Duration) ([]byte, netip.AddrPort, bool) {
	t.Helper()
	tv := unix.NsecToTimeval(int64(within))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, datagramMax)
	n, from, err := unix.Recvfrom(fd, b, 0)
	for errors.Is(err, unix.EINTR) {
		n, from, err = unix.Recvfrom(fd, b, 0)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, netip.AddrPort{}, false
	}
	if err != nil {
		t.Fatal(err)
	}
	return b[:n], addrPort(from), true
}

func portOf(t *testing.T, fd int) uint16 {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return addrPort(sa).Port()
}

// closeLast closes a short-lived socket and waits until its port is free: the keeper closes its own
// descriptor a little later.
func (c *container) closeLast(t *testing.T, fd int) {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	testkit.Eventually(t, func() error {
		return c.host.ns.Do(func() error {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addrPort(sa)))
			if err != nil {
				return err
			}
			return conn.Close()
		})
	})
}
