package testkit

import (
	"errors"
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
	err = ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		var errs []error
		for _, a := range addrs {
			errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: unix.IFA_F_NODAD}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return ns
}
