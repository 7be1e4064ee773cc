package translate

import (
	"fmt"
	"net/netip"
	"slices"
)

// NAT64 is the IPv6 prefix of a network's translator to IPv4 (RFC 6052). The zero value means that
// the network has none.
type NAT64 struct{ prefix netip.Prefix }

// The IPv4 addresses of ipv4only.arpa (RFC 7050 section 8.2).
var wellKnown = []netip.Addr{netip.MustParseAddr("192.0.0.170"), netip.MustParseAddr("192.0.0.171")}

// wellKnownPrefix is only for addresses of the IPv4 Internet (RFC 6052 section 3.1).
var wellKnownPrefix = netip.MustParsePrefix("64:ff9b::/96")

// lengths are the lengths of prefixes in bits (RFC 6052 section 2.2).
var lengths = []int{32, 40, 48, 56, 64, 96}

// octetU is the index of the octet of an IPv6 address that must be zero (RFC 6052 section 2.2).
const octetU = 8

// NewNAT64 returns the NAT64 of a prefix. It fails for lengths that RFC 6052 does not have, for
// prefixes in which octet 8 is not zero, and for prefixes of special addresses.
func NewNAT64(prefix netip.Prefix) (NAT64, error) {
	a := prefix.Addr()
	if !a.Is6() || !slices.Contains(lengths, prefix.Bits()) {
		return NAT64{}, fmt.Errorf("NAT64 prefix %s: want an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits", prefix)
	}
	if prefix != prefix.Masked() || a.As16()[octetU] != 0 {
		return NAT64{}, fmt.Errorf("NAT64 prefix %s: bits 64 to 71 and those after the prefix have to be zero", prefix)
	}
	if within(a, never6) {
		return NAT64{}, fmt.Errorf("NAT64 prefix %s: %w", prefix, ErrSpecial)
	}
	return NAT64{prefix}, nil
}

// IsValid tells whether the network has a NAT64.
func (n NAT64) IsValid() bool { return n.prefix.IsValid() }

// String returns the prefix, or "none".
func (n NAT64) String() string {
	if !n.IsValid() {
		return "none"
	}
	return n.prefix.String()
}

// Prefix returns the prefix; the zero value if the network has no NAT64.
func (n NAT64) Prefix() netip.Prefix { return n.prefix }

// OfInternet tells whether the prefix is only for addresses of the IPv4 Internet.
func (n NAT64) OfInternet() bool { return n.prefix == wellKnownPrefix }

// places returns the indexes of the four octets of an IPv6 address that hold the IPv4 address, for
// a prefix length. They follow the prefix and skip octet 8.
func places(bits int) (at [4]int) {
	next := bits / 8
	for i := range at {
		if next == octetU {
			next++
		}
		at[i] = next
		next++
	}
	return at
}

// Embed returns the IPv6 address by which the NAT64 reaches an IPv4 address. It returns none for an
// address that does not belong to a single remote host, and, with the well-known prefix, for an
// address outside of the Internet.
func (n NAT64) Embed(v4 netip.Addr) (netip.Addr, bool) {
	if !n.IsValid() || !v4.Is4() || within(v4, never4) || n.OfInternet() && within(v4, private4) {
		return netip.Addr{}, false
	}
	return n.put(n.prefix.Addr(), v4), true
}

// put sets the IPv4 address in an IPv6 address.
func (n NAT64) put(in, v4 netip.Addr) netip.Addr {
	v6, b := in.As16(), v4.As4()
	for i, at := range places(n.prefix.Bits()) {
		v6[at] = b[i]
	}
	return netip.AddrFrom16(v6)
}

// Extract returns the IPv4 address in an IPv6 address of the NAT64. It returns none if the address
// is not behind the prefix, if octet 8 is not zero, or if Embed would not make the address. It
// ignores the octets after the IPv4 address (RFC 6052 section 2.2).
func (n NAT64) Extract(v6 netip.Addr) (netip.Addr, bool) {
	if !n.Contains(v6) || v6.As16()[octetU] != 0 {
		return netip.Addr{}, false
	}
	v4 := embedded(v6, n.prefix.Bits())
	_, ok := n.Embed(v4)
	return v4, ok
}

// Contains tells whether an IPv6 address has the prefix.
func (n NAT64) Contains(v6 netip.Addr) bool { return n.IsValid() && n.prefix.Contains(v6) }

func embedded(v6 netip.Addr, bits int) netip.Addr {
	b := v6.As16()
	at := places(bits)
	return netip.AddrFrom4([4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]})
}

// Discover finds the network's NAT64 prefixes in the IPv6 addresses that the resolver returns for
// the name ipv4only.arpa (RFC 7050 section 3). The name has two IPv4 addresses. A prefix is certain
// if the answer has both addresses behind it. If there is no such prefix, an address counts if it
// contains one of the two IPv4 addresses at exactly one place.
func Discover(answer []netip.Addr) []NAT64 {
	var certain, likely []NAT64
	for _, v6 := range answer {
		for i, known := range wellKnown {
			found := candidates(v6, known)
			for _, n := range found {
				twin := n.put(v6, wellKnown[1-i])
				if slices.Contains(answer, twin) && !slices.Contains(certain, n) {
					certain = append(certain, n)
				}
				if len(found) == 1 && !slices.Contains(likely, n) {
					likely = append(likely, n)
				}
			}
		}
	}
	if certain != nil {
		return certain
	}
	return likely
}

// candidates returns the prefixes for which an address contains a given IPv4 address.
func candidates(v6, known netip.Addr) (found []NAT64) {
	if !v6.Is6() || v6.Zone() != "" || v6.As16()[octetU] != 0 {
		return nil
	}
	for _, bits := range lengths {
		n, err := NewNAT64(netip.PrefixFrom(v6, bits).Masked())
		if err == nil && embedded(v6, bits) == known {
			found = append(found, n)
		}
	}
	return found
}
