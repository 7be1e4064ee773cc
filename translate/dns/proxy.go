// Package dns is the DNS proxy of one container. It answers IPv4-only programs with virtual
// addresses of package translate.
//
// It owns the questions and answers, a cache of answers, and the defence against forged ones. It
// owns no address, and does not decide where its sockets are. The caller gives it the sockets on
// which it listens, and the function that opens sockets to the network's resolvers. Those resolvers
// do the resolving. The package needs no privileges and no particular kernel.
//
// Theory of operation. A question passes these steps:
//
//	Serve → respond → fill ─┬─ A: addresses   asks AAAA; an A record with a virtual address for each
//	                        ├─ HTTPS, SVCB: hints
//	                        ├─ PTR of a virtual address: pointer
//	                        └─ all others: pass
//	                              └ ask: cache, or one fetch for all equal questions
//	                                  └ exchange: upstream by upstream
//	                                      └ try: one socket, one id, one question
//
// Each message of an upstream is compared with the question (accepts), and reduced to the records
// that answer it (distil), before any other code reads it. A mapping is in use for the TTL of the
// answer that contains it, and for translate.Grace after that. An answer from the cache extends
// that time.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"

	"github.com/tsugiki/tsugiki/translate"
)

const (
	// DefaultTimeout is the default of Options.Timeout.
	DefaultTimeout = 2 * time.Second
	// DefaultClientTimeout is the default of Options.ClientTimeout. RFC 7766, section 6.2.3, asks for
	// some seconds.
	DefaultClientTimeout = 10 * time.Second
	// DefaultMost is the default of Options.Most.
	DefaultMost = 256

	rounds      = 2    // in which all upstreams are asked
	connections = 64   // TCP clients at a time
	payload     = 1232 // octets of a UDP message that fits through every path (DNS flag day 2020)
)

// Options has the settings of a proxy. The Table is required.
type Options struct {
	Table *translate.Table
	// Upstreams lists recursive resolvers. The first is asked first. SetUpstreams replaces them.
	Upstreams []netip.AddrPort
	// NAT64 returns the network's NAT64, for names that have only IPv4 addresses. It is called for
	// each such name. nil means that there is none.
	NAT64 func() translate.NAT64
	// NAT64Known is closed when NAT64 knows the network's. Until then, questions for names that have
	// only IPv4 addresses wait, for Timeout at most. nil means that it is known.
	NAT64Known <-chan struct{}
	// Dial opens a socket to an upstream. nil opens one in this process's network namespace. The
	// kernel must choose the local port.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout is the time within which one upstream must answer. Zero is DefaultTimeout.
	Timeout time.Duration
	// ClientTimeout is the time that a TCP client may take to send its first question, and to read an
	// answer. Zero is DefaultClientTimeout.
	ClientTimeout time.Duration
	// Most is the largest number of questions that are answered at a time. More questions fail with
	// SERVFAIL. Zero is DefaultMost.
	Most int
	// Answered is called for each IPv6 address to which an answer leads, before the program gets the
	// answer: also for those behind virtual addresses, and behind IPv4 addresses that the NAT64 reaches.
	// name is the one that the program has asked for, in lower case and with a dot at its end. Who owns
	// the name chooses the addresses, but special addresses and those that the table refuses are left
	// out, and so are those after the first 32 of an answer. ttl is how long the program may use the
	// address. It may be nil.
	Answered func(name string, addr netip.Addr, ttl time.Duration)
	// MixCase sends questions to upstreams in letters of random case (draft-vixie-dnsext-dns0x20).
	// Answers of an upstream that does not copy the case then count as forged.
	MixCase bool
	// Now returns the time. nil is time.Now.
	Now func() time.Time
}

// Proxy answers questions. Several goroutines may call its methods.
type Proxy struct {
	o      Options
	source atomic.Pointer[source]
	places chan struct{} // a semaphore: one place for each question that is being answered
	counts counters
}

type counters struct {
	questions, answered, failed, overload, exhausted, forged, tries, failures atomic.Uint64
}

// Counts has the counts of a proxy.
type Counts struct {
	Questions uint64
	Answered  uint64 // questions that got an answer other than SERVFAIL
	Failed    uint64 // questions that got SERVFAIL
	Overload  uint64 // questions that got SERVFAIL because too many came at a time
	Exhausted uint64 // questions that got SERVFAIL because no virtual address was free
	Forged    uint64 // messages that were no answer to the question of their socket
	Tries     uint64 // questions that were sent to an upstream
	Failures  uint64 // questions to which no upstream had an answer
}

// New makes a proxy.
func New(o Options) (*Proxy, error) {
	if o.Table == nil {
		return nil, errors.New("make DNS proxy: it needs a table")
	}
	for _, u := range o.Upstreams {
		if !u.IsValid() || u.Port() == 0 {
			return nil, fmt.Errorf("make DNS proxy: upstream %s is no address with a port", u)
		}
	}
	if o.NAT64 == nil {
		o.NAT64 = func() (none translate.NAT64) { return none }
	}
	if o.NAT64Known == nil {
		known := make(chan struct{})
		close(known)
		o.NAT64Known = known
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.ClientTimeout == 0 {
		o.ClientTimeout = DefaultClientTimeout
	}
	if o.Most == 0 {
		o.Most = DefaultMost
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Proxy{o: o, places: make(chan struct{}, o.Most)}
	p.source.Store(newSource(o.Upstreams, o.Now))
	return p, nil
}

// Counts returns the counts since New.
func (p *Proxy) Counts() Counts {
	c := &p.counts
	return Counts{
		c.questions.Load(), c.answered.Load(), c.failed.Load(), c.overload.Load(), c.exhausted.Load(), c.forged.Load(), c.tries.Load(), c.failures.Load(),
	}
}

// Serve answers on sockets until ctx ends or a socket fails. It closes all sockets. It returns when
// all questions are answered or given up. If no socket failed, the result is nil.
func (p *Proxy) Serve(ctx context.Context, packets []net.PacketConn, listeners []net.Listener) error {
	answering, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var servers []*dns.Server
	for _, c := range packets {
		servers = append(servers, &dns.Server{
			PacketConn: c, UDPSize: dns.DefaultMsgSize, Handler: p.handler(answering, true),
			ReadTimeout: time.Hour, // the library wakes up once per ReadTimeout; Shutdown does not wait for it
		})
	}
	for _, l := range listeners {
		servers = append(servers, &dns.Server{
			Listener: netutil.LimitListener(l, connections), Handler: p.handler(answering, false),
			ReadTimeout: p.o.ClientTimeout, WriteTimeout: p.o.ClientTimeout,
		})
	}
	ended := make(chan error, len(servers))
	err := start(servers, ended)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-ended:
			err = fmt.Errorf("serve DNS: %w", err)
		}
	}
	giveUp()
	for _, s := range servers {
		_ = s.ShutdownContext(context.Background()) // fails if the server has not started
	}
	closeAll(packets, listeners) // of servers that have not started
	return err
}

// start runs the servers, and returns when all of them listen.
func start(servers []*dns.Server, ended chan error) error {
	for _, s := range servers {
		listens := make(chan struct{})
		s.NotifyStartedFunc = func() { close(listens) }
		go func() { ended <- s.ActivateAndServe() }()
		select {
		case <-listens:
		case err := <-ended:
			return fmt.Errorf("serve DNS: %w", err)
		}
	}
	return nil
}

func closeAll(packets []net.PacketConn, listeners []net.Listener) {
	for _, c := range packets {
		_ = c.Close()
	}
	for _, l := range listeners {
		_ = l.Close()
	}
}

// handler answers the questions of one socket.
func (p *Proxy) handler(ctx context.Context, udp bool) dns.HandlerFunc {
	return func(w dns.ResponseWriter, query *dns.Msg) {
		p.counts.questions.Add(1)
		var r *dns.Msg
		select {
		case p.places <- struct{}{}:
			r = p.respond(ctx, query, udp)
			<-p.places
		default:
			p.counts.overload.Add(1)
			r = new(dns.Msg).SetRcode(query, dns.RcodeServerFailure)
		}
		if r.Rcode == dns.RcodeServerFailure {
			p.counts.failed.Add(1)
		} else {
			p.counts.answered.Add(1)
		}
		_ = w.WriteMsg(r) // the client may have closed
	}
}

// Discover asks for the network's NAT64 prefixes (RFC 7050). It also returns how long the answer is
// valid.
func (p *Proxy) Discover(ctx context.Context) ([]translate.NAT64, time.Duration, error) {
	m := p.ask(ctx, key{ipv4only, dns.TypeAAAA, false, false})
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return nil, 0, fmt.Errorf("discover NAT64: the resolver answers %s for %s", dns.RcodeToString[m.Rcode], ipv4only)
	}
	var found []netip.Addr
	for _, rr := range m.Answer {
		if v6, ok := ipv6Of(rr); ok {
			found = append(found, v6)
		}
	}
	return translate.Discover(found), lifetime(m), nil
}
