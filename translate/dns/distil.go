package dns

import (
	"strings"

	"github.com/miekg/dns"
)

// A message of an upstream is untrusted. Anybody who guesses the upstream's address, the port and
// the id can have sent it. The owner of a zone chooses the records that the upstream forwards.

// mostAliases is the largest number of aliases in one answer.
const mostAliases = 16

// accepts tells whether a message answers a query. It compares the id and the question, octet for
// octet if its letters are of mixed case. An upstream without EDNS may leave out the question.
func accepts(query, m *dns.Msg, exact bool) bool {
	if !m.Response || m.Id != query.Id || m.Opcode != query.Opcode {
		return false
	}
	if len(m.Question) == 0 {
		return m.Rcode == dns.RcodeFormatError && len(m.Answer)+len(m.Ns) == 0
	}
	want, got := query.Question[0], m.Question[0]
	same := strings.EqualFold(want.Name, got.Name)
	if exact {
		same = want.Name == got.Name
	}
	return len(m.Question) == 1 && same && want.Qtype == got.Qtype && want.Qclass == got.Qclass
}

// distil returns the part of a message that answers the question: the aliases from its name to
// records of its type, and those records; signatures and proofs if the query asked for them; and
// the SOA record of a negative answer, if the last name is in its zone. It drops all other records.
func distil(k key, m *dns.Msg) *dns.Msg {
	out := &dns.Msg{
		MsgHdr:   dns.MsgHdr{Response: true, Rcode: m.Rcode, AuthenticatedData: m.AuthenticatedData},
		Question: []dns.Question{{Name: k.name, Qtype: k.qtype, Qclass: dns.ClassINET}},
	}
	name := k.name
	for n := 0; ; n++ {
		if n == mostAliases {
			return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Rcode: dns.RcodeServerFailure}, Question: out.Question}
		}
		if found := recordsOf(m.Answer, name, k.qtype, k.do); found != nil {
			out.Answer = append(out.Answer, found...)
			out.Ns = proofs(m, "", k.do)
			return out
		}
		found := recordsOf(m.Answer, name, dns.TypeCNAME, k.do)
		if found == nil {
			out.Ns = proofs(m, name, k.do)
			return out
		}
		for _, rr := range m.Answer { // a CNAME record that follows from a DNAME record
			if h := rr.Header(); h.Rrtype == dns.TypeDNAME && h.Name != name && dns.IsSubDomain(h.Name, name) {
				out.Answer = append(out.Answer, recordsOf(m.Answer, h.Name, dns.TypeDNAME, k.do)...)
				break
			}
		}
		out.Answer = append(out.Answer, found...)
		name = found[0].(*dns.CNAME).Target
	}
}

// recordsOf returns the records of a name and type in a section, in their order, and then their
// signatures. Of CNAME and DNAME it returns one (RFC 2181 section 10.1, RFC 6672 section 2.4).
func recordsOf(section []dns.RR, name string, rrtype uint16, signed bool) (found []dns.RR) {
	single := rrtype == dns.TypeCNAME || rrtype == dns.TypeDNAME
	var signatures []dns.RR
	for _, rr := range section {
		h := rr.Header()
		if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, name) {
			continue
		}
		sig, ok := rr.(*dns.RRSIG)
		switch {
		case h.Rrtype == rrtype && (!single || found == nil):
			found = append(found, rr)
		case ok && signed && sig.TypeCovered == rrtype:
			signatures = append(signatures, rr)
		}
	}
	if found == nil {
		return nil
	}
	return append(found, signatures...)
}

// proofs returns the useful records of a negative answer's authority section: the SOA record of a
// zone of the name, whose TTL is then the answer's (RFC 2308 section 5), and the proofs of DNSSEC.
func proofs(m *dns.Msg, name string, signed bool) (kept []dns.RR) {
	soa := false
	for _, rr := range m.Ns {
		switch rr := rr.(type) {
		case *dns.SOA:
			if name != "" && !soa && rr.Hdr.Class == dns.ClassINET && dns.IsSubDomain(rr.Hdr.Name, name) {
				rr.Hdr.Ttl = min(rr.Hdr.Ttl, rr.Minttl)
				kept = append(kept, rr)
				soa = true
			}
		case *dns.NSEC, *dns.NSEC3:
			if signed {
				kept = append(kept, rr)
			}
		case *dns.RRSIG:
			if c := rr.TypeCovered; signed && (c == dns.TypeSOA || c == dns.TypeNSEC || c == dns.TypeNSEC3) {
				kept = append(kept, rr)
			}
		}
	}
	return kept
}

// soaOf returns the SOA record of a distilled negative answer, or nil.
func soaOf(m *dns.Msg) *dns.SOA {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}
