package dns

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/translate"
)

var addr = netip.MustParseAddr

// hostsOwn is an address of zone.example that the tests' tables refuse as the host's own.
var hostsOwn = addr("2001:db8::aaaa")

// network makes a namespace with only a loopback.
func network(t testing.TB) *testkit.Namespace {
	return testkit.Build(t, testkit.Options{NoRemote: true}).Host
}

// unbound starts an unbound with the zones of testdata, and returns its address.
var unbound = netip.MustParseAddrPort("127.0.0.1:53")

func startUnbound(t testing.TB, ns *testkit.Namespace) {
	t.Helper()
	program := testkit.Program(t, "unbound")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	zone, anchor := signZone(t)
	for name, text := range map[string]string{"signed.example": zone, "anchor": anchor} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := ns.Command(ctx, program, "-d", "-c", "unbound.conf")
	var log bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("unbound:\n%s", log.Bytes())
		}
	})
	testkit.Eventually(t, func() error {
		_, err := exchange(ns, "udp", unbound, new(dns.Msg).SetQuestion("zone.example.", dns.TypeSOA))
		return err
	})
}

// exchange sends a question to a server in the namespace.
func exchange(ns *testkit.Namespace, network string, to netip.AddrPort, q *dns.Msg) (r *dns.Msg, err error) {
	err = ns.Do(func() error {
		c := dns.Client{Net: network, Timeout: testkit.Patience, UDPSize: dns.MaxMsgSize}
		r, _, err = c.Exchange(q, to.String())
		return err
	})
	return r, err
}

// asked returns the answer of a server to a question.
func asked(t testing.TB, ns *testkit.Namespace, to netip.AddrPort, name string, qtype uint16) *dns.Msg {
	t.Helper()
	return askedWith(t, ns, to, new(dns.Msg).SetQuestion(name, qtype))
}

// askedWith sends a message of the caller's. It gives the message an EDNS buffer if it has none.
func askedWith(t testing.TB, ns *testkit.Namespace, to netip.AddrPort, q *dns.Msg) *dns.Msg {
	t.Helper()
	if q.IsEdns0() == nil {
		q.SetEdns0(dns.MaxMsgSize, false)
	}
	r, err := exchange(ns, "udp", to, q)
	if err == nil && r.Truncated {
		r, err = exchange(ns, "tcp", to, q)
	}
	if err != nil {
		t.Fatalf("ask %s: %v", to, err)
	}
	return r
}

func newTable(t testing.TB) *translate.Table {
	t.Helper()
	table, err := translate.New(translate.Options{Refuse: func(a netip.Addr) (bool, error) { return a == hostsOwn, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func newProxy(t testing.TB, o Options) *Proxy {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// dialIn returns a function that opens sockets in the namespace. One thread opens them all and
// stays there until the test ends.
func dialIn(t testing.TB, ns *testkit.Namespace) dialer {
	calls := make(chan func())
	ended := make(chan error)
	go func() {
		ended <- ns.Do(func() error {
			for call := range calls {
				call()
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		close(calls)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(ctx context.Context, network, address string) (c net.Conn, err error) {
		done := make(chan struct{})
		calls <- func() {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			close(done)
		}
		<-done
		return c, err
	}
}

// patientWith returns a dial function whose sockets for one upstream have the tests' patience,
// whatever the proxy's timeout is.
func patientWith(upstream netip.AddrPort, dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if network != "udp" || address != upstream.String() {
			return dial(ctx, network, address)
		}
		c, err := dial(context.WithoutCancel(ctx), network, address)
		if err != nil {
			return nil, err
		}
		return patient{c.(*net.UDPConn)}, c.SetDeadline(time.Now().Add(testkit.Patience))
	}
}

// patient is a socket whose deadline stays.
type patient struct{ *net.UDPConn }

func (patient) SetDeadline(time.Time) error { return nil }

// serve runs a proxy in the namespace until the test ends, over UDP and TCP.
func serve(t testing.TB, ns *testkit.Namespace, o Options) (*Proxy, netip.AddrPort) {
	t.Helper()
	if o.Table == nil {
		o.Table = newTable(t)
	}
	if o.Upstreams == nil {
		o.Upstreams = []netip.AddrPort{unbound}
	}
	if o.Timeout == 0 {
		o.Timeout = testkit.Patience
	}
	if o.ClientTimeout == 0 {
		o.ClientTimeout = testkit.Patience
	}
	if o.Dial == nil {
		o.Dial = dialIn(t, ns)
	}
	p := newProxy(t, o)
	packet, listener := sockets(t, ns)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, []net.PacketConn{packet}, []net.Listener{listener}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p, packet.LocalAddr().(*net.UDPAddr).AddrPort()
}

// sockets makes a UDP and a TCP socket with the same address.
func sockets(t testing.TB, ns *testkit.Namespace) (packet net.PacketConn, listener net.Listener) {
	t.Helper()
	err := ns.Do(func() (err error) {
		if packet, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", packet.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packet, listener
}

// clock is a time that a test moves.
type clock struct{ passed atomic.Int64 }

func (c *clock) read() time.Time      { return time.Unix(1e9, c.passed.Load()) }
func (c *clock) pass(d time.Duration) { c.passed.Add(int64(d)) }
