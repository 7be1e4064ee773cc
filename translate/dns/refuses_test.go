package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// While questions are refused, no upstream is asked, and nothing is answered from the cache. What the proxy
// knows by itself it says.
func TestRefuses(t *testing.T) {
	var refuses bool
	tries := 0
	p := newProxy(t, Options{
		Table: newTable(t), Upstreams: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
		Refuses: func() bool { return refuses },
		Dial: func(context.Context, string, string) (net.Conn, error) {
			tries++
			return nil, errors.New("no upstream")
		},
	})
	says := func(name string, qtype uint16) int {
		return p.respond(t.Context(), new(dns.Msg).SetQuestion(name, qtype), true).Rcode
	}
	for _, refuses = range []bool{true, false, true} {
		before, want := tries, dns.RcodeServerFailure
		if refuses {
			want = dns.RcodeRefused
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT, dns.TypePTR} {
			for _, name := range []string{"host.example.", "ipv4only.arpa."} {
				if got := says(name, qtype); got != want {
					t.Errorf("refuses %v: %s %s: %s", refuses, name, dns.TypeToString[qtype], dns.RcodeToString[got])
				}
			}
		}
		if asked := tries > before; asked == refuses {
			t.Errorf("refuses %v: an upstream was asked: %v", refuses, asked)
		}
		if got := says("localhost.", dns.TypeA); got != dns.RcodeSuccess {
			t.Errorf("refuses %v: localhost: %s", refuses, dns.RcodeToString[got])
		}
	}
}
