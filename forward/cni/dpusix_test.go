package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// With an uplink of IPv6, pods reach pods of another node by both families, and the outside by IPv6 with
// the masquerade address, which answers neighbor solicitations. ICMPv6 errors come back.
func TestDPUOverIPv6(t *testing.T) {
	f := newFabric(t)
	one, two := f.bareNode(1), f.bareNode(2)
	for _, n := range []*node{one, two} {
		n.six = true
		n.startAgent()
		n.startControl("")
	}
	net2, net1 := two.network(nil), one.network(nil)
	remote, a := net2.pods(1)[0], net1.pods(1)[0]
	one.echo(a, remote)
	one.echo(remote, a)

	own := netip.MustParseAddr(one.addr(100 + one.number))
	for range 2 { // the second time, the gateway asks again
		if from := seenOutside(t, f, a); from != own {
			t.Errorf("the outside sees %s, want %s", from, own)
		}
		f.neighbor(own)
	}

	var closed *net.UDPConn
	must(t, a.ns.Do(func() (err error) {
		closed, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(outside6, 9)))
		return err
	}))
	defer closed.Close()
	testkit.Eventually(t, func() error {
		if _, err := closed.Write([]byte("a")); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		must(t, closed.SetReadDeadline(time.Now().Add(time.Second)))
		if _, err := closed.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("a closed port of the outside: %w", err)
		}
		return nil
	})
	must(t, errors.Join(net1.del(a), net2.del(remote)))
}

// seenOutside is the source address of a pod's datagrams, whose answers it gets.
func seenOutside(t *testing.T, f *fabric, p *pod) (from netip.Addr) {
	t.Helper()
	var server, client *net.UDPConn
	must(t, f.ns.Do(func() (err error) {
		server, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(outside6, 1001)))
		return err
	}))
	defer server.Close()
	must(t, p.ns.Do(func() (err error) {
		client, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(outside6, 1001)))
		return err
	}))
	defer client.Close()
	testkit.Eventually(t, func() error {
		buf := []byte("a")
		if _, err := client.Write(buf); err != nil {
			return err
		}
		limit := time.Now().Add(time.Second)
		must(t, errors.Join(server.SetReadDeadline(limit), client.SetReadDeadline(limit)))
		_, at, err := server.ReadFromUDPAddrPort(buf)
		if err != nil {
			return fmt.Errorf("the datagram: %w", err)
		}
		from = at.Addr()
		if _, err := server.WriteToUDPAddrPort(buf, at); err != nil {
			return err
		}
		if _, err := client.Read(buf); err != nil {
			return fmt.Errorf("the answer: %w", err)
		}
		return nil
	})
	return from
}

// neighbor checks that the gateway has learned an address, and has it forget that.
func (f *fabric) neighbor(a netip.Addr) {
	f.t.Helper()
	must(f.t, f.ns.Do(func() error {
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		list, err := netns.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(br.Attrs().Index, netlink.FAMILY_V6) })
		for _, n := range list {
			if addrOf(n.IP) == a && len(n.HardwareAddr) == 6 {
				return netlink.NeighDel(&n)
			}
		}
		return errors.Join(err, fmt.Errorf("the gateway knows the neighbors %v, and not %s", list, a))
	}))
}
