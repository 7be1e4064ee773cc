package dns

import (
	"context"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/translate"
)

const (
	// ipv4only is the name by which programs find the network's NAT64 (RFC 7050). The proxy passes
	// answers about it unchanged (RFC 8880 section 7.1).
	ipv4only = "ipv4only.arpa."
	// localhost and the names below it mean the container itself (RFC 6761 section 6.3).
	localhost = "localhost."

	localTTL = 60 // s, of the proxy's own records
)

// respond answers a question. The answer fits into the client's buffer.
func (p *Proxy) respond(ctx context.Context, query *dns.Msg, udp bool) *dns.Msg {
	r := new(dns.Msg).SetReply(query)
	r.RecursionAvailable = true
	opt, options := optionsOf(query)
	var why *dns.EDNS0_EDE
	switch {
	case query.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
	case len(query.Question) != 1 || options > 1: // RFC 6891 section 6.1.1
		r.Rcode = dns.RcodeFormatError
	case options == 1 && opt.Version() != 0:
		r.Rcode = dns.RcodeBadVers
	default:
		why = p.fill(ctx, r, options == 1 && opt.Do())
	}
	// RFC 6840 section 5.7: a client that understands AD sets it, or DO.
	r.AuthenticatedData = r.AuthenticatedData && (query.AuthenticatedData || options == 1 && opt.Do())
	size := dns.MinMsgSize
	if options > 0 {
		r.SetEdns0(payload, opt.Do())
		if why != nil {
			own := r.IsEdns0()
			own.Option = append(own.Option, why)
		}
		size = max(size, int(opt.UDPSize()))
	}
	if !udp {
		size = dns.MaxMsgSize
	}
	r.Truncate(size)
	return r
}

// optionsOf returns the OPT record of a message, and the number of such records.
func optionsOf(m *dns.Msg) (opt *dns.OPT, n int) {
	for _, rr := range m.Extra {
		if o, ok := rr.(*dns.OPT); ok {
			opt = o
			n++
		}
	}
	return opt, n
}

// fill puts the answer into a reply. The result is an extended error for the client, or nil.
func (p *Proxy) fill(ctx context.Context, r *dns.Msg, do bool) (why *dns.EDNS0_EDE) {
	q := r.Question[0]
	k := key{strings.ToLower(q.Name), q.Qtype, do, r.CheckingDisabled}
	asIs := do && k.cd || dns.IsSubDomain(ipv4only, k.name) // RFC 6147 section 5.5: it validates itself
	switch virtual, own := p.virtualName(q); {
	case q.Qclass != dns.ClassINET || !resolvable(q.Qtype):
		r.Rcode = dns.RcodeRefused
	case q.Qtype == dns.TypeANY: // RFC 8482 section 4.2
		r.Answer = []dns.RR{&dns.HINFO{Hdr: header(q.Name, dns.TypeHINFO, localTTL), Cpu: "RFC8482"}}
	case dns.IsSubDomain(localhost, k.name):
		fillLocalhost(r)
	case len(p.source.Load().upstreams) == 0:
		r.Rcode = dns.RcodeRefused
	case own:
		p.pointer(ctx, r, k, virtual)
	case asIs:
		p.pass(r, p.ask(ctx, k))
	case q.Qtype == dns.TypeA:
		why = p.addresses(ctx, r, k)
	case q.Qtype == dns.TypeHTTPS || q.Qtype == dns.TypeSVCB:
		p.hints(ctx, r, k)
	default:
		p.pass(r, p.ask(ctx, k))
	}
	p.report(k.name, r, asIs)
	return why
}

// resolvable tells whether a resolver can answer a type. It cannot answer zone transfers and types
// of records that belong to one message.
func resolvable(t uint16) bool {
	switch t {
	case dns.TypeNone, dns.TypeOPT, dns.TypeTKEY, dns.TypeTSIG, dns.TypeIXFR, dns.TypeAXFR, dns.TypeMAILA, dns.TypeMAILB:
		return false
	}
	return true
}

// virtualName tells whether a question asks for the name of an address of the pool.
func (p *Proxy) virtualName(q dns.Question) (netip.Addr, bool) {
	if q.Qtype != dns.TypePTR {
		return netip.Addr{}, false
	}
	v4, ok := translate.ParseReverse4(q.Name)
	return v4, ok && p.o.Table.Prefix().Contains(v4)
}

func fillLocalhost(r *dns.Msg) {
	q := r.Question[0]
	switch q.Qtype {
	case dns.TypeA:
		r.Answer = []dns.RR{&dns.A{Hdr: header(q.Name, dns.TypeA, localTTL), A: []byte{127, 0, 0, 1}}}
	case dns.TypeAAAA:
		r.Answer = []dns.RR{&dns.AAAA{Hdr: header(q.Name, dns.TypeAAAA, localTTL), AAAA: netip.IPv6Loopback().AsSlice()}}
	}
}

func header(name string, rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// pass gives the client an answer unchanged. Only the question's name is spelled as the client has
// spelled it.
func (p *Proxy) pass(r, m *dns.Msg) {
	r.Rcode, r.AuthenticatedData = m.Rcode, m.AuthenticatedData
	r.Answer, r.Ns = m.Answer, m.Ns
	for _, rr := range r.Answer {
		if h := rr.Header(); strings.EqualFold(h.Name, r.Question[0].Name) {
			h.Name = r.Question[0].Name
		}
	}
}
