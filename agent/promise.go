package agent

import (
	"net/netip"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// promise is a port of the host's that a container shall get when it asks for it.
type promise struct {
	netns uint64
	at    netip.AddrPort
}

// promises are those of a table: ranges are not, of which a program takes what is
// free; one that another container was promised is not.
func (c *Container) promises(t *policy.Table) []promise {
	var list []promise
	for _, r := range t.IngressRules() {
		place := c.host[r.Endpoint.Netns]
		if r.Endpoint.Type == endpoint.Unix || r.Ports.Size() > 1 || place == nil {
			continue
		}
		if _, port := t.Ingress(netip.AddrPortFrom(r.Addr, r.Ports.First)); port != 0 {
			list = append(list, promise{place.Cookie(), netip.AddrPortFrom(r.Endpoint.Addr, port)})
		}
	}
	return list
}

func (p promise) breaks(other promise) bool {
	a, b := p.at.Addr(), other.at.Addr()
	return p.netns == other.netns && p.at.Port() == other.at.Port() && a.Is4() == b.Is4() &&
		(a == b || a.IsUnspecified() || b.IsUnspecified())
}
