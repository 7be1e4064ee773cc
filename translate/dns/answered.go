package dns

import (
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// mostAnswered is the largest number of addresses of one answer that are reported.
const mostAnswered = mostAddresses

// report calls Options.Answered for the hosts to which an answer leads: those of its addresses that a
// program can connect to. asIs says that the proxy has not replaced the IPv4 addresses of the upstream.
// Then one of the pool is not the host's for which the proxy has given it out.
func (p *Proxy) report(name string, r *dns.Msg, asIs bool) {
	if p.o.Answered == nil {
		return
	}
	n := 0
	tell := func(v6 netip.Addr, ok bool, ttl uint32) {
		if ok && n < mostAnswered && p.usable(v6) {
			n++
			p.o.Answered(name, v6, seconds(ttl))
		}
	}
	for _, rr := range r.Answer {
		switch rr := rr.(type) {
		case *dns.AAAA:
			v6, ok := ipv6Of(rr)
			tell(v6, ok, rr.Hdr.Ttl)
		case *dns.A:
			v6, ok := p.behind(rr.A, asIs)
			tell(v6, ok, rr.Hdr.Ttl)
		case *dns.SVCB:
			p.reportHints(rr, asIs, tell)
		case *dns.HTTPS:
			p.reportHints(&rr.SVCB, asIs, tell)
		}
	}
}

func (p *Proxy) reportHints(s *dns.SVCB, asIs bool, tell func(v6 netip.Addr, ok bool, ttl uint32)) {
	for _, v := range s.Value {
		switch v := v.(type) {
		case *dns.SVCBIPv6Hint:
			for _, ip := range v.Hint {
				v6, ok := netip.AddrFromSlice(ip)
				tell(v6, ok, s.Hdr.Ttl)
			}
		case *dns.SVCBIPv4Hint:
			for _, ip := range v.Hint {
				v6, ok := p.behind(ip, asIs)
				tell(v6, ok, s.Hdr.Ttl)
			}
		}
	}
}

// behind returns the IPv6 address of a host whose IPv4 address is in an answer.
func (p *Proxy) behind(ip net.IP, asIs bool) (netip.Addr, bool) {
	v4, _ := netip.AddrFromSlice(ip.To4())
	if p.o.Table.Prefix().Contains(v4) {
		v6, ok := p.o.Table.V6(v4)
		return v6, ok && !asIs
	}
	v6, ok := p.o.NAT64().Embed(v4)
	return v6, ok && !p.o.Table.Virtual(v4)
}

// usable tells whether an address belongs to a remote host.
func (p *Proxy) usable(v6 netip.Addr) bool { return !p.isNobodys(v6) && p.o.Table.Usable(v6) }

// isNobodys tells whether an address is behind the network's NAT64, and belongs to no remote host there.
func (p *Proxy) isNobodys(v6 netip.Addr) bool {
	n := p.o.NAT64()
	_, ok := n.Extract(v6)
	return n.Contains(v6) && !ok
}
