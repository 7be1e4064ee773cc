package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// rogue is an upstream whose answers a test chooses, over UDP and TCP.
type rogue struct {
	at   netip.AddrPort
	ns   *testkit.Namespace
	seen chan dns.Question // the questions, as long as there is room
}

// reply answers one query of a rogue. It writes raw messages.
type reply func(q *dns.Msg, tcp bool, write func([]byte))

func startRogue(t testing.TB, ns *testkit.Namespace, do reply) *rogue {
	t.Helper()
	packet, listener := sockets(t, ns)
	r := &rogue{packet.LocalAddr().(*net.UDPAddr).AddrPort(), ns, make(chan dns.Question, 1000)}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		select {
		case r.seen <- q.Question[0]:
		default:
		}
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		do(q, tcp, func(b []byte) { _, _ = w.Write(b) }) // the proxy may be gone
	})
	for _, s := range []*dns.Server{{PacketConn: packet, Handler: handler}, {Listener: listener, Handler: handler}} {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		go func() { _ = s.ActivateAndServe() }() // until Shutdown
		<-ready
		t.Cleanup(func() { _ = s.ShutdownContext(context.Background()) })
	}
	return r
}

// packed returns a message's octets.
func packed(t testing.TB, m *dns.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return b
}

// records parses records in the form of a zone file.
func records(t testing.TB, lines ...string) (list []dns.RR) {
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Error(err)
		}
		list = append(list, rr)
	}
	return list
}

// truth returns the honest answer: one AAAA record of the requested name.
func truth(t testing.TB, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeAAAA {
		m.Answer = records(t, q.Question[0].Name+" 300 AAAA 2001:db8::600d")
	}
	return m
}

// forged returns the honest answer with a hostile address and one more change.
func forged(t testing.TB, q *dns.Msg, change func(m *dns.Msg)) []byte {
	m := new(dns.Msg).SetReply(q)
	m.Answer = records(t, q.Question[0].Name+" 300 AAAA 2001:db8::bad")
	change(m)
	return packed(t, m)
}

// answered returns the IPv6 addresses behind the virtual ones in the proxy's answer.
func answered(t testing.TB, p *Proxy, m *dns.Msg) (list []string) {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			v4, _ := netip.AddrFromSlice(a.A.To4())
			v6, _ := p.o.Table.V6(v4)
			list = append(list, v6.String())
		}
	}
	return list
}

// Messages that are no answer to the question come first, and the honest answer after them. They
// take the same path, so the proxy has seen them all. It answers with the honest one.
func TestForgedMessages(t *testing.T) {
	ns := network(t)
	for _, c := range []struct {
		name  string
		mixed bool
		forge func(q *dns.Msg) []byte
	}{
		{"id", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Id++ }) }},
		{"name", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Question[0].Name = "other." }) }},
		{"type", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeA }) }},
		{"class", false, func(q *dns.Msg) []byte {
			return forged(t, q, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
		}},
		{"query", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Response = false }) }},
		{"opcode", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }) }},
		{"no question", false, func(q *dns.Msg) []byte { return forged(t, q, func(m *dns.Msg) { m.Question = nil }) }},
		{"two questions", false, func(q *dns.Msg) []byte {
			return forged(t, q, func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })
		}},
		{"case", true, func(q *dns.Msg) []byte {
			return forged(t, q, func(m *dns.Msg) { m.Question[0].Name = strings.ToLower(m.Question[0].Name) })
		}},
		{"nothing", false, func(*dns.Msg) []byte { return []byte{} }},
		{"cut", false, func(q *dns.Msg) []byte { b := forged(t, q, func(*dns.Msg) {}); return b[:len(b)-5] }},
		{"header alone", false, func(q *dns.Msg) []byte { return forged(t, q, func(*dns.Msg) {})[:12] }},
		{"garbage", false, func(*dns.Msg) []byte { return []byte(strings.Repeat("garbage", 50)) }},
		{"a name that refers to itself", false, func(q *dns.Msg) []byte {
			b := forged(t, q, func(m *dns.Msg) { m.Answer = nil })
			b[7] = 1 // one answer
			return append(b, 0xc0, byte(len(b)), 0, 28, 0, 1)
		}},
		{"larger than any buffer", false, func(q *dns.Msg) []byte {
			return forged(t, q, func(m *dns.Msg) { m.Extra = records(t, `x. 1 TXT "`+strings.Repeat(`a" "`, 16000)+`"`) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
				write(c.forge(q))
				write(packed(t, truth(t, q)))
			})
			p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}, MixCase: c.mixed})
			m := asked(t, ns, at, "a.very.long.name.of.letters.zone.example.", dns.TypeA)
			if got := fmt.Sprint(answered(t, p, m)); got != "[2001:db8::600d]" {
				t.Errorf("%s: %v", got, m)
			}
			if c := p.Counts(); c.Forged != 1 || c.Tries != 1 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// An attacker who knows the port but does not have the upstream's address cannot reach the socket.
func TestForgedAddress(t *testing.T) {
	ns := network(t)
	var client atomic.Pointer[net.UDPAddr]
	other, _ := sockets(t, ns)
	defer other.Close()
	packet, _ := sockets(t, ns)
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := packet.ReadFrom(b)
			if err != nil {
				return
			}
			client.Store(from.(*net.UDPAddr))
			q := new(dns.Msg)
			if err := q.Unpack(b[:n]); err != nil {
				t.Error(err)
				return
			}
			_, _ = other.WriteTo(forged(t, q, func(*dns.Msg) {}), from) // the kernel may refuse
			_, _ = packet.WriteTo(packed(t, truth(t, q)), from)
		}
	}()
	defer packet.Close()
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{packet.LocalAddr().(*net.UDPAddr).AddrPort()}})
	ports := map[int]bool{}
	for n := range 20 {
		m := asked(t, ns, at, fmt.Sprintf("n%d.example.", n), dns.TypeA)
		if got := fmt.Sprint(answered(t, p, m)); got != "[2001:db8::600d]" {
			t.Errorf("%s: %v", got, m)
		}
		ports[client.Load().Port] = true
	}
	if c := p.Counts(); c.Forged != 0 || len(ports) < 15 {
		t.Errorf("%+v; %d ports for 20 questions", c, len(ports))
	}
}

// An attacker tries many ids. The proxy changes to TCP, where it gets only the upstream's messages.
func TestManyIDs(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, tcp bool, write func([]byte)) {
		for n := range 3 * nearMisses {
			if !tcp {
				write(forged(t, q, func(m *dns.Msg) { m.Id += uint16(n) + 1 }))
			}
		}
		if tcp {
			write(packed(t, truth(t, q)))
		}
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	m := asked(t, ns, at, "zone.example.", dns.TypeA)
	if got := fmt.Sprint(answered(t, p, m)); got != "[2001:db8::600d]" || p.Counts().Forged != nearMisses || p.Counts().Tries != 2 {
		t.Errorf("%s: %v %+v", got, m, p.Counts())
	}
}

// An upstream's answer has records that nobody asked for. Neither the client nor the cache gets
// them.
func TestRecordsThatNobodyAskedFor(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		m := truth(t, q)
		if strings.HasPrefix(q.Question[0].Name, "hostile.") {
			m.Answer = append(m.Answer, records(t, "victim.example. 300 AAAA 2001:db8::bad", "hostile.example. 300 CNAME victim.example.",
				"victim.example. 300 A 203.0.113.66", "example. 300 DNAME bad.")...)
			m.Ns = records(t, "example. 300 NS ns.bad.", "victim.example. 300 SOA a. b. 1 1 1 1 300", "ns.bad. 300 AAAA 2001:db8::bad")
			m.Extra = records(t, "victim.example. 300 AAAA 2001:db8::bad", "ns.bad. 300 AAAA 2001:db8::bad")
		}
		write(packed(t, m))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	for _, name := range []string{"hostile.example.", "victim.example."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			m := asked(t, ns, at, name, qtype)
			if len(m.Answer) != 1 || m.Answer[0].Header().Name != name || m.Answer[0].Header().Rrtype != qtype || len(m.Ns) != 0 || len(m.Extra) != 1 {
				t.Errorf("%v", m)
			}
		}
	}
	if _, ok := p.o.Table.V4(addr("2001:db8::bad")); ok || len(up.seen) != 2 {
		t.Errorf("the hostile address has a virtual one: %v; the upstream was asked %d questions", ok, len(up.seen))
	}
}

// A negative answer with a SOA record of another zone is not valid for later questions.
func TestForeignSOA(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		m.Ns = records(t, "other. 300 SOA a. b. 1 1 1 1 300")
		write(packed(t, m))
	})
	_, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	for n := range 3 {
		if m := asked(t, ns, at, "absent.example.", dns.TypeMX); m.Rcode != dns.RcodeNameError || len(m.Ns) != 0 || len(up.seen) != n+1 {
			t.Errorf("%d questions: %v", len(up.seen), m)
		}
	}
}

// Answers that are correct in form but useless.
func TestUselessAnswers(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, tcp bool, write func([]byte)) {
		m := new(dns.Msg).SetReply(q)
		name := q.Question[0].Name
		switch strings.SplitN(name, ".", 2)[0] {
		case "loop":
			m.Answer = records(t, "loop.example. 300 CNAME a.example.", "a.example. 300 CNAME b.example.", "b.example. 300 CNAME loop.example.")
		case "self":
			m.Answer = records(t, "self.example. 300 CNAME self.example.")
		case "long":
			m.Answer = records(t, "long.example. 300 CNAME n0.example.")
			for n := range 100 {
				m.Answer = append(m.Answer, records(t, fmt.Sprintf("n%d.example. 300 CNAME n%d.example.", n, n+1))...)
			}
		case "many":
			if m.Truncated = !tcp; tcp {
				m.Compress = true
				for n := range 2000 {
					m.Answer = append(m.Answer, records(t, fmt.Sprintf("%s 300 AAAA 2001:db8::1:%x", name, n))...)
				}
			}
		case "cut":
			if m.Truncated = !tcp; tcp {
				write([]byte("this is no message at all"))
				return
			}
		case "empty":
			b := packed(t, m)
			binary.BigEndian.PutUint16(b[6:], 1)
			write(append(b, 0xc0, headerSize, 0, byte(dns.TypeAAAA), 0, 1, 0, 0, 0, 9, 0, 0)) // AAAA of no octets
			return
		}
		write(packed(t, m))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}})
	for name, want := range map[string]struct{ rcode, answers int }{
		"loop.example.":  {dns.RcodeServerFailure, 0},
		"self.example.":  {dns.RcodeServerFailure, 0},
		"long.example.":  {dns.RcodeServerFailure, 0},
		"many.example.":  {dns.RcodeSuccess, mostAddresses},
		"cut.example.":   {dns.RcodeServerFailure, 0},
		"empty.example.": {dns.RcodeSuccess, 0},
	} {
		if m := asked(t, ns, at, name, dns.TypeA); m.Rcode != want.rcode || len(m.Answer) != want.answers {
			t.Errorf("%s: %d answers: %v", name, len(m.Answer), m)
		}
	}
	if n := p.o.Table.Stats().Mappings; n != mostAddresses {
		t.Errorf("%d mappings", n)
	}
}

// One container's names have more addresses than its pool. Its names fail with a reason. The other
// container's names do not fail.
func TestExhaustedPool(t *testing.T) {
	ns := network(t)
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = records(t, fmt.Sprintf("%s 300 AAAA 2001:db8::1:%s", q.Question[0].Name, strings.SplitN(q.Question[0].Name, ".", 2)[0]))
		write(packed(t, m))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}, Table: smallTable(t, 29)})
	_, other := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}, Table: smallTable(t, 29)})
	for n := range 8 {
		m := asked(t, ns, at, fmt.Sprintf("%d.example.", n), dns.TypeA)
		if (m.Rcode == dns.RcodeServerFailure) != (n >= 6) {
			t.Errorf("name %d: %v", n, m)
		}
		if n >= 6 && (len(m.IsEdns0().Option) != 1 || !strings.Contains(m.IsEdns0().Option[0].String(), "no virtual IPv4 address is free")) {
			t.Errorf("no reason: %v", m)
		}
	}
	if c := p.Counts(); c.Exhausted != 2 || p.o.Table.Stats().Exhausted != 2 {
		t.Errorf("%+v", c)
	}
	if m := asked(t, ns, at, "3.example.", dns.TypeA); m.Rcode != dns.RcodeSuccess { // has one
		t.Errorf("%v", m)
	}
	if m := asked(t, ns, other, "7.example.", dns.TypeA); m.Rcode != dns.RcodeSuccess {
		t.Errorf("the other container: %v", m)
	}
}

// While an upstream does not answer, questions above Most fail at once, and the sockets keep
// answering.
func TestOverload(t *testing.T) {
	ns := network(t)
	release := make(chan struct{})
	up := startRogue(t, ns, func(q *dns.Msg, _ bool, write func([]byte)) {
		<-release
		write(packed(t, truth(t, q)))
	})
	p, at := serve(t, ns, Options{Upstreams: []netip.AddrPort{up.at}, Most: 4, Timeout: 10 * testkit.Patience})
	slow := make(chan *dns.Msg)
	for n := range 4 {
		go func() {
			m, _ := exchange(ns, "udp", at, new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", n), dns.TypeA))
			slow <- m
		}()
	}
	for range 4 {
		<-up.seen
	}
	for range 3 {
		if m := asked(t, ns, at, "more.example.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v", m)
		}
	}
	close(release)
	for range 4 {
		if m := <-slow; m == nil || len(m.Answer) != 1 {
			t.Errorf("%v", m)
		}
	}
	testkit.Eventually(t, func() error { // the places are free after the answers
		if m := asked(t, ns, at, fmt.Sprintf("after%d.example.", time.Now().UnixNano()), dns.TypeA); len(m.Answer) != 1 {
			return fmt.Errorf("%v", m)
		}
		return nil
	})
	if c := p.Counts(); c.Overload < 3 || c.Failed < c.Overload || c.Answered+c.Failed > c.Questions {
		t.Errorf("%+v", c)
	}
}
