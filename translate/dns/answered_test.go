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

// zoneOf returns what an upstream answers that has some records, and follows aliases.
func zoneOf(t testing.TB, lines ...string) func(q *dns.Msg) *dns.Msg {
	zone := records(t, lines...)
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for name, next := q.Question[0].Name, ""; name != ""; name, next = next, "" {
			for _, rr := range zone {
				h := rr.Header()
				if !strings.EqualFold(h.Name, name) || h.Rrtype != q.Question[0].Qtype && h.Rrtype != dns.TypeCNAME {
					continue
				}
				m.Answer = append(m.Answer, dns.Copy(rr))
				if c, alias := rr.(*dns.CNAME); alias {
					next = c.Target
				}
			}
		}
		return m
	}
}

// What an answer leads to is reported under the name that was asked for, whatever way it leads there:
// with IPv6 addresses, virtual ones, or those behind the NAT64. Special addresses and the host's own are
// not, and neither is what another name has been answered with.
func TestAnswered(t *testing.T) {
	many := []string{}
	for i := range 100 {
		many = append(many, fmt.Sprintf("many.example. 30 AAAA 2001:db8:9::%x", i+1))
	}
	zone := zoneOf(t, append(many,
		"a.example. 30 AAAA 2001:db8::1", "a.example. 30 AAAA 2001:db8::2", "a.example. 30 A 203.0.113.1",
		"long.example. 7000 AAAA 2001:db8::3", "huge.example. 4000000000 AAAA 2001:db8::3",
		"alias.example. 30 CNAME a.example.", "chain.example. 20 CNAME alias.example.",
		"special.example. 30 AAAA ::1", "special.example. 30 AAAA fe80::1", "special.example. 30 AAAA ff02::1", "special.example. 30 AAAA ::ffff:203.0.113.9",
		"special.example. 30 AAAA "+hostsOwn.String(), "special.example. 30 AAAA 2001:db8:64::127.0.0.1", "special.example. 30 AAAA ::", "special.example. 30 AAAA ::203.0.113.9",
		"special4.example. 30 A 127.0.0.1", "special4.example. 30 A 0.0.0.0", "special4.example. 30 A 224.0.0.1", "special4.example. 30 A 203.0.113.9",
		"four.example. 30 A 203.0.113.4", "pool.example. 30 A 198.18.0.1", "pool.example. 30 A 198.19.0.1",
		"https.example. 30 HTTPS 1 . alpn=h2 ipv4hint=203.0.113.1 ipv6hint=2001:db8::5,::1", "https4.example. 30 HTTPS 1 . ipv4hint=203.0.113.6,127.0.0.1,198.18.0.1",
		`a.example. 30 TXT "2001:db8::bad"`, "a.example. 30 MX 1 mail.example.", "mail.example. 30 AAAA 2001:db8::bad",
		"ipv4only.arpa. 30 AAAA 2001:db8:64::192.0.0.170", "ipv4only.arpa. 30 A 192.0.0.170",
	)...)
	for _, tt := range []struct {
		name    string
		qtype   uint16
		options string // "nat64", "validates"
		want    []string
	}{
		{"a.example.", dns.TypeAAAA, "", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"a.example.", dns.TypeA, "", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"A.Example.", dns.TypeA, "", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"long.example.", dns.TypeAAAA, "", []string{"2001:db8::3 1h56m40s"}},
		{"long.example.", dns.TypeA, "", []string{"2001:db8::3 1m0s"}},
		{"huge.example.", dns.TypeAAAA, "", []string{"2001:db8::3 0s"}},
		{"chain.example.", dns.TypeA, "", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"chain.example.", dns.TypeAAAA, "", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"special.example.", dns.TypeAAAA, "nat64", nil},
		{"special.example.", dns.TypeA, "nat64", nil},
		{"special4.example.", dns.TypeA, "nat64", []string{"2001:db8:64::cb00:7109 30s"}},
		{"special4.example.", dns.TypeA, "nat64 validates", []string{"2001:db8:64::cb00:7109 30s"}},
		{"four.example.", dns.TypeA, "", nil},
		{"four.example.", dns.TypeA, "nat64", []string{"2001:db8:64::cb00:7104 30s"}},
		{"four.example.", dns.TypeAAAA, "nat64", nil},
		{"pool.example.", dns.TypeA, "nat64", []string{"2001:db8:64::c612:1 30s", "2001:db8:64::c613:1 30s"}},
		{"pool.example.", dns.TypeA, "nat64 validates", nil},
		{"a.example.", dns.TypeAAAA, "validates", []string{"2001:db8::1 30s", "2001:db8::2 30s"}},
		{"a.example.", dns.TypeA, "validates", nil},
		{"https.example.", dns.TypeHTTPS, "", []string{"2001:db8::5 30s", "2001:db8::5 30s"}},
		{"https4.example.", dns.TypeHTTPS, "nat64", []string{"2001:db8:64::cb00:7106 30s"}},
		{"https4.example.", dns.TypeHTTPS, "", nil},
		{"a.example.", dns.TypeTXT, "nat64", nil},
		{"a.example.", dns.TypeMX, "nat64", nil},
		{"a.example.", dns.TypeANY, "nat64", nil},
		{"localhost.", dns.TypeAAAA, "nat64", nil},
		{"localhost.", dns.TypeA, "nat64", nil},
		{"1.0.18.198.in-addr.arpa.", dns.TypePTR, "nat64", nil},
		{"ipv4only.arpa.", dns.TypeAAAA, "nat64", []string{"2001:db8:64::c000:aa 30s"}},
		{"nobody.example.", dns.TypeA, "nat64", nil},
	} {
		t.Run(fmt.Sprint(tt.name, dns.TypeToString[tt.qtype], tt.options), func(t *testing.T) {
			var got, names []string
			o := Options{
				Table: newTable(t), Upstreams: []netip.AddrPort{unbound}, Dial: dialTo(zone),
				Answered: func(name string, v6 netip.Addr, ttl time.Duration) {
					names = append(names, name)
					got = append(got, fmt.Sprint(v6, " ", ttl))
				},
			}
			if strings.Contains(tt.options, "nat64") {
				o.NAT64 = prefix64(t)
			}
			// Another name's host is behind the first virtual address.
			if _, err := o.Table.Map(addr("2001:db8::bad"), time.Hour); err != nil {
				t.Fatal(err)
			}
			p := newProxy(t, o)
			q := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
			if strings.Contains(tt.options, "validates") {
				q.SetEdns0(dns.MaxMsgSize, true)
				q.CheckingDisabled = true
			}
			for range 2 { // from the upstream and from the cache
				got, names = nil, nil
				r := p.respond(t.Context(), q, false)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%v\n-want +got:\n%s", r, diff)
				}
			}
			if slices.ContainsFunc(names, func(n string) bool { return n != strings.ToLower(tt.name) }) {
				t.Errorf("under the names %s", names)
			}
		})
	}
	n := 0
	p := newProxy(t, Options{
		Table: newTable(t), Upstreams: []netip.AddrPort{unbound}, Dial: dialTo(zone),
		Answered: func(string, netip.Addr, time.Duration) { n++ },
	})
	r := p.respond(t.Context(), new(dns.Msg).SetQuestion("many.example.", dns.TypeAAAA), false)
	if len(r.Answer) != 100 || n != mostAnswered {
		t.Errorf("%d of %d addresses are reported, want %d", n, len(r.Answer), mostAnswered)
	}
}

// FuzzAnswered sends any message of an upstream: what is reported belongs to a remote host, and the
// program can learn it from the answer.
func FuzzAnswered(f *testing.F) {
	for _, r := range replies(f) {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS} {
			f.Add(r, qtype, false)
			f.Add(r, qtype, true)
		}
	}
	f.Fuzz(func(t *testing.T, reply []byte, qtype uint16, validates bool) {
		const name = "a.example."
		reported := map[netip.Addr]bool{}
		nat64 := prefix64(t)
		p := newProxy(t, Options{
			Table: newTable(t), Upstreams: []netip.AddrPort{unbound}, NAT64: nat64, Timeout: 5 * time.Second,
			Dial: pipeTo(func(q *dns.Msg) [][]byte { return [][]byte{posing(q, reply)} }),
			Answered: func(asked string, v6 netip.Addr, ttl time.Duration) {
				reported[v6] = true
				if asked != name || ttl < 0 {
					t.Errorf("%s is reported for %s, for %s", v6, asked, ttl)
				}
			},
		})
		q := new(dns.Msg).SetQuestion(name, qtype)
		q.SetEdns0(1232, validates)
		q.CheckingDisabled = validates
		r := p.respond(context.Background(), q, false)
		for v6 := range reported {
			if _, ok := nat64().Extract(v6); !p.o.Table.Usable(v6) || nat64().Contains(v6) && !ok {
				t.Errorf("%s is reported, which is special", v6)
			}
			if !leadsTo(r, v6, p.o.Table, nat64()) {
				t.Errorf("%s is reported, which is not in %v", v6, r)
			}
		}
	})
}

// leadsTo tells whether a program can learn an address from an answer.
func leadsTo(r *dns.Msg, v6 netip.Addr, table *translate.Table, nat64 translate.NAT64) bool {
	texts := []string{v6.String()}
	if v4, ok := table.V4(v6); ok {
		texts = append(texts, v4.String())
	}
	if v4, ok := nat64.Extract(v6); ok {
		texts = append(texts, v4.String())
	}
	for _, rr := range r.Answer {
		words := strings.FieldsFunc(rr.String(), func(c rune) bool { return strings.ContainsRune("\t ,=\"", c) })
		for _, text := range texts {
			if slices.Contains(words, text) {
				return true
			}
		}
	}
	return false
}
