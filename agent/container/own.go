package container

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/policy"
)

// Use makes a namespace the container's own, unless it is the host's.
func (c *Container) Use(own *netns.NS) error {
	c.ownNS = own
	return c.checkOwn()
}

func (c *Container) checkOwn() error {
	if c.ownNS.Cookie() == c.host[""].Cookie() {
		return fmt.Errorf("network namespace %s is the host's, in which nothing needs grafting; name another, or \"new\"", c.spec.Netns)
	}
	c.addressLoopback()
	return nil
}

// # Addresses for resolvers
//
// getaddrinfo(3) with AI_ADDRCONFIG asks for IPv4 addresses only where the namespace has an IPv4
// address that is not the loopback's, and for IPv6 likewise. Most programs set it, or have it set:
// a container with nothing but a loopback would find no host by name, though its rules lead there.
// So the loopback gets an address of each family that an egress rule is of. Both are set aside for
// hosts that nobody routes to: the IPv4 dummy address (RFC 7600) and one of the discard prefix
// (RFC 6666).
var (
	dummy4 = netip.MustParseAddr("192.0.0.8")
	dummy6 = netip.MustParseAddr("100::1")
)

// addressLoopback gives the loopback of a container that has nothing else these addresses. A
// container without them works, but for such programs.
func (c *Container) addressLoopback() {
	if !c.hasOnlyLoopback() {
		return
	}
	for _, addr := range []netip.Addr{dummy4, dummy6} {
		if !leavesBy(c.spec.Egress, addr.Is6()) {
			continue
		}
		if err := c.ownNS.AddToLoopback(addr); err != nil && !errors.Is(err, unix.EEXIST) {
			c.spec.Decisions.Warn("programs that ask for names with AI_ADDRCONFIG may find no addresses", "addr", addr, "err", err)
		}
	}
}

// leavesBy tells whether a rule leads to other hosts by a family.
func leavesBy(rules []policy.Egress, ip6 bool) bool {
	for _, r := range rules {
		special, is := policy.Special(r.Prefix.Addr())
		if r.Prefix.Addr().Is6() == ip6 && (!is || special.Bits() > r.Prefix.Bits()) {
			return true
		}
	}
	return false
}
