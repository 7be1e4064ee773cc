package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A Service's answers go back through the host, which translates them, while the same pods
// reach each other directly.
func TestService(t *testing.T) {
	nft := testkit.Program(t, "nft")
	r := newRig(t, true, 2)
	a, b := r.pods[0], r.pods[1]
	service := netip.MustParseAddrPort("203.0.113.80:7000")
	service6 := netip.MustParseAddrPort("[2001:db8:5::80]:7000")
	r.do(func() error {
		rules := fmt.Sprintf(`table inet s { chain pre { type nat hook prerouting priority dstnat;
			ip daddr %s meta l4proto { tcp, udp } th dport 7000 dnat ip to %s;
			ip6 daddr %s meta l4proto { tcp, udp } th dport 7000 dnat ip6 to [%s]:7; }; }`,
			service.Addr(), b.at(0), service6.Addr(), b.Addrs[1])
		out, err := exec.CommandContext(context.Background(), nft, rules).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	for _, to := range []netip.AddrPort{service, service6} {
		before, direct := r.counts(b), r.counts(a)["direct"]
		far := r.dial(a, "tcp", to)
		r.stream(far)
		r.echo(r.dial(a, "udp", to), 64)
		if n := r.counts(b); n["direct"] != before["direct"] || n["flow"] <= before["flow"] {
			t.Errorf("%s: counts of the server %v, then %v", to, before, n)
		}
		near := r.dial(a, "tcp", netip.AddrPortFrom(b.Addrs[0], echoPort))
		r.stream(near)
		near.Close()
		far.Close()
		r.deserted(b) // what comes late would be the next round's
		if n := r.counts(a); n["direct"] <= direct {
			t.Errorf("%s: then directly: counts %v", to, n)
		}
	}
}

// deserted waits until a pod's server has no connection any more. Who has closed one last sends
// nothing more.
func (r *rig) deserted(p *testPod) {
	r.t.Helper()
	testkit.Eventually(r.t, func() error {
		return p.ns.Do(func() error {
			list, err := netns.SocketsAt(unix.IPPROTO_TCP, echoPort)
			if err == nil && len(list) != 1 {
				err = fmt.Errorf("sockets %v, want the one that listens", list)
			}
			return err
		})
	})
}

// Fragments arrive, by the slow way.
func TestFragments(t *testing.T) {
	for name, routed := range map[string]bool{"bridge": false, "routed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, routed, 2)
			for family := range 2 {
				r.echo(r.dial(r.pods[0], "udp", r.pods[1].at(family)), 4000)
			}
			if n := r.counts(r.pods[0]); n["fragment"] < 6 {
				t.Errorf("counts %v", n)
			}
		})
	}
}

// What a router and a host say by ICMP reaches the sender: port closed, too large, TTL over.
func TestICMPErrors(t *testing.T) {
	for name, routed := range map[string]bool{"bridge": false, "routed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, routed, 2)
			a, b := r.pods[0], r.pods[1]
			c := r.dial(a, "udp", netip.AddrPortFrom(b.Addrs[0], 9))
			r.fails(c, 64, unix.ECONNREFUSED)
			if n := r.counts(b); n["protocol"] == 0 {
				t.Errorf("port closed: counts %v", n)
			}
			if !routed {
				return
			}
			r.do(func() error {
				link, err := netlink.LinkByIndex(b.Device)
				if err == nil {
					err = netlink.LinkSetMTU(link, 1300)
				}
				return err
			})
			for family, o := range [][]sockOption{
				{{unix.IPPROTO_IP, unix.IP_RECVERR, 1}, {unix.IPPROTO_IP, unix.IP_TTL, 1}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO}},
				{{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1}, {unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1}, {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO}},
			} {
				before := r.counts(a)
				c := r.dial(a, "udp", b.at(family))
				o[0].set(t, c)
				o[1].set(t, c)
				r.fails(c, 64, unix.EHOSTUNREACH)
				c = r.dial(a, "udp", b.at(family))
				o[2].set(t, c)
				r.fails(c, 1400, unix.EMSGSIZE)
				r.echo(c, 1200) // as it has learned
				if n := r.counts(a); n["ttl"] <= before["ttl"] || n["size"] <= before["size"] {
					t.Errorf("counts %v, then %v", before, n)
				}
			}
		})
	}
}

// sockOption is one of setsockopt(2).
type sockOption struct{ level, name, value int }

func (o sockOption) set(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), o.level, o.name, o.value) }))
	must(t, err)
}

// fails sends until the kernel says by an error what it heard.
func (r *rig) fails(c net.Conn, size int, want error) {
	r.t.Helper()
	buf := make([]byte, size)
	testkit.Eventually(r.t, func() error {
		_, err := c.Write(buf)
		if err == nil {
			must(r.t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			_, err = c.Read(buf)
		}
		if errors.Is(err, want) {
			return nil
		}
		return fmt.Errorf("%w, want %w", err, want)
	})
}

// With a wire, what is not direct goes to the switch at its other end, and comes from there.
func TestWires(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	for i, p := range r.pods {
		r.wire(i, p)
	}
	r.do(func() error { return r.table.SetPair(a.Device, b.Device, Slow) })
	for family := range 2 {
		r.echo(r.dial(a, "udp", b.at(family)), 128)
	}
	far := r.dial(a, "tcp", b.at(0))
	r.stream(far)
	slow := r.counts(a)
	r.do(func() error { return r.table.SetPair(a.Device, b.Device, Direct) })
	near := r.dial(a, "tcp", b.at(1))
	r.stream(near)
	if n := r.counts(a); slow["direct"] != 0 || slow["pair"] == 0 || n["direct"] == 0 {
		t.Errorf("counts %v, then %v", slow, n)
	}
	far.Close()
	near.Close()
	r.deserted(b) // nor does the pod send anything but the datagrams then
	r.deafEnd(a, b)
	r.do(func() error { return errors.Join(r.table.Remove(a.Device), r.table.Remove(b.Device)) })
	r.empty()
}

// wire has a pod lead to the bridge by a wire.
func (r *rig) wire(i int, p *testPod) {
	r.t.Helper()
	r.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("wire%d", i)
		wire := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("port%d", i)}
		err := errors.Join(r.table.Remove(p.Device), r.table.Detach(p.Pod), netlink.LinkAdd(wire))
		if err != nil {
			return err
		}
		port, err := netlink.LinkByName(wire.PeerName)
		if err != nil {
			return err
		}
		own, err := netlink.LinkByIndex(p.Device)
		p.Wire = wire.Index
		return errors.Join(err, netlink.LinkSetNoMaster(own), netlink.LinkSetMasterByIndex(port, r.bridge),
			netlink.LinkSetUp(port), netlink.LinkSetUp(wire), r.table.Add(p.Pod), r.table.Attached(p.Pod))
	})
}

// deafEnd has the host ignore what arrives at a switch's port: a slow datagram does not come, and
// the direct one that is sent after it does. Pod a sends nothing else.
func (r *rig) deafEnd(a, b *testPod) {
	r.t.Helper()
	c := r.dial(a, "udp", b.at(0))
	r.do(func() error {
		port, err := netlink.LinkByName("port0")
		if err == nil {
			err = errors.Join(r.table.SetPair(a.Device, b.Device, Slow), r.table.End(port.Attrs().Index))
		}
		return err
	})
	before := r.counts(a)["pair"]
	_, err := c.Write([]byte{0})
	must(r.t, err)
	testkit.Eventually(r.t, func() error { // write(2) may return before the program has seen the packet
		if n := r.counts(a)["pair"]; n <= before {
			return fmt.Errorf("%d slow packets, then %d", before, n)
		}
		return nil
	})
	r.do(func() error { return r.table.SetPair(a.Device, b.Device, Direct) })
	_, err = c.Write([]byte{1})
	must(r.t, err)
	got := make([]byte, 2)
	must(r.t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
	if n, err := c.Read(got); err != nil || n != 1 || got[0] != 1 {
		r.t.Errorf("got %x, %v", got[:n], err)
	}
}
