package dns

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// nearMisses is the number of messages that are no answer after which the question is asked over
// TCP: an attacker who knows the port is trying ids.
const nearMisses = 8

const headerSize = 12 // octets of a message before its question

var (
	errForged = errors.New("messages came that are no answer to the question")
	errNobody = errors.New("there is no upstream")
)

// ask returns the distilled answer to a question, from the cache or from an upstream. The caller
// owns the message. If no upstream answers, it is SERVFAIL.
func (p *Proxy) ask(ctx context.Context, k key) *dns.Msg {
	s := p.source.Load()
	wire, age, ok := s.cache.get(k)
	if !ok {
		// Equal questions share one query: several queries would give a forger several chances.
		shared, _, _ := s.flights.Do(k.String(), func() (any, error) {
			if wire, _, ok := s.cache.get(k); ok { // it has come just now
				return wire, nil
			}
			return p.fetch(ctx, s, k), nil
		})
		wire = shared.([]byte)
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil { // it was packed by fetch
		return failure(k)
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range section {
			h := rr.Header()
			h.Ttl -= min(h.Ttl, age)
		}
	}
	return m
}

// fetch gets the answer of an upstream of a source, and caches it.
func (p *Proxy) fetch(ctx context.Context, s *source, k key) []byte {
	ctx, end := s.until(ctx)
	defer end()
	m, err := p.exchange(ctx, s, k)
	if err != nil {
		p.counts.failures.Add(1)
		m = failure(k)
	}
	m = distil(k, m)
	m.Compress = true
	wire, err := m.Pack()
	if err != nil { // some records can be read but not written
		m = failure(k)
		wire, _ = m.Pack()
	}
	if ctx.Err() == nil {
		s.cache.put(k, wire, lifetime(m))
	}
	return wire
}

// failure returns the answer SERVFAIL to a question.
func failure(k key) *dns.Msg {
	m := new(dns.Msg).SetQuestion(k.name, k.qtype)
	m.Response, m.Rcode = true, dns.RcodeServerFailure
	return m
}

// exchange asks upstreams until one answers: a silent one twice, a failing one once. After silent
// upstreams, the first one that answered is the first to be asked later. If all fail, the answer is
// the last failure.
func (p *Proxy) exchange(ctx context.Context, s *source, k key) (m *dns.Msg, err error) {
	ups, first := s.upstreams, int(s.first.Load())
	if len(ups) == 0 {
		return nil, errNobody
	}
	failed := make([]bool, len(ups))
	var failure *dns.Msg
	for n := range rounds * len(ups) {
		i := (first + n) % len(ups)
		if failed[i] {
			continue
		}
		m, err = p.query(ctx, ups[i], k)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			continue
		case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError:
			if failure == nil { // an upstream that fails for one name answers for others
				s.first.Store(uint32(i))
			}
			return m, nil
		}
		failed[i], failure = true, m
	}
	if failure == nil {
		return nil, fmt.Errorf("no upstream answers: %w", err)
	}
	return failure, nil
}

// query asks one upstream. It uses TCP if the answer is too long for UDP or if forged messages
// come. It uses no EDNS if the upstream does not know it.
func (p *Proxy) query(ctx context.Context, to netip.AddrPort, k key) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(k.name, k.qtype)
	q.CheckingDisabled, q.AuthenticatedData = k.cd, true // RFC 6840 section 5.7
	q.SetEdns0(payload, k.do)
	m, err := p.try(ctx, "udp", to, q)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		q.Extra = nil // RFC 6891 section 7
		m, err = p.try(ctx, "udp", to, q)
	}
	if errors.Is(err, errForged) || err == nil && m.Truncated {
		m, err = p.try(ctx, "tcp", to, q)
	}
	if err == nil && m.Truncated {
		return nil, fmt.Errorf("hear from %s: the answer is cut also over TCP", to)
	}
	return m, err
}

// try sends a query from a socket of its own and waits for the answer. The kernel chooses a random
// port, and delivers only messages from the upstream's address.
func (p *Proxy) try(ctx context.Context, network string, to netip.AddrPort, q *dns.Msg) (*dns.Msg, error) {
	p.counts.tries.Add(1)
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	conn, err := p.o.Dial(ctx, network, to.String())
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", to, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	c := &dns.Conn{Conn: conn, UDPSize: dns.DefaultMsgSize}
	q.Id = dns.Id()
	if p.o.MixCase {
		q.Question[0].Name = mixCase(q.Question[0].Name)
	}
	if err := c.WriteMsg(q); err != nil {
		return nil, fmt.Errorf("ask %s: %w", to, err)
	}
	for range nearMisses {
		m, err := p.read(c, q)
		var failed net.Error
		switch {
		case err == nil:
			return m, nil
		case errors.As(err, &failed) || network == "tcp":
			return nil, fmt.Errorf("hear from %s: %w", to, err)
		}
	}
	return nil, fmt.Errorf("hear from %s: %w", to, errForged)
}

// read waits for one message and compares it with the query. It changes the letters of the question
// to lower case: with compression, other names refer to these letters.
func (p *Proxy) read(c *dns.Conn, q *dns.Msg) (*dns.Msg, error) {
	wire, err := c.ReadMsgHeader(nil)
	if err != nil && !errors.Is(err, dns.ErrShortRead) {
		return nil, err
	}
	m := new(dns.Msg)
	if err != nil || m.Unpack(wire) != nil || !accepts(q, m, p.o.MixCase) {
		p.counts.forged.Add(1)
		return nil, errForged
	}
	if !p.o.MixCase || len(m.Question) == 0 {
		return m, nil
	}
	for i := headerSize; i < len(wire) && wire[i] != 0; i++ { // the lengths of labels are below the letters
		if wire[i] >= 'A' && wire[i] <= 'Z' {
			wire[i] |= 0x20
		}
	}
	return m, m.Unpack(wire)
}

// mixCase returns a name with letters of random case.
func mixCase(name string) string {
	b := []byte(name)
	random := make([]byte, len(b))
	_, _ = rand.Read(random) // never fails
	for i, c := range b {
		if c|0x20 >= 'a' && c|0x20 <= 'z' {
			b[i] = c&^0x20 | random[i]&0x20
		}
	}
	return string(b)
}
