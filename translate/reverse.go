package translate

import (
	"net/netip"
	"strconv"
	"strings"
)

// ReverseName returns the name under which DNS has the names of an address (RFC 1035 section 3.5,
// RFC 3596 section 2.5). It ends with a dot.
func ReverseName(a netip.Addr) string {
	var b strings.Builder
	octets := a.AsSlice()
	for i := len(octets) - 1; i >= 0; i-- {
		if a.Is4() {
			b.WriteString(strconv.Itoa(int(octets[i])) + ".")
			continue
		}
		const digits = "0123456789abcdef"
		b.Write([]byte{digits[octets[i]&15], '.', digits[octets[i]>>4], '.'})
	}
	if a.Is4() {
		return b.String() + "in-addr.arpa."
	}
	return b.String() + "ip6.arpa."
}

// ParseReverse4 returns the IPv4 address of such a name. A name of a whole network has none.
func ParseReverse4(name string) (netip.Addr, bool) {
	const zone = ".in-addr.arpa"
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	octets := strings.Split(strings.TrimSuffix(name, zone), ".")
	if !strings.HasSuffix(name, zone) || len(octets) != 4 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(octets[3] + "." + octets[2] + "." + octets[1] + "." + octets[0])
	return a, err == nil && a.Is4()
}
