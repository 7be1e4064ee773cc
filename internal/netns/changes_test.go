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
	until := func(what string, is func(device int, source netip.Addr, framed []int) bool) {
		t.Helper()
		for {
			framed, ferr := ns.Framed()
			device, source, err := ns.Way(to)
			if err != nil || ferr != nil {
				t.Fatal(err, ferr)
			}
			if is(device, source, framed) {
				return
			}
			c, open := <-news
			if !open {
				t.Fatalf("no more news, and not %s", what)
			}
			gone = max(gone, c.Gone)
		}
	}
	until("without a way", func(device int, _ netip.Addr, framed []int) bool {
		return device == 0 && slices.Equal(framed, []int{1})
	})
	change("link add name one type veth peer name one-peer")
	change("link set one-peer up")
	change("link set one up")
	link := 0
	until("with a link", func(_ int, _ netip.Addr, framed []int) bool {
		link = slices.Max(framed)
		return len(framed) == 3
	})
	change("address add 2001:db8:1::1/64 dev one nodad")
	change("route add 2001:db8:2::/64 via 2001:db8:1::9")
	until("with a way", func(device int, source netip.Addr, framed []int) bool {
		return slices.Contains(framed, device) && device != 1 && source == netip.MustParseAddr("2001:db8:1::1")
	})
	change("link add name upper type bridge")
	change("link set one master upper")
	until("with a port", func(_ int, _ netip.Addr, framed []int) bool {
		return !slices.Contains(framed, link) && len(framed) == 3
	})
	change("link set one nomaster")
	until("without a port", func(_ int, _ netip.Addr, framed []int) bool {
		return slices.Contains(framed, link)
	})
	gone = 0 // a bridge's port is gone, too
	change("link del one")
	until("told which link is gone", func(device int, _ netip.Addr, _ []int) bool {
		return gone == link && device == 0
	})
	to = netip.MustParseAddr("::1")
	until("on the machine", func(device int, _ netip.Addr, _ []int) bool { return device == 0 })
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
