package netns

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Who follows a namespace's links and routes knows the way to a host, as it is by then.
func TestChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	news, err := ns.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change := func(line string) {
		t.Helper()
		err := ns.Do(func() error { return exec.Command("ip", strings.Fields(line)...).Run() })
		if err != nil {
			t.Fatalf("ip %s: %v", line, err)
		}
	}
	to, gone := netip.MustParseAddr("2001:db8:2::1"), 0
	// until waits for news after which something is so.
	until := func(what string, is func(way Way, framed []int) bool) {
		t.Helper()
		for {
			framed, ferr := ns.Framed()
			way, err := ns.Way(to, netip.Addr{})
			if err != nil || ferr != nil {
				t.Fatal(err, ferr)
			}
			if is(way, framed) {
				return
			}
			c, open := <-news
			if !open {
				t.Fatalf("no more news, and not %s", what)
			}
			gone = max(gone, c.Gone)
		}
	}
	until("without a way", func(way Way, framed []int) bool {
		return way == Way{} && slices.Equal(framed, []int{1})
	})
	change("link add name one type veth peer name one-peer")
	change("link set one-peer up")
	change("link set one up")
	link := 0
	until("with a link", func(_ Way, framed []int) bool {
		link = slices.Max(framed)
		return len(framed) == 3
	})
	change("address add 2001:db8:1::1/64 dev one nodad")
	change("route add 2001:db8:2::/64 via 2001:db8:1::9")
	own, router := netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:1::9")
	until("with a way", func(way Way, framed []int) bool {
		return slices.Contains(framed, way.Device) && way.Device != 1 && way.Source == own && way.Next == router
	})
	near := netip.MustParseAddr("2001:db8:1::7")
	if way, err := ns.Way(near, own); err != nil || way.Next != near || way.Source != own {
		t.Errorf("the way to a neighbour: %+v, %v", way, err)
	}
	// Nothing but the router changes after this.
	if news, err = ns.Changes(t.Context()); err != nil {
		t.Fatal(err)
	}
	change("neigh add 2001:db8:1::9 lladdr 02:00:00:00:00:09 dev one router nud reachable")
	change("neigh change 2001:db8:1::9 lladdr 02:00:00:00:00:09 dev one router nud failed")
	if c, open := <-news; !open || c != (Change{}) {
		t.Errorf("after a router is lost: %v, %v", c, open)
	}
	change("link add name upper type bridge")
	change("link set one master upper")
	until("with a port", func(_ Way, framed []int) bool {
		return !slices.Contains(framed, link) && len(framed) == 3
	})
	change("link set one nomaster")
	until("without a port", func(_ Way, framed []int) bool {
		return slices.Contains(framed, link)
	})
	gone = 0 // a bridge's port is gone, too
	change("link del one")
	until("told which link is gone", func(way Way, _ []int) bool {
		return gone == link && way == Way{}
	})
	to = netip.MustParseAddr("::1")
	until("on the machine", func(way Way, _ []int) bool { return way == Way{} })
}

// A router that does not answer any more is news: the kernel may prefer another one by then.
func TestLostRouter(t *testing.T) {
	for name, tt := range map[string]struct {
		typ          uint16
		flags, state int
		want         bool
	}{
		"lost":      {unix.RTM_NEWNEIGH, netlink.NTF_ROUTER, netlink.NUD_FAILED, true},
		"answers":   {unix.RTM_NEWNEIGH, netlink.NTF_ROUTER, netlink.NUD_REACHABLE, false},
		"no router": {unix.RTM_NEWNEIGH, 0, netlink.NUD_FAILED, false},
		"forgotten": {unix.RTM_DELNEIGH, netlink.NTF_ROUTER, netlink.NUD_FAILED, false},
	} {
		n := netlink.NeighUpdate{Type: tt.typ, Neigh: netlink.Neigh{Flags: tt.flags, State: tt.state}}
		if got := isLost(n); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A link in a VRF keeps its packets. The ports of other masters do not, nor have links without
// Ethernet's header any.
func TestFramed(t *testing.T) {
	link := func(number, master int, encap string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: number, MasterIndex: master, EncapType: encap}
	}
	got := framed([]netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, EncapType: "loopback", Flags: net.FlagLoopback}},
		&netlink.Device{LinkAttrs: link(2, 0, "ether")},
		&netlink.Device{LinkAttrs: link(3, 10, "ether")},
		&netlink.Device{LinkAttrs: link(4, 11, "ether")},
		&netlink.Device{LinkAttrs: link(5, 12, "ether")},
		&netlink.Wireguard{LinkAttrs: link(6, 0, "none")},
		&netlink.Vrf{LinkAttrs: link(10, 0, "ether")},
		&netlink.Bridge{LinkAttrs: link(11, 0, "ether")},
		&netlink.Bond{LinkAttrs: link(12, 0, "ether")},
	})
	if want := []int{1, 2, 3, 10, 11, 12}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
