package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/translate"
)

const (
	// maxTTL is the largest TTL of records with virtual addresses, in s, so that mappings are soon
	// free again.
	maxTTL = 60
	// mostAddresses is the largest number of virtual addresses in one answer.
	mostAddresses = 32
)

// split divides an answer into aliases and the records of a type. It drops the signatures of these
// records.
func split(m *dns.Msg, rrtype uint16) (aliases, records []dns.RR) {
	for _, rr := range m.Answer {
		sig, signature := rr.(*dns.RRSIG)
		switch {
		case rr.Header().Rrtype == rrtype:
			records = append(records, rr)
		case !signature || sig.TypeCovered != rrtype:
			aliases = append(aliases, rr)
		}
	}
	return aliases, records
}

// addresses answers a question for A. The answer has virtual addresses if the name has IPv6
// addresses. Otherwise it has the name's IPv4 addresses if the network has a NAT64.
func (p *Proxy) addresses(ctx context.Context, r *dns.Msg, k key) *dns.EDNS0_EDE {
	k.qtype = dns.TypeAAAA
	m := p.ask(ctx, k)
	aliases, records := split(m, dns.TypeAAAA)
	virtual, err := p.virtual(records)
	if len(virtual) == 0 && err != nil {
		if errors.Is(err, translate.ErrExhausted) {
			p.counts.exhausted.Add(1)
		}
		r.Rcode = dns.RcodeServerFailure
		return &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeOther, ExtraText: err.Error()}
	}
	if len(virtual) == 0 && m.Rcode != dns.RcodeNameError {
		p.awaitNAT64(ctx)
		if nat64 := p.o.NAT64(); nat64.IsValid() {
			// RFC 6147 section 5.1.2: some name servers fail for AAAA and have A.
			k.qtype = dns.TypeA
			p.real(r, p.ask(ctx, k), m, nat64)
			return nil
		}
	}
	m.Answer = append(aliases, virtual...)
	m.AuthenticatedData = false
	p.pass(r, m)
	return nil
}

// awaitNAT64 waits until the network's NAT64 is known.
func (p *Proxy) awaitNAT64(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	select {
	case <-p.o.NAT64Known:
	case <-ctx.Done():
	}
}

// virtual makes A records from AAAA records. The error is about addresses that got no virtual one,
// except special ones.
func (p *Proxy) virtual(records []dns.RR) (list []dns.RR, failed error) {
	for _, rr := range records[:min(len(records), mostAddresses)] {
		v6, ok := ipv6Of(rr)
		if !ok {
			continue
		}
		ttl := min(rr.Header().Ttl, maxTTL)
		v4, err := p.mapped(v6, ttl)
		if err != nil {
			if !errors.Is(err, translate.ErrSpecial) {
				failed = err
			}
			continue
		}
		list = append(list, &dns.A{Hdr: header(rr.Header().Name, dns.TypeA, ttl), A: v4.AsSlice()})
	}
	return list, failed
}

// mapped returns the virtual address for a remote host. An address behind the network's NAT64 may
// belong to no remote host.
func (p *Proxy) mapped(v6 netip.Addr, ttl uint32) (netip.Addr, error) {
	if p.isNobodys(v6) {
		return netip.Addr{}, translate.ErrSpecial
	}
	return p.o.Table.Map(v6, time.Duration(ttl)*time.Second)
}

// real answers with the IPv4 addresses that the NAT64 reaches. An address in the pool must not be
// in the answer, because in this container it means another host. The answer then has the virtual
// address of its address behind the NAT64.
func (p *Proxy) real(r, four, six *dns.Msg, nat64 translate.NAT64) {
	aliases, records := split(four, dns.TypeA)
	ttl := uint32(maxTTL)
	if soa := soaOf(six); soa != nil { // RFC 6147 section 5.1.7
		ttl = min(ttl, soa.Hdr.Ttl)
	}
	changed := false
	kept := aliases
	for _, rr := range records {
		a := rr.(*dns.A)
		v4, _ := netip.AddrFromSlice(a.A.To4())
		v6, ok := nat64.Embed(v4)
		a.Hdr.Ttl = min(a.Hdr.Ttl, ttl)
		if ok && p.o.Table.Virtual(v4) {
			changed = true
			virtual, err := p.mapped(v6, a.Hdr.Ttl)
			a.A, ok = virtual.AsSlice(), err == nil
		}
		if ok {
			kept = append(kept, a)
		}
		changed = changed || !ok
	}
	if changed {
		four.Answer, four.AuthenticatedData = kept, false
	}
	p.pass(r, four)
}

// pointer answers a question for the name of a virtual address with the names of the IPv6 address.
func (p *Proxy) pointer(ctx context.Context, r *dns.Msg, k key, v4 netip.Addr) {
	v6, ok := p.o.Table.V6(v4)
	if !ok {
		r.Rcode = dns.RcodeNameError
		return
	}
	k.name = translate.ReverseName(v6)
	m := p.ask(ctx, k)
	r.Rcode = m.Rcode
	_, records := split(m, dns.TypePTR)
	for _, rr := range records {
		h := rr.Header()
		h.Name, h.Ttl = r.Question[0].Name, min(h.Ttl, maxTTL)
	}
	r.Answer = records
}

// hints answers a question for HTTPS or SVCB. The records may contain addresses (RFC 9460 section
// 7.3).
func (p *Proxy) hints(ctx context.Context, r *dns.Msg, k key) {
	m := p.ask(ctx, k)
	aliases, records := split(m, k.qtype)
	changed := false
	for _, rr := range records {
		record, ok := rr.(*dns.SVCB)
		if https, is := rr.(*dns.HTTPS); is {
			record, ok = &https.SVCB, true
		}
		if ok && p.hint(record) {
			changed = true
			record.Hdr.Ttl = min(record.Hdr.Ttl, maxTTL)
		}
	}
	if changed {
		m.Answer, m.AuthenticatedData = append(aliases, records...), false
	}
	p.pass(r, m)
}

// hint replaces the IPv4 addresses of a record with the virtual addresses of its IPv6 addresses, or
// with the addresses that the NAT64 reaches. It tells whether there are any. If there are none, it
// removes the hint.
func (p *Proxy) hint(s *dns.SVCB) bool {
	var four *dns.SVCBIPv4Hint
	var six []net.IP
	for _, v := range s.Value {
		switch v := v.(type) {
		case *dns.SVCBIPv4Hint:
			four = v
		case *dns.SVCBIPv6Hint:
			six = v.Hint
		}
	}
	if four == nil {
		return false
	}
	if four.Hint = p.hinted(four.Hint, six, min(s.Hdr.Ttl, maxTTL)); len(four.Hint) > 0 {
		return true
	}
	isHint := func(k dns.SVCBKey) bool { return k == dns.SVCB_IPV4HINT }
	s.Value = slices.DeleteFunc(s.Value, func(v dns.SVCBKeyValue) bool {
		if m, ok := v.(*dns.SVCBMandatory); ok {
			m.Code = slices.DeleteFunc(m.Code, isHint)
			return len(m.Code) == 0
		}
		return isHint(v.Key())
	})
	return true
}

func (p *Proxy) hinted(four, six []net.IP, ttl uint32) (list []net.IP) {
	for _, ip := range six[:min(len(six), mostAddresses)] {
		v6, _ := netip.AddrFromSlice(ip)
		if v4, err := p.mapped(v6, ttl); err == nil {
			list = append(list, v4.AsSlice())
		}
	}
	if len(six) > 0 {
		return list
	}
	for _, ip := range four {
		v4, _ := netip.AddrFromSlice(ip.To4())
		if _, ok := p.o.NAT64().Embed(v4); ok && !p.o.Table.Virtual(v4) {
			list = append(list, ip)
		}
	}
	return list
}

// ipv6Of returns the address of an AAAA record.
func ipv6Of(rr dns.RR) (netip.Addr, bool) {
	aaaa, ok := rr.(*dns.AAAA)
	if !ok {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(aaaa.AAAA)
}
