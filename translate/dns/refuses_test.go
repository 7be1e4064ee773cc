package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

var upstream = netip.MustParseAddrPort("192.0.2.53:53")

// Without upstreams, nobody is asked, and nothing is answered from the cache. What the proxy knows by itself it says.
func TestRefuses(t *testing.T) {
	tries := 0
	p := newProxy(t, Options{
		Table: newTable(t), Upstreams: []netip.AddrPort{upstream},
		Dial: func(context.Context, string, string) (net.Conn, error) {
			tries++
			return nil, errors.New("no upstream")
		},
	})
	says := func(name string, qtype uint16) int {
		return p.respond(t.Context(), new(dns.Msg).SetQuestion(name, qtype), true).Rcode
	}
	for _, upstreams := range [][]netip.AddrPort{nil, {upstream}, nil} {
		refuses := len(upstreams) == 0
		p.SetUpstreams(upstreams)
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
		if _, _, err := p.Discover(t.Context()); err == nil {
			t.Errorf("refuses %v: a NAT64 is found", refuses)
		}
		if asked := tries > before; asked == refuses {
			t.Errorf("refuses %v: an upstream was asked: %v", refuses, asked)
		}
		if got := says("localhost.", dns.TypeA); got != dns.RcodeSuccess {
			t.Errorf("refuses %v: localhost: %s", refuses, dns.RcodeToString[got])
		}
	}
}

// With other upstreams, nothing of those before is answered: neither what is in the cache, nor what they are being
// asked for.
func TestSetUpstreams(t *testing.T) {
	other := netip.MustParseAddrPort("192.0.2.54:53")
	asked := make(chan string, 4)
	var silent bool
	p := newProxy(t, Options{
		Table: newTable(t), Upstreams: []netip.AddrPort{upstream},
		Dial: func(_ context.Context, _, to string) (net.Conn, error) {
			here, there := net.Pipe()
			mute := silent
			go func() {
				defer there.Close()
				c := dns.Conn{Conn: there}
				q, err := c.ReadMsg()
				if err != nil {
					return // closed
				}
				asked <- to
				if mute {
					_, _ = c.ReadMsg() // until the proxy closes
					return
				}
				m := new(dns.Msg).SetReply(q)
				m.Answer = []dns.RR{&dns.TXT{Hdr: header(q.Question[0].Name, dns.TypeTXT, 3600), Txt: []string{to}}}
				_ = c.WriteMsg(m) // the proxy may be gone
			}()
			return here, nil
		},
	})
	says := func() *dns.Msg {
		return p.respond(t.Context(), new(dns.Msg).SetQuestion("host.example.", dns.TypeTXT), true)
	}
	for _, u := range []netip.AddrPort{upstream, other, upstream} {
		p.SetUpstreams([]netip.AddrPort{u})
		for i := range 2 {
			m := says()
			if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].(*dns.TXT).Txt[0] != u.String() {
				t.Fatalf("%s is to answer: %v", u, m)
			}
			if i == 0 {
				<-asked
			}
		}
	}
	if len(asked) > 0 {
		t.Errorf("%s was asked for what is in the cache", <-asked)
	}
	silent = true
	p.SetUpstreams([]netip.AddrPort{other})
	list, changed := p.Upstreams()
	answered := make(chan *dns.Msg)
	go func() { answered <- says() }()
	if to := <-asked; to != other.String() || list[0] != other {
		t.Errorf("%s was asked; the upstreams are %v", to, list)
	}
	p.SetUpstreams(nil)
	<-changed
	if m := <-answered; m.Rcode != dns.RcodeServerFailure {
		t.Errorf("a question that was being asked when the upstream was taken away: %v", m)
	}
}
