package enforcer

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// addLink makes a link with an address, by which a network is reached.
func addLink(t *testing.T, prefix, network string) {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	_, to, err := net.ParseCIDR(network)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link), up("veth1"), netlink.AddrAdd(link, addr),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: to, Scope: netlink.SCOPE_LINK}))
	if err != nil {
		t.Fatal(err)
	}
}

// A datagram socket that had a port before it connected has a source of the kernel's choice. Unless
// that is the rule's, nothing leaves: neither to the host itself, nor when the rule has gone. What
// has left before goes on then.
func TestSourceOfTheKernelsChoice(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		c := list[0]
		if err := c.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		addLink(t, "203.0.113.9/24", "198.51.100.0/24")
		testkit.AddToLoopback(t, "198.51.100.1/32")
		testkit.AddToLoopback(t, "198.51.100.3/32")
		connect := func(to string) int {
			s := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
			if err := errors.Join(unix.Bind(s, sockaddr.Of(netip.MustParseAddrPort("0.0.0.0:0"))), unix.Connect(s, sockaddr.Of(netip.MustParseAddrPort(to)))); err != nil {
				t.Fatal(err)
			}
			return s
		}
		send := func(name string, s int, want error) {
			t.Helper()
			if _, err := unix.Write(s, []byte(name)); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		local, wrong, right := connect("198.51.100.3:53"), connect("198.51.100.2:53"), connect("203.0.113.10:53")
		defer unix.Close(local)
		send("to the host", local, unix.EPERM)
		send("another's source", wrong, unix.EPERM)
		send("the rule's source", right, nil)
		next, err := c.table.Next(nil, nil)
		if err == nil {
			err = c.Update(next, func(*endpoint.Endpoint) uint64 { return here })
		}
		if err != nil {
			t.Fatal(err)
		}
		send("another's source, without the rule", wrong, unix.EPERM)
		send("the rule's source, without the rule", right, nil)
	}, []string{"198.51.100.0/24:53=a", "203.0.113.0/24:53=any"})
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}
