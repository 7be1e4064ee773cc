package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/translate"
)

func smallTable(t testing.TB, bits int) *translate.Table {
	t.Helper()
	table, err := translate.New(translate.Options{Prefix: netip.PrefixFrom(addr("198.18.0.0"), bits)})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// One upstream is silent, absent, or fails, and the next one answers. After a silent upstream, the
// next one is asked first. After a failing one the order stays: it may know other names.
func TestSeveralUpstreams(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	fails := func(rcode int) reply {
		return func(q *dns.Msg, _ bool, write func([]byte)) { write(packed(t, new(dns.Msg).SetRcode(q, rcode))) }
	}
	for _, c := range []struct {
		name    string
		do      reply // nil: no upstream listens
		timeout time.Duration
		tries   uint64 // for the first name
		later   uint64 // for the next
	}{
		{"silent", func(*dns.Msg, bool, func([]byte)) {}, 50 * time.Millisecond, 2, 1},
		{"garbage", func(_ *dns.Msg, _ bool, write func([]byte)) { write([]byte("garbage, which is ignored")) }, 50 * time.Millisecond, 2, 1},
		{"absent", nil, 0, 2, 1},
		{"SERVFAIL", fails(dns.RcodeServerFailure), 0, 2, 2},
		{"REFUSED", fails(dns.RcodeRefused), 0, 2, 2},
		{"truncated for ever", func(q *dns.Msg, _ bool, write func([]byte)) {
			m := new(dns.Msg).SetReply(q)
			m.Truncated = true
			write(packed(t, m))
		}, 0, 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := netip.MustParseAddrPort("127.0.0.1:9")
			if c.do != nil {
				first = startRogue(t, ns, c.do).at
			}
			// The timeout is for the first only: a slow machine's unbound answers in time, too.
			o := Options{Upstreams: []netip.AddrPort{first, unbound}, Timeout: c.timeout, Dial: patientWith(unbound, dialIn(t, ns))}
			p, at := serve(t, ns, o)
			m := asked(t, ns, at, "six.zone.example.", dns.TypeA)
			if n := p.Counts().Tries; len(m.Answer) != 1 || n != c.tries {
				t.Errorf("%d tries, want %d: %v", n, c.tries, m)
			}
			before := p.Counts().Tries
			m = asked(t, ns, at, "both.zone.example.", dns.TypeA)
			if n := p.Counts().Tries - before; len(m.Answer) != 1 || n != c.later {
				t.Errorf("%d tries, want %d: %v", n, c.later, m)
			}
		})
	}
}

// If no upstream answers, the answer is SERVFAIL, which is not kept for long.
func TestNoUpstream(t *testing.T) {
	ns := network(t)
	c := &clock{}
	p := newProxy(t, Options{Table: newTable(t), Upstreams: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}, Dial: dialIn(t, ns), Now: c.read})
	q := new(dns.Msg).SetQuestion("zone.example.", dns.TypeA)
	for range 3 {
		if m := p.respond(context.Background(), q, true); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v", m)
		}
	}
	if c := p.Counts(); c.Failures != 1 || c.Tries != rounds {
		t.Errorf("%+v", c)
	}
	c.pass(keepFailure)
	if p.respond(context.Background(), q, true); p.Counts().Failures != 2 {
		t.Errorf("%+v", p.Counts())
	}
}

// An old server does not know EDNS, and may leave out the question.
func TestUpstreamWithoutEDNS(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		m := truth(t, q)
		if q.IsEdns0() != nil {
			m = new(dns.Msg).SetRcode(q, dns.RcodeFormatError)
			m.Question = nil
		}
		write(packed(t, m))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	if m := asked(t, ns, at, "zone.example.", dns.TypeA); len(m.Answer) != 1 || p.Counts().Tries != 2 {
		t.Errorf("%v %+v", m, p.Counts())
	}
}

// TTLs decrease while an answer is in the cache, and no answer is given after its time.
func TestCache(t *testing.T) {
	ns := network(t)
	ttls := map[string]uint32{"six": 300, "short": 7, "zero": 0, "huge": 1 << 31}
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		m := truth(t, q)
		if ttl, ok := ttls[strings.SplitN(q.Question[0].Name, ".", 2)[0]]; ok {
			m.Answer[0].Header().Ttl = ttl
		} else {
			m.Answer, m.Ns = nil, records(t, "example. 3600 SOA a. b. 1 2 3 4 30")
		}
		if strings.HasPrefix(q.Question[0].Name, "absent.") {
			m.Rcode = dns.RcodeNameError
		}
		write(packed(t, m))
	})
	c := &clock{}
	p, at := serve(t, ns, Options{Now: c.read, Upstreams: []netip.AddrPort{up.at}})
	for _, step := range []struct {
		name  string
		qtype uint16
		after time.Duration
		tries uint64
		ttl   uint32
	}{
		{"six", dns.TypeA, 0, 1, 60},
		{"six", dns.TypeA, 30 * time.Second, 0, 60}, // 270 are left of 300
		{"six", dns.TypeAAAA, 20 * time.Second, 0, 250},
		{"SIX", dns.TypeAAAA, 0, 0, 250},
		{"six", dns.TypeAAAA, 10 * time.Second, 1, 300},
		{"short", dns.TypeA, 0, 1, 7},
		{"short", dns.TypeA, 5 * time.Second, 0, 2},
		{"short", dns.TypeA, 2 * time.Second, 1, 7},
		{"zero", dns.TypeA, 0, 1, 0},
		{"zero", dns.TypeA, 0, 1, 0},
		{"huge", dns.TypeA, 0, 1, 60},
		{"huge", dns.TypeA, 0, 1, 60}, // RFC 2181 section 8: zero
		{"absent", dns.TypeA, 0, 1, 30},
		{"absent", dns.TypeA, 29 * time.Second, 0, 1},
		{"absent", dns.TypeA, time.Second, 1, 30},
		{"text", dns.TypeAAAA, 0, 1, 30},
		{"text", dns.TypeA, 10 * time.Second, 0, 20},
	} {
		c.pass(step.after)
		before := p.Counts().Tries
		m := asked(t, ns, at, step.name+".example.", step.qtype)
		got := append(m.Answer, m.Ns...)
		if n := p.Counts().Tries - before; n != step.tries || len(got) != 1 || got[0].Header().Ttl != step.ttl {
			t.Errorf("%+v: %d tries: %v", step, n, m)
		}
	}
}

// The cache is limited in octets, and drops the answer whose last use is the oldest.
func TestCacheIsBounded(t *testing.T) {
	now := &clock{}
	c := newCache(now.read)
	const each = 1000
	name := func(n int) key { return key{name: fmt.Sprint(n)} }
	for n := range 2 * cacheSize / each {
		c.put(name(n), make([]byte, each), time.Minute)
		if _, _, ok := c.get(name(0)); !ok {
			t.Fatalf("what is used is forgotten after %d", n)
		}
	}
	if _, _, ok := c.get(name(1)); ok || c.size > cacheSize || len(c.byKey) != c.order.Len() || c.size != each*len(c.byKey) {
		t.Errorf("%d octets in %d messages", c.size, len(c.byKey))
	}
	c.put(name(-1), make([]byte, cacheSize), time.Minute)
	if _, _, ok := c.get(name(-1)); ok {
		t.Error("a huge message is kept")
	}
	now.pass(-time.Hour) // somebody sets the clock back
	if _, _, ok := c.get(name(0)); ok {
		t.Error("an answer of the future is kept")
	}
}

// Equal questions at the same time share one query.
func TestSameQuestionOnce(t *testing.T) {
	ns := network(t)
	release := make(chan struct{})
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		<-release
		write(packed(t, truth(t, q)))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	const clients = 10
	done := make(chan error)
	for range clients {
		go func() {
			m, err := exchange(ns, "udp", at, new(dns.Msg).SetQuestion("zone.example.", dns.TypeA))
			if err == nil && len(m.Answer) != 1 {
				err = fmt.Errorf("%v", m)
			}
			done <- err
		}()
	}
	testkit.Eventually(t, func() error {
		if n := len(p.places); n != clients {
			return fmt.Errorf("%d clients wait", n)
		}
		return nil
	})
	close(release)
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if c := p.Counts(); c.Tries != 1 {
		t.Errorf("%+v", c)
	}
}

// Many clients ask at the same time, over UDP and TCP. Each compares its answers with the zone.
func TestManyClients(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	p, at := serve(t, ns, Options{Most: 1000})
	names := map[string]string{"six": "[2001:db8::6]", "two": "[2001:db8::21 2001:db8::22]", "both": "[2001:db8::46]", "four": "[]", "chain": "[2001:db8::21 2001:db8::22]"}
	var all sync.WaitGroup
	for n := range 40 {
		all.Add(1)
		go func() {
			defer all.Done()
			network := []string{"udp", "tcp"}[n%2]
			for range 20 {
				for name, want := range names {
					m, err := exchange(ns, network, at, new(dns.Msg).SetQuestion(name+".zone.example.", dns.TypeA))
					if err != nil {
						t.Error(err)
						return
					}
					if got := fmt.Sprint(answered(t, p, m)); got != want {
						t.Errorf("%s: %s, want %s", name, got, want)
					}
				}
			}
		}()
	}
	all.Wait()
	if c := p.Counts(); c.Questions != 40*20*5 || c.Overload+c.Failures+c.Forged != 0 {
		t.Errorf("%+v", c)
	}
}

// A client holds all TCP connections that the proxy serves. UDP still works. The next TCP client
// gets its answer when the proxy has closed the idle connections.
func TestIdleConnections(t *testing.T) {
	ns := network(t)
	// On a slow machine a client that asks may take too long, too. It asks again then, as real
	// clients do.
	_, at := serve(t, ns, Options{ClientTimeout: time.Second})
	dial := dialIn(t, ns)
	for range connections {
		conn, err := dial(context.Background(), "tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte{0}); err != nil { // half of a length
			t.Fatal(err)
		}
	}
	for _, network := range []string{"udp", "tcp"} {
		testkit.Eventually(t, func() error {
			m, err := exchange(ns, network, at, new(dns.Msg).SetQuestion("localhost.", dns.TypeA))
			if err == nil && len(m.Answer) != 1 {
				t.Fatalf("%s: %v", network, m)
			}
			return err
		})
	}
}

func TestSizes(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	_, at := serve(t, ns, Options{})
	for _, c := range []struct {
		network   string
		size      uint16 // 0: no EDNS
		truncated bool
	}{{"udp", 0, true}, {"udp", 512, true}, {"udp", 100, true}, {"udp", 600, false}, {"tcp", 0, false}, {"tcp", 512, false}} {
		// 30 A records: 516 octets with their names compressed.
		q := new(dns.Msg).SetQuestion("broad.zone.example.", dns.TypeA)
		if c.size > 0 {
			q.SetEdns0(c.size, false)
		}
		m, err := exchange(ns, c.network, at, q)
		if err != nil {
			t.Fatal(err)
		}
		if m.Truncated != c.truncated || (m.IsEdns0() != nil) != (c.size > 0) || !c.truncated && len(m.Answer) != 30 {
			t.Errorf("%+v: %v", c, m)
		}
		m.Compress = true
		if c.network == "udp" && m.Len() > max(dns.MinMsgSize, int(c.size)) {
			t.Errorf("%+v: %d octets", c, m.Len())
		}
	}
}

func TestEDNSOfClients(t *testing.T) {
	ns := network(t)
	_, at := serve(t, ns, Options{})
	version := new(dns.Msg).SetQuestion("localhost.", dns.TypeA)
	version.SetEdns0(1232, false)
	version.IsEdns0().SetVersion(1)
	twice := new(dns.Msg).SetQuestion("localhost.", dns.TypeA)
	twice.Extra = []dns.RR{version.Extra[0], version.Extra[0]}
	notify := new(dns.Msg).SetNotify("zone.example.")
	for _, c := range []struct {
		q     *dns.Msg
		rcode int
	}{{version, dns.RcodeBadVers}, {twice, dns.RcodeFormatError}, {notify, dns.RcodeNotImplemented}} {
		if m, err := exchange(ns, "udp", at, c.q); err != nil || m.Rcode != c.rcode {
			t.Errorf("%v (%v)\n%v", c.q, err, m)
		}
	}
}

// A real client, dig, asks over UDP and TCP.
func TestDig(t *testing.T) {
	ns := network(t)
	startUnbound(t, ns)
	dig := testkit.Program(t, "dig")
	p, at := serve(t, ns, Options{})
	for _, args := range [][]string{{"A"}, {"A", "+tcp"}, {"A", "+dnssec"}, {"A", "+noedns"}, {"A", "+bufsize=512"}} {
		args = append([]string{"@" + at.Addr().String(), "-p", fmt.Sprint(at.Port()), "+short", "chain.zone.example."}, args...)
		out, err := ns.Command(context.Background(), dig, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, line := range strings.Fields(string(out)) {
			if v4, err := netip.ParseAddr(line); err == nil {
				v6, _ := p.o.Table.V6(v4)
				line = v6.String()
			}
			got = append(got, line)
		}
		want := []string{"chain1.zone.example.", "chain2.zone.example.", "two.zone.example.", "2001:db8::21", "2001:db8::22"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("dig %v: %s", args, d)
		}
	}
}

// Serve ends when its context ends, even if a question waits for an upstream, and closes its
// sockets. It returns an error when a socket fails.
func TestServeEnds(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(*dns.Msg, bool, func([]byte)) {})
	for _, fails := range []bool{false, true} {
		p := newProxy(t, Options{Table: newTable(t), Upstreams: []netip.AddrPort{up.at}, Dial: dialIn(t, ns), Timeout: 10 * testkit.Patience})
		packet, listener := sockets(t, ns)
		at := packet.LocalAddr().(*net.UDPAddr).AddrPort()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- p.Serve(ctx, []net.PacketConn{packet}, []net.Listener{listener}) }()
		answer := make(chan *dns.Msg)
		go func() {
			m, _ := exchange(ns, "tcp", at, new(dns.Msg).SetQuestion("zone.example.", dns.TypeA))
			answer <- m
		}()
		<-up.seen
		if fails {
			packet.Close()
		} else {
			cancel()
		}
		if err := <-ended; (err != nil) != fails || err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
		if m := <-answer; m != nil && m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v", m)
		}
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept on a socket that Serve had: %v", err)
		}
		cancel()
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a proxy of nothing")
	}
}
