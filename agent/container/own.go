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
// address other than a loopback address, and for IPv6 likewise. Most programs or their libraries
// set AI_ADDRCONFIG: in a container with nothing but a loopback, they would find no host by name,
// though rules lead to the host. So the loopback gets an address of each family for which there is
// an egress rule. Nobody routes to either address: they are the IPv4 dummy address (RFC 7600) and
// one of the discard prefix (RFC 6666).
var (
	dummy4 = netip.MustParseAddr("192.0.0.8")
	dummy6 = netip.MustParseAddr("100::1")
)

// addressLoopback gives these addresses to the loopback of a container that has nothing else.
// Without them a container works, except for such programs.
func (c *Container) addressLoopback() {
	if !c.hasOnlyLoopback() {
		return
	}
	for _, addr := range []netip.Addr{dummy4, dummy6} {
		if !leavesBy(c.given.Load().egress, addr.Is6()) {
			continue
		}
		if err := c.ownNS.AddToLoopback(addr); err != nil && !errors.Is(err, unix.EEXIST) {
			c.spec.Decisions.Warn("programs that ask for names with AI_ADDRCONFIG may find no addresses", "addr", addr, "err", err)
		}
	}
}

// leavesBy tells whether a rule leads to other hosts of a family.
func leavesBy(rules []policy.Egress, ip6 bool) bool {
	for _, r := range rules {
		special, is := policy.Special(r.Prefix.Addr())
		if r.Prefix.Addr().Is6() == ip6 && (!is || special.Bits() > r.Prefix.Bits()) {
			return true
		}
	}
	return false
}
