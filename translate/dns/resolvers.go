package dns

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// Resolvers returns the nameservers of a file like resolv.conf(5). It fails if there is none.
func Resolvers(path string) ([]netip.AddrPort, error) {
	c, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("find resolvers: %w", err)
	}
	var list []netip.AddrPort
	for _, server := range c.Servers {
		addr, err := netip.ParseAddrPort(net.JoinHostPort(server, c.Port))
		if err != nil {
			return nil, fmt.Errorf("find resolvers in %s: %w", path, err)
		}
		list = append(list, addr)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("find resolvers: %s has none", path)
	}
	return list, nil
}
