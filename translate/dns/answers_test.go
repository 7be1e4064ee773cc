package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/translate"
)

// texts returns records without their TTLs, which a resolver's cache decreases.
func texts(section []dns.RR) (list []string) {
	for _, rr := range section {
		rr = dns.Copy(rr)
		rr.Header().Ttl = 0
		list = append(list, rr.String())
	}
	return list
}

// native returns an answer with the IPv6 addresses in place of the virtual ones.
func native(t testing.TB, table *translate.Table, m *dns.Msg) (list []string) {
	t.Helper()
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			v4, _ := netip.AddrFromSlice(a.A.To4())
			v6, ok := table.V6(v4)
			if !ok {
				t.Errorf("%s is no virtual address", v4)
			}
			rr = &dns.AAAA{Hdr: header(a.Hdr.Name, dns.TypeAAAA, 0), AAAA: v6.AsSlice()}
		}
		list = append(list, texts([]dns.RR{rr})...)
	}
	return list
}

// usable removes the addresses of zone.example that do not belong to a remote host.
func usable(section []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(section), func(rr dns.RR) bool {
		v6, ok := ipv6Of(rr)
		return ok && (!netip.MustParsePrefix("2001:db8::/32").Contains(v6) || v6 == hostsOwn)
	})
}

// The proxy's answer for A equals the resolver's answer for AAAA: the same aliases, the same
// addresses in the same order, the same errors, the same SOA record.
func TestAnswersAreTheResolvers(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	for _, mixed := range []bool{false, true} {
		p, at := serve(t, ns, Options{MixCase: mixed})
		for _, name := range []string{
			"six", "two", "four", "both", "alias", "chain", "alias4", "aliasboth", "dangling", "loop", "text", "long", "short", "zero",
			"a.wild", "b.c.wild", "leaf.tree", "absent.tree", "special", "host", "partly", "absent", "WWW", "SIX", "bigtext", "broad",
		} {
			t.Run(fmt.Sprintf("%s/%v", name, mixed), func(t *testing.T) {
				name := name + ".zone.example."
				six := asked(t, ns, unbound, name, dns.TypeAAAA)
				for range 2 { // from the upstream and from the cache
					four := asked(t, ns, at, name, dns.TypeA)
					if four.Rcode != six.Rcode || four.Question[0].Name != name || !four.RecursionAvailable || four.AuthenticatedData {
						t.Errorf("the resolver answers\n%v\nthe proxy\n%v", six, four)
					}
					if four.Rcode == dns.RcodeServerFailure {
						return // resolvers differ in what they add
					}
					want, got := strings.ToLower(fmt.Sprint(texts(usable(six.Answer)))), strings.ToLower(fmt.Sprint(native(t, p.o.Table, four)))
					if want != got {
						t.Error(cmp.Diff(want, got))
					}
					if d := cmp.Diff(soas(six), soas(four)); d != "" && !strings.HasPrefix(name, "WWW") {
						t.Errorf("SOA: %s", d)
					}
					for _, rr := range four.Answer {
						if h := rr.Header(); h.Rrtype == dns.TypeA && h.Ttl > maxTTL {
							t.Errorf("TTL of %v", rr)
						}
					}
				}
			})
		}
		if c := p.Counts(); c.Failures != 0 || c.Forged != 0 {
			t.Errorf("%+v", c)
		}
	}
}

func soas(m *dns.Msg) (list []string) {
	for _, rr := range m.Ns {
		if rr.Header().Rrtype == dns.TypeSOA {
			list = append(list, texts([]dns.RR{rr})...)
		}
	}
	return list
}

// Answers for all other types are unchanged, and so are those for reverse names of real addresses.
func TestOtherTypesPass(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	_, at := serve(t, ns, Options{})
	for _, q := range []struct {
		name  string
		qtype uint16
	}{
		{"six.zone.example.", dns.TypeAAAA},
		{"chain.zone.example.", dns.TypeAAAA},
		{"special.zone.example.", dns.TypeAAAA},
		{"chain.zone.example.", dns.TypeCNAME},
		{"zone.example.", dns.TypeMX},
		{"zone.example.", dns.TypeNS},
		{"zone.example.", dns.TypeSOA},
		{"text.zone.example.", dns.TypeTXT},
		{"bigtext.zone.example.", dns.TypeTXT}, // over TCP
		{"_x._tcp.zone.example.", dns.TypeSRV},
		{"naptr.zone.example.", dns.TypeNAPTR},
		{"unknown.zone.example.", 65400},
		{"absent.zone.example.", dns.TypeMX},
		{"six.zone.example.", dns.TypeMX},
		{"tree.zone.example.", dns.TypeDNAME},
		{"nohint.zone.example.", dns.TypeHTTPS},
		{"aliashttps.zone.example.", dns.TypeHTTPS},
		{translate.ReverseName(addr("2001:db8::46")), dns.TypePTR},
		{"ipv4only.arpa.", dns.TypeA},
		{"ipv4only.arpa.", dns.TypeAAAA},
	} {
		t.Run(q.name+dns.TypeToString[q.qtype], func(t *testing.T) {
			want, got := asked(t, ns, unbound, q.name, q.qtype), asked(t, ns, at, q.name, q.qtype)
			if d := cmp.Diff(texts(want.Answer), texts(got.Answer)); d != "" || want.Rcode != got.Rcode {
				t.Errorf("rcode %d, want %d; answer %s", got.Rcode, want.Rcode, d)
			}
			if len(want.Answer) == 0 {
				if d := cmp.Diff(soas(want), soas(got)); d != "" || len(soas(got)) != 1 {
					t.Errorf("SOA: %s", d)
				}
			}
			if len(got.Extra) != 1 { // OPT
				t.Errorf("additional: %v", got.Extra)
			}
		})
	}
}

func prefix64(t testing.TB) func() translate.NAT64 {
	t.Helper()
	n, err := translate.NewNAT64(netip.MustParsePrefix("2001:db8:64::/96"))
	if err != nil {
		t.Fatal(err)
	}
	return func() translate.NAT64 { return n }
}

// With a NAT64, a name with only IPv4 addresses keeps the addresses that the NAT64 reaches.
func TestNAT64(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	p, at := serve(t, ns, Options{NAT64: prefix64(t)})
	for name, want := range map[string][]string{
		"four":     {"203.0.113.4"},
		"alias4":   {"alias4.zone.example. CNAME four.zone.example.", "203.0.113.4"},
		"both":     {"2001:db8::46"},
		"special":  nil,
		"behind":   nil,
		"special4": nil,
		"partly4":  {"203.0.113.9"},
		"pool4":    {"2001:db8:64::c612:1"},
		"absent":   nil,
		"text":     nil,
		"host":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			m := asked(t, ns, at, name+".zone.example.", dns.TypeA)
			var got []string
			for _, rr := range m.Answer {
				a, ok := rr.(*dns.A)
				if !ok {
					c := rr.(*dns.CNAME)
					got = append(got, c.Hdr.Name+" CNAME "+c.Target)
					continue
				}
				v4, _ := netip.AddrFromSlice(a.A.To4())
				if v6, ok := p.o.Table.V6(v4); ok {
					v4 = v6
				}
				if got = append(got, v4.String()); a.Hdr.Ttl > 30 && !v4.Is6() { // the SOA record's
					t.Errorf("TTL of %v", a)
				}
			}
			if d := cmp.Diff(want, got); d != "" || m.Rcode == dns.RcodeNameError != (name == "absent") {
				t.Errorf("%v%s", m, d)
			}
		})
	}
	found, life, err := p.Discover(context.Background())
	if err != nil || len(found) != 1 || found[0].String() != "2001:db8:64::/96" || life <= 0 || life > 2*time.Minute {
		t.Errorf("discovered %v for %v (%v)", found, life, err)
	}
}

// hintsOf returns a record's parameters, with the IPv6 addresses in place of the virtual ones.
func hintsOf(table *translate.Table, s *dns.SVCB) (list []string) {
	for _, v := range s.Value {
		text := v.String()
		if four, ok := v.(*dns.SVCBIPv4Hint); ok {
			text = ""
			for _, ip := range four.Hint {
				v4, _ := netip.AddrFromSlice(ip.To4())
				if v6, ok := table.V6(v4); ok {
					v4 = v6
				}
				text += v4.String()
			}
		}
		list = append(list, v.Key().String()+"="+text)
	}
	return list
}

func TestHints(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	for _, c := range []struct {
		name  string
		qtype uint16
		nat64 func() translate.NAT64
		want  []string
	}{
		{"www", dns.TypeHTTPS, nil, []string{"alpn=h2", "ipv4hint=2001:db8::46", "ipv6hint=2001:db8::46,::1"}},
		{"aliaswww", dns.TypeHTTPS, nil, []string{"alpn=h2", "ipv4hint=2001:db8::46", "ipv6hint=2001:db8::46,::1"}},
		{"www4", dns.TypeHTTPS, nil, []string{"alpn=h2"}},
		{"www4", dns.TypeHTTPS, prefix64(t), []string{"mandatory=ipv4hint", "alpn=h2", "ipv4hint=203.0.113.4"}},
		{"mandatory", dns.TypeSVCB, nil, []string{"mandatory=alpn", "alpn=h2"}},
		{"mandatory", dns.TypeSVCB, prefix64(t), []string{"mandatory=alpn", "alpn=h2"}},
	} {
		p, at := serve(t, ns, Options{NAT64: c.nat64})
		for range 2 {
			m := asked(t, ns, at, c.name+".zone.example.", c.qtype)
			if len(m.Answer) == 0 {
				t.Fatalf("no answer: %v", m)
			}
			last := m.Answer[len(m.Answer)-1]
			s, ok := last.(*dns.SVCB)
			if !ok {
				s = &last.(*dns.HTTPS).SVCB
			}
			if d := cmp.Diff(c.want, hintsOf(p.o.Table, s)); d != "" || s.Hdr.Ttl > maxTTL {
				t.Errorf("%s: %v: %s", c.name, last, d)
			}
		}
	}
}

func TestPointer(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	p, at := serve(t, ns, Options{})
	for _, name := range []string{"six", "both", "two"} {
		m := asked(t, ns, at, name+".zone.example.", dns.TypeA)
		v4, _ := netip.AddrFromSlice(m.Answer[0].(*dns.A).A.To4())
		v6, _ := p.o.Table.V6(v4)
		want, got := asked(t, ns, unbound, translate.ReverseName(v6), dns.TypePTR), asked(t, ns, at, translate.ReverseName(v4), dns.TypePTR)
		for _, rr := range want.Answer {
			rr.Header().Name = translate.ReverseName(v4)
		}
		if d := cmp.Diff(texts(want.Answer), texts(got.Answer)); d != "" || want.Rcode != got.Rcode {
			t.Errorf("%s: rcode %d, want %d; %s", name, got.Rcode, want.Rcode, d)
		}
	}
	if m := asked(t, ns, at, "9.9.18.198.in-addr.arpa.", dns.TypePTR); m.Rcode != dns.RcodeNameError || p.Counts().Failures != 0 {
		t.Errorf("an address that nobody has: %v", m)
	}
}

// The questions that the proxy answers itself or refuses.
func TestOwnAnswers(t *testing.T) {
	ns := network(t) // without an upstream
	p, at := serve(t, ns, Options{})
	for _, c := range []struct {
		name   string
		qtype  uint16
		class  uint16
		rcode  int
		answer []string
	}{
		{"zone.example.", dns.TypeANY, dns.ClassINET, dns.RcodeSuccess, []string{"zone.example.\t0\tIN\tHINFO\t\"RFC8482\" \"\""}},
		{"localhost.", dns.TypeA, dns.ClassINET, dns.RcodeSuccess, []string{"localhost.\t0\tIN\tA\t127.0.0.1"}},
		{"a.LocalHost.", dns.TypeAAAA, dns.ClassINET, dns.RcodeSuccess, []string{"a.LocalHost.\t0\tIN\tAAAA\t::1"}},
		{"localhost.", dns.TypeMX, dns.ClassINET, dns.RcodeSuccess, nil},
		{"version.bind.", dns.TypeTXT, dns.ClassCHAOS, dns.RcodeRefused, nil},
		{"zone.example.", dns.TypeAXFR, dns.ClassINET, dns.RcodeRefused, nil},
		{"zone.example.", dns.TypeIXFR, dns.ClassINET, dns.RcodeRefused, nil},
	} {
		q := new(dns.Msg).SetQuestion(c.name, c.qtype)
		q.Question[0].Qclass = c.class
		m, err := exchange(ns, "udp", at, q)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.answer, texts(m.Answer)); d != "" || m.Rcode != c.rcode {
			t.Errorf("%v: %v%s", q.Question[0], m, d)
		}
	}
	if c := p.Counts(); c.Tries != 0 {
		t.Errorf("upstreams were asked: %+v", c)
	}
}

// RFC 6147 section 5.5.
func TestDNSSEC(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	_, at := serve(t, ns, Options{NAT64: prefix64(t)})
	for _, c := range []struct {
		name       string
		qtype      uint16
		ad, do, cd bool
		// What is expected.
		rcode   int
		wantAD  bool
		virtual bool
		signed  bool
	}{
		{name: "six", qtype: dns.TypeAAAA, ad: true, wantAD: true},
		{name: "six", qtype: dns.TypeAAAA, do: true, wantAD: true, signed: true},
		{name: "six", qtype: dns.TypeAAAA},
		{name: "both", qtype: dns.TypeA, ad: true, virtual: true},
		{name: "both", qtype: dns.TypeA, do: true, virtual: true},
		{name: "both", qtype: dns.TypeA, do: true, cd: true, wantAD: true, signed: true},
		{name: "alias", qtype: dns.TypeA, do: true, virtual: true, signed: true},
		{name: "four", qtype: dns.TypeA, do: true, wantAD: true, signed: true}, // as it is
		{name: "absent", qtype: dns.TypeA, ad: true, rcode: dns.RcodeNameError},
		{name: "bogus", qtype: dns.TypeAAAA, rcode: dns.RcodeServerFailure},
		{name: "bogus", qtype: dns.TypeA, cd: true, virtual: true},
	} {
		q := new(dns.Msg).SetQuestion(c.name+".signed.example.", c.qtype)
		q.AuthenticatedData, q.CheckingDisabled = c.ad, c.cd
		q.SetEdns0(4096, c.do)
		m := askedWith(t, ns, at, q)
		virtual, signed := false, false
		for _, rr := range m.Answer {
			a, ok := rr.(*dns.A)
			virtual = virtual || ok && translate.DefaultPrefix.Contains(netip.AddrFrom4([4]byte(a.A.To4())))
			signed = signed || rr.Header().Rrtype == dns.TypeRRSIG
		}
		if m.Rcode != c.rcode || m.AuthenticatedData != c.wantAD || virtual != c.virtual || signed != c.signed || m.CheckingDisabled != c.cd {
			t.Errorf("%+v:\n%v", c, m)
		}
	}
}
