package testkit

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// NewLoopback makes a network namespace for a test that has a loopback and nothing else,
// with these addresses besides the usual ones. It is closed with the test, which is
// skipped where it has no privilege.
func NewLoopback(t TB, addrs ...netip.Addr) *netns.NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("skip: needs root")
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { ns.Close() })
	for _, a := range addrs {
		prefix := netip.PrefixFrom(a, a.BitLen())
		if err := ns.Do(func() error { return addToLoopback(prefix) }); err != nil {
			t.Fatalf("%v", err)
		}
		Eventually(t, func() error { return ns.Do(func() error { return isLocal(a.AsSlice()) }) })
	}
	return ns
}

// AddToLoopback gives the loopback of the calling thread's network namespace an address, and waits
// until the kernel delivers packets for it.
func AddToLoopback(t TB, prefix string) {
	t.Helper()
	p, err := netip.ParsePrefix(prefix)
	if err == nil {
		err = addToLoopback(p)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	Eventually(t, func() error { return isLocal(p.Addr().AsSlice()) })
}

func addToLoopback(p netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	ipnet := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipnet, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("give loopback the address %s: %w", p, err)
	}
	return nil
}

// isLocal tells what keeps the kernel from delivering packets for an address. An IPv6 address can be
// bound before: a worker adds its route (addrconf_dad_work).
func isLocal(addr net.IP) error {
	routes, err := netlink.RouteGet(addr)
	if err == nil && routes[0].Type != unix.RTN_LOCAL {
		err = fmt.Errorf("the route to it is %v", routes[0])
	}
	return err
}
