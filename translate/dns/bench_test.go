package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// BenchmarkProxy measures how long 32 clients wait for an answer: of unbound itself, of the proxy,
// and from the proxy's cache. A client asks again as soon as it has its answer.
func BenchmarkProxy(b *testing.B) {
	ns := network(b)
	startUnbound(b, ns)
	p, at := serve(b, ns, Options{})
	fresh := func(n int) string { return fmt.Sprintf("n%d.wild.zone.example.", n) }
	same := func(int) string { return "six.zone.example." }
	for _, c := range []struct {
		name  string
		at    netip.AddrPort
		qtype uint16
		ask   func(n int) string
	}{
		{"unbound", unbound, dns.TypeAAAA, fresh},
		{"proxy", at, dns.TypeA, fresh},
		{"cached", at, dns.TypeA, same},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := 0
			for range b.N { // each round has names of its own
				before := time.Now()
				waits := load(b, ns, c.at, func(i int) *dns.Msg { return new(dns.Msg).SetQuestion(c.ask(n+i), c.qtype) })
				n += len(waits)
				b.ReportMetric(float64(len(waits))/time.Since(before).Seconds(), "answers/s")
				slices.Sort(waits)
				for _, percent := range []int{50, 99} {
					b.ReportMetric(float64(waits[len(waits)*percent/100].Microseconds()), fmt.Sprintf("p%d-us", percent))
				}
			}
		})
	}
	if c := p.Counts(); c.Overload+c.Failures+c.Forged != 0 {
		b.Errorf("%+v", c)
	}
}

// load makes 32 clients ask 200 questions each, and returns how long each answer took.
func load(b *testing.B, ns *testkit.Namespace, at netip.AddrPort, question func(i int) *dns.Msg) (waits []time.Duration) {
	const clients, each = 32, 200
	dial := dialIn(b, ns)
	waits = make([]time.Duration, clients*each)
	var all sync.WaitGroup
	for n := range clients {
		all.Add(1)
		go func() {
			defer all.Done()
			conn, err := dial(b.Context(), "udp", at.String())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
			c := &dns.Conn{Conn: conn, UDPSize: payload}
			for i := range each {
				began := time.Now()
				m, err := roundTrip(c, question(n*each+i))
				if err != nil || len(m.Answer) == 0 {
					b.Errorf("%v (%v)", m, err)
					return
				}
				waits[n*each+i] = time.Since(began)
			}
		}()
	}
	all.Wait()
	return waits
}

func roundTrip(c *dns.Conn, q *dns.Msg) (*dns.Msg, error) {
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	return c.ReadMsg()
}
