package dns

import (
	"crypto"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// signZone makes the signed zone signed.example, and the DS record by which a resolver trusts it.
// The signature of bogus.signed.example is wrong.
func signZone(t testing.TB) (zone, anchor string) {
	t.Helper()
	const origin = "signed.example."
	key := &dns.DNSKEY{Hdr: header(origin, dns.TypeDNSKEY, 300), Flags: 257, Protocol: 3, Algorithm: dns.ECDSAP256SHA256}
	private, err := key.Generate(256)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][][]dns.RR{origin: {{key}}}
	for _, text := range []string{
		"signed.example. 300 SOA ns.signed.example. admin.signed.example. 1 3600 600 86400 30",
		"signed.example. 300 NS ns.signed.example.",
		"ns.signed.example. 300 AAAA 2001:db8::53",
		"six.signed.example. 300 AAAA 2001:db8::5:6",
		"both.signed.example. 300 AAAA 2001:db8::5:46",
		"both.signed.example. 300 A 203.0.113.46",
		"four.signed.example. 300 A 203.0.113.4",
		"alias.signed.example. 300 CNAME six.signed.example.",
		"bogus.signed.example. 300 AAAA 2001:db8::5:bad",
	} {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		names[rr.Header().Name] = append(names[rr.Header().Name], []dns.RR{rr})
	}
	var order []string
	for name := range names {
		order = append(order, name)
	}
	slices.SortFunc(order, canonical)
	var b strings.Builder
	for i, name := range order {
		nsec := &dns.NSEC{Hdr: header(name, dns.TypeNSEC, 30), NextDomain: order[(i+1)%len(order)]}
		for _, set := range append(names[name], []dns.RR{nsec}) {
			nsec.TypeBitMap = append(nsec.TypeBitMap, set[0].Header().Rrtype)
		}
		nsec.TypeBitMap = append(nsec.TypeBitMap, dns.TypeRRSIG)
		slices.Sort(nsec.TypeBitMap)
		for _, set := range append(names[name], []dns.RR{nsec}) {
			fmt.Fprintln(&b, set[0])
			fmt.Fprintln(&b, sign(t, key, private.(crypto.Signer), set))
		}
	}
	return b.String(), key.ToDS(dns.SHA256).String() + "\n"
}

// canonical compares names in the order of NSEC (RFC 4034 section 6.1).
func canonical(a, b string) int {
	la, lb := dns.SplitDomainName(a), dns.SplitDomainName(b)
	slices.Reverse(la)
	slices.Reverse(lb)
	return slices.Compare(la, lb)
}

func sign(t testing.TB, key *dns.DNSKEY, private crypto.Signer, set []dns.RR) *dns.RRSIG {
	t.Helper()
	sig := &dns.RRSIG{
		Algorithm: key.Algorithm, KeyTag: key.KeyTag(), SignerName: key.Hdr.Name,
		Inception: uint32(time.Now().Add(-time.Hour).Unix()), Expiration: uint32(time.Now().Add(24 * time.Hour).Unix()),
	}
	if strings.HasPrefix(set[0].Header().Name, "bogus.") && set[0].Header().Rrtype == dns.TypeAAAA {
		other := dns.Copy(set[0])
		other.(*dns.AAAA).AAAA[0]++
		set = []dns.RR{other}
	}
	if err := sig.Sign(private, set); err != nil {
		t.Fatal(err)
	}
	return sig
}
