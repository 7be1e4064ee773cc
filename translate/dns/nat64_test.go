package dns

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/translate"
)

// dialTo returns a function that opens sockets to an upstream of the test's own.
func dialTo(answer func(q *dns.Msg) *dns.Msg) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			c := dns.Conn{Conn: there}
			if q, err := c.ReadMsg(); err == nil { // else it is closed
				_ = c.WriteMsg(answer(q)) // the proxy may be gone
			}
		}()
		return here, nil
	}
}

// only4 is what an upstream says of a name that has an IPv4 address only.
func only4(t testing.TB) func(q *dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = records(t, q.Question[0].Name+" 300 A 203.0.113.4")
		}
		return m
	}
}

// A question for a name that has only IPv4 addresses waits until the NAT64 is known, but not for ever.
func TestNAT64IsAwaited(t *testing.T) {
	for _, c := range []struct {
		found bool
		want  []string
		took  time.Duration
	}{
		{true, []string{"four.example.\t0\tIN\tA\t203.0.113.4"}, 0},
		{false, nil, DefaultTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			var found translate.NAT64
			known := make(chan struct{})
			p := newProxy(t, Options{
				Table: newTable(t), Upstreams: []netip.AddrPort{unbound}, Dial: dialTo(only4(t)),
				NAT64: func() translate.NAT64 { return found }, NAT64Known: known,
			})
			answer, begun := make(chan *dns.Msg, 1), time.Now()
			go func() { answer <- p.respond(t.Context(), new(dns.Msg).SetQuestion("four.example.", dns.TypeA), true) }()
			synctest.Wait()
			if c.found {
				found = prefix64(t)()
				close(known)
			}
			m := <-answer
			if d := cmp.Diff(c.want, texts(m.Answer)); d != "" || m.Rcode != dns.RcodeSuccess || time.Since(begun) != c.took {
				t.Errorf("after %s, want %s: rcode %d, %s", time.Since(begun), c.took, m.Rcode, d)
			}
		})
	}
}

// An address of the pool is in no answer, whoever gives it out.
func TestNoRealAddressOfThePool(t *testing.T) {
	table, err := translate.New(translate.Options{Prefix: netip.MustParsePrefix("198.18.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, Options{
		Table: table, Upstreams: []netip.AddrPort{unbound}, NAT64: prefix64(t),
		Dial: dialTo(func(q *dns.Msg) *dns.Msg {
			m, name := new(dns.Msg).SetReply(q), q.Question[0].Name
			switch q.Question[0].Qtype {
			case dns.TypeA:
				m.Answer = records(t, name+" 300 A 198.19.7.7", name+" 300 A 203.0.113.4", name+" 300 A 198.18.7.7")
			case dns.TypeHTTPS:
				m.Answer = records(t, name+" 300 HTTPS 1 . ipv4hint=198.19.7.7,203.0.113.4,198.18.7.7")
			}
			return m
		}),
	})
	var got []string
	for _, rr := range p.respond(t.Context(), new(dns.Msg).SetQuestion("pool.example.", dns.TypeA), true).Answer {
		v4, _ := netip.AddrFromSlice(rr.(*dns.A).A.To4())
		if v6, ok := table.V6(v4); ok {
			v4 = v6
		}
		got = append(got, v4.String())
	}
	if d := cmp.Diff([]string{"2001:db8:64::c613:707", "203.0.113.4", "2001:db8:64::c612:707"}, got); d != "" {
		t.Error(d)
	}
	m := p.respond(t.Context(), new(dns.Msg).SetQuestion("pool.example.", dns.TypeHTTPS), true)
	if d := cmp.Diff([]string{"ipv4hint=203.0.113.4"}, hintsOf(table, &m.Answer[0].(*dns.HTTPS).SVCB)); d != "" {
		t.Error(d)
	}
}

// While nobody can tell which addresses are the host's, questions fail. They do not have an empty
// answer, which programs keep.
func TestUnknownHost(t *testing.T) {
	var fails error = unix.EMFILE
	table, err := translate.New(translate.Options{Refuse: func(netip.Addr) (bool, error) { return false, fails }})
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, Options{
		Table: table, Upstreams: []netip.AddrPort{unbound},
		Dial: dialTo(func(q *dns.Msg) *dns.Msg { return truth(t, q) }),
	})
	ask := func() *dns.Msg {
		return p.respond(t.Context(), new(dns.Msg).SetQuestion("six.example.", dns.TypeA), true)
	}
	if m := ask(); m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 {
		t.Errorf("it is not known which addresses are the host's: %v", m)
	}
	fails = nil
	if d := cmp.Diff([]string{"2001:db8::600d"}, answered(t, p, ask())); d != "" {
		t.Error(d)
	}
	if n := p.Counts().Exhausted; n != 0 {
		t.Errorf("%d questions count as exhausted", n)
	}
}
