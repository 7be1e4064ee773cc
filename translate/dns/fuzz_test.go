package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/translate"
)

// pipeTo returns a Dial with an upstream that writes the result of answer for each query.
func pipeTo(answer func(q *dns.Msg) [][]byte) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			c := dns.Conn{Conn: far}
			q, err := c.ReadMsg()
			if err != nil {
				return
			}
			for _, b := range answer(q) {
				if len(b) > dns.MaxMsgSize {
					return
				}
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
		return near, nil
	}
}

func fuzzed(t *testing.T, nat64 translate.NAT64, answer func(q *dns.Msg) [][]byte) *Proxy {
	return newProxy(t, Options{
		Table: newTable(t), Upstreams: []netip.AddrPort{unbound}, NAT64: func() translate.NAT64 { return nat64 },
		Dial: pipeTo(answer), Timeout: 5 * time.Second,
	})
}

// judge fails the test for a reply that is wrong for any client and upstream.
func judge(t *testing.T, p *Proxy, q, r *dns.Msg, udp bool) {
	t.Helper()
	b, err := r.Pack()
	if err != nil {
		t.Fatalf("the reply cannot be packed: %v\n%v", err, r)
	}
	size := dns.MaxMsgSize
	if udp {
		size = dns.MinMsgSize
		if opt, _ := optionsOf(q); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
	}
	if len(b) > size || !r.Response || r.Id != q.Id || len(r.Question) != min(1, len(q.Question)) {
		t.Errorf("%d octets of %d: %v", len(b), size, r)
	}
	for _, m := range p.o.Table.Mappings() {
		if !p.o.Table.Usable(m.V6) {
			t.Errorf("%s is special", m.V6)
		}
		if _, ok := p.o.NAT64().Extract(m.V6); p.o.NAT64().Contains(m.V6) && !ok {
			t.Errorf("%s is special behind the NAT64", m.V6)
		}
	}
	if len(q.Question) != 1 || q.Question[0].Qtype != dns.TypeA || dns.IsSubDomain(localhost, q.Question[0].Name) {
		return
	}
	if opt, _ := optionsOf(q); opt != nil && opt.Do() && q.CheckingDisabled || dns.IsSubDomain(ipv4only, q.Question[0].Name) {
		return
	}
	name := q.Question[0].Name
	for _, rr := range r.Answer { // a chain from the question's name
		a, ok := rr.(*dns.A)
		if ok && !strings.EqualFold(a.Hdr.Name, name) {
			t.Errorf("%v does not answer for %s: %v", a, name, r)
		}
		if c, alias := rr.(*dns.CNAME); alias {
			name = c.Target
		}
		if !ok {
			continue
		}
		v4, _ := netip.AddrFromSlice(a.A.To4())
		_, virtual := p.o.Table.V6(v4)
		_, reached := p.o.NAT64().Embed(v4)
		if virtual != p.o.Table.Prefix().Contains(v4) || !virtual && !reached || a.Hdr.Ttl > maxTTL {
			t.Errorf("the program gets %v", a)
		}
	}
}

// queries lists the clients' messages in the tests.
func queries() (list []*dns.Msg) {
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypePTR, dns.TypeANY, dns.TypeAXFR, dns.TypeMX, dns.TypeRRSIG} {
		for _, name := range []string{"a.example.", "localhost.", "1.0.18.198.in-addr.arpa.", "ipv4only.arpa.", ".", "\\000\\.x.\\255."} {
			q := new(dns.Msg).SetQuestion(name, qtype)
			q.Id = 4711
			list = append(list, q)
		}
	}
	for _, q := range list[:6] {
		q = q.Copy()
		q.SetEdns0(1232, true)
		q.CheckingDisabled = len(list)%2 == 0
		list = append(list, q)
	}
	return list
}

// replies lists upstreams' messages to queries for the name a.example.
func replies(t testing.TB) (list [][]byte) {
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT} {
		q := new(dns.Msg).SetQuestion("a.example.", qtype)
		for _, answer := range [][]string{
			nil,
			{"a.example. 300 AAAA 2001:db8::1", "a.example. 300 AAAA ::1", "a.example. 300 AAAA 2001:db8:64::127.0.0.1"},
			{"a.example. 300 A 203.0.113.1", "a.example. 300 A 127.0.0.1", "a.example. 4000000000 A 198.18.0.9"},
			{"a.example. 300 CNAME b.example.", "b.example. 300 CNAME a.example."},
			{"a.example. 300 CNAME b.example.", "b.example. 300 AAAA 2001:db8::2", "b.example. 3 A 203.0.113.2", "c.example. 1 AAAA 2001:db8::3"},
			{"example. 300 DNAME other.", "a.example. 300 CNAME a.other.", "a.other. 300 AAAA 2001:db8::4"},
			{"a.example. 300 HTTPS 1 . mandatory=ipv4hint alpn=h2 ipv4hint=203.0.113.1,127.0.0.1 ipv6hint=2001:db8::1,::1"},
			{"a.example. 300 HTTPS 1 . mandatory=ipv4hint,alpn alpn=h2 ipv4hint=198.18.0.7"},
			{"a.example. 300 AAAA 2001:db8::1", "a.example. 300 RRSIG AAAA 13 2 300 20300101000000 20200101000000 1 example. AAAA"},
			{`a.example. 300 TXT "text"`, "a.example. 300 TYPE65400 \\# 4 01020304"},
		} {
			m := new(dns.Msg).SetReply(q)
			m.Answer = records(t, answer...)
			m.Ns = records(t, "example. 300 SOA a. b. 1 2 3 4 30", "other. 300 NSEC b. A AAAA")
			m.Extra = records(t, "b.example. 300 AAAA 2001:db8::bad")
			list = append(list, packed(t, m))
			m.Rcode, m.Compress = dns.RcodeNameError, true
			list = append(list, packed(t, m))
		}
	}
	return list
}

// FuzzClient sends any message of a client. The upstream answers honestly.
func FuzzClient(f *testing.F) {
	for _, q := range queries() {
		f.Add(packed(f, q), true)
		f.Add(packed(f, q), false)
	}
	f.Fuzz(func(t *testing.T, query []byte, udp bool) {
		q := new(dns.Msg)
		if q.Unpack(query) != nil {
			return
		}
		p := fuzzed(t, translate.NAT64{}, func(q *dns.Msg) [][]byte { return [][]byte{packed(t, truth(t, q))} })
		r := p.respond(context.Background(), q, udp)
		judge(t, p, q, r, udp)
	})
}

// FuzzUpstream sends any message of an upstream: unchanged, with the id of the query, and with the
// id and the question.
func FuzzUpstream(f *testing.F) {
	for _, r := range replies(f) {
		f.Add(r, uint16(dns.TypeA), false)
		f.Add(r, uint16(dns.TypeA), true)
		f.Add(r, uint16(dns.TypeHTTPS), true)
		f.Add(r, uint16(dns.TypePTR), false)
	}
	n, err := translate.NewNAT64(netip.MustParsePrefix("2001:db8:64::/96"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, reply []byte, qtype uint16, withNAT64 bool) {
		nat64 := translate.NAT64{}
		if withNAT64 {
			nat64 = n
		}
		p := fuzzed(t, nat64, func(q *dns.Msg) [][]byte { return [][]byte{reply, posing(q, reply)} })
		name, m := "a.example.", new(dns.Msg)
		if m.Unpack(reply) == nil && len(m.Question) == 1 {
			name = m.Question[0].Name
		}
		q := new(dns.Msg).SetQuestion(name, qtype)
		q.SetEdns0(1232, len(reply)%2 == 0)
		for range 2 { // from the upstream and from the cache
			judge(t, p, q, p.respond(context.Background(), q, true), true)
		}
	})
}

// posing changes a message into one that looks like the answer to a query, as far as its octets can
// be parsed.
func posing(q *dns.Msg, reply []byte) []byte {
	m := new(dns.Msg)
	if m.Unpack(reply) != nil {
		return reply
	}
	m.Id, m.Response, m.Opcode, m.Question = q.Id, true, q.Opcode, q.Question
	b, err := m.Pack()
	if err != nil {
		return reply
	}
	return b
}
