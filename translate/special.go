package translate

import "net/netip"

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

var (
	// never6 lists the IPv6 addresses that do not belong to a remote host: the registry of RFC
	// 6890, and addresses that contain an IPv4 address which the IPv4 stack would take for the
	// destination.
	never6 = prefixes(
		"::/96",           // unspecified, loopback, IPv4-compatible (RFC 4291)
		"::ffff:0:0/96",   // IPv4-mapped (RFC 4291)
		"::ffff:0:0:0/96", // IPv4-translated (RFC 2765)
		"100::/64",        // discarded (RFC 6666)
		"fe80::/10",       // of one link (RFC 4291)
		"fec0::/10",       // of one site (RFC 3879)
		"ff00::/8",        // multicast (RFC 4291)
	)
	// never4 lists the IPv4 addresses that do not belong to a single remote host (RFC 6890).
	never4 = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
	// private4 lists the IPv4 addresses outside of the Internet (RFC 6890). The well-known prefix
	// is not for them.
	private4 = prefixes(
		"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	)
)

func within(a netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// special6 tells whether an address never gets a virtual one. Such an address is no IPv6 address,
// has a zone, does not belong to a remote host, or has the well-known NAT64 prefix with an IPv4
// address outside of the Internet.
func special6(a netip.Addr) bool {
	if !a.Is6() || a.Zone() != "" || within(a, never6) {
		return true
	}
	wellKnown := NAT64{wellKnownPrefix}
	_, ok := wellKnown.Extract(a)
	return wellKnown.Contains(a) && !ok
}

var (
	// Own is the IPv4 address of a container that has no other: that of a host behind a translator
	// (RFC 7335).
	Own = netip.MustParseAddr("192.0.0.2")
	// Nobody stands for a peer that has no virtual address. It is of the same range.
	Nobody = netip.MustParseAddr("192.0.0.7")
)
