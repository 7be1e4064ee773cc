package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// hostilePort is where an upstream of a test's own is on the remote.
const hostilePort = 5300

// hostileUpstream answers questions for AAAA records with the addresses that a test chooses, for ttl
// seconds, and says of all other names that they do not exist.
func hostileUpstream(t *testing.T, ns *testkit.Namespace, ttl uint32, answer func(name string) []netip.Addr) {
	t.Helper()
	var packets net.PacketConn
	var listener net.Listener
	err := ns.Do(func() (err error) {
		at := addrPort(remoteAddr6, hostilePort)
		if packets, err = net.ListenPacket("udp6", at); err == nil {
			listener, err = net.Listen("tcp6", at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	handle := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		name := q.Question[0].Name
		if q.Question[0].Qtype != dns.TypeAAAA {
			_ = w.WriteMsg(m)
			return
		}
		for _, addr := range answer(strings.ToLower(name)) {
			m.Answer = append(m.Answer, &dns.AAAA{
				Hdr:  dns.RR_Header{Name: name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: ttl},
				AAAA: addr.AsSlice(),
			})
		}
		if len(m.Answer) == 0 {
			m.Rcode = dns.RcodeNameError
		}
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(1232)
		}
		_ = w.WriteMsg(m) // or the client has gone
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handle}, {Listener: listener, Handler: handle}} {
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		t.Cleanup(func() {
			_ = s.Shutdown() // or it has not begun
			packets.Close()
			listener.Close()
			<-done
		})
	}
}

// askHostile are the flags of tsugiki for a translated container that asks a hostile upstream.
var askHostile = []string{"--dns", addrPort(remoteAddr6, hostilePort)}

// pythonRebinding asks for a name before and after its upstream changes the answer, which it does when it
// is asked for another name. It connects each time, also to what it knows from before.
const pythonRebinding = `
import socket, sys
name, port = sys.argv[1], int(sys.argv[2])
def resolve(phase=None):
    if phase:
        try:
            socket.getaddrinfo(phase + ".example.org", port, socket.AF_INET)
        except socket.gaierror:
            pass
    try:
        return [at[4][0] for at in socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)]
    except socket.gaierror as e:
        return []
def fetch(addr):
    s = socket.socket()
    try:
        s.connect((addr, port))
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return s.makefile().read().split()[-1]
    except OSError as e:
        return type(e).__name__
first = resolve()
print("first", first, [fetch(a) for a in first])
then = resolve("then")
print("then", then, [fetch(a) for a in then])
print("again", [fetch(a) for a in first])
last = resolve("last")
print("last", last, [fetch(a) for a in last])
`

// A name that is first a host that a rule covers, then the host's own address, and then both, opens
// nothing but that host.
func TestTranslatedRebinding(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	onHost, remote := observe(t, w.h), observe(t, w.srv)
	var phase atomic.Value
	phase.Store("first.example.org.")
	good, own := testkit.RemoteAddr6, testkit.HostAddr6
	hostileUpstream(t, w.srv, 0, func(name string) []netip.Addr {
		if name != "rebinding.example.org." {
			if name != "ipv4only.arpa." {
				phase.Store(name)
			}
			return nil
		}
		switch phase.Load() {
		case "then.example.org.":
			return []netip.Addr{own, netip.IPv6Loopback()}
		case "last.example.org.":
			return []netip.Addr{own, good, netip.MustParseAddr(sourceAddr6)}
		}
		return []netip.Addr{good}
	})
	got := succeed(t, w.translated(t, append(askHostile, "--ipv6", sourceAddr6, "--", python(t), "-c", pythonRebinding, "rebinding.example.org", fmt.Sprint(observerPort))...))
	want := fmt.Sprintf(`first ['%[1]s'] ['%[2]s']
then [] []
again ['%[2]s']
last ['%[1]s'] ['%[2]s']
`, virtualAddr4, sourceAddr6)
	if got != want {
		t.Errorf("it prints\n%s\nwant\n%s", got, want)
	}
	if from := onHost.take(); len(from) > 0 {
		t.Errorf("the host's server was asked by %v", from)
	}
	if from := remote.take(); len(from) != 3 {
		t.Errorf("the remote's server was asked by %v", from)
	}
	succeed(t, command(t, w.h, static(t, "fetch"), fmt.Sprintf("http://[%s]:%d", hostAddr6, observerPort)))
	if len(onHost.take()) != 1 {
		t.Error("the host's server is not asked")
	}
}

// pythonFlood asks for many names, each of which has many addresses. It says when it has done so, and
// then how many more names have an answer.
const pythonFlood = `
import socket, sys
def resolve(name):
    try:
        return len({at[4][0] for at in socket.getaddrinfo(name, 1, socket.AF_INET, socket.SOCK_STREAM)})
    except socket.gaierror as e:
        return 0
names = int(sys.argv[1])
print("begins", flush=True)
found = sum(resolve(f"{i}.many.example.org") for i in range(names))
print("flooded", found, flush=True)
sys.stdin.read()
print("more", resolve(f"{names}.many.example.org"), flush=True)
`

// While one container takes virtual addresses as fast as it can, in the soak all that it has, another
// has names answered, and reaches hosts over TCP and UDP.
func TestTranslatedFlood(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	o := observe(t, w.srv)
	const perName, pool = 32, 65534
	names := testkit.Times(60, pool/perName+50)
	hostileUpstream(t, w.srv, 3600, func(name string) (list []netip.Addr) {
		number, is := strings.CutSuffix(name, ".many.example.org.")
		first, err := strconv.Atoi(number)
		if !is || err != nil {
			return nil
		}
		for i := range perName {
			addr := netip.MustParseAddr("2001:db8:5::").As16()
			binary.BigEndian.PutUint32(addr[12:], uint32(first*perName+i))
			list = append(list, netip.AddrFrom16(addr))
		}
		return list
	})
	url := func(scheme string) string { return fmt.Sprintf("%s://%s:%d", scheme, serverName, observerPort) }
	h := hold(t, w.translated(t, append(askHostile, "--", python(t), "-c", pythonFlood, fmt.Sprint(names))...), "begins")
	other := func() {
		t.Helper()
		got := succeed(t, w.translated(t, "--ipv6", sourceAddr6, "--", static(t, "fetch"), url("http4"), url("udp4")))
		if want := fmt.Sprintf("%s %s:%d\n%s\n%s\n", ownAddr4, virtualAddr4, observerPort, sourceAddr6, sourceAddr6); got != want {
			t.Errorf("the other container prints\n%s\nwant\n%s", got, want)
		}
	}
	other()
	h.await("flooded")
	other()
	said := strings.Fields(strings.Join(h.release(), " "))
	found, err := strconv.Atoi(said[2])
	more := said[len(said)-1]
	if err != nil || found != min(names*perName, pool) {
		t.Errorf("the container has %d addresses of %d: %v", found, min(names*perName, pool), err)
	}
	if exhausted := names*perName > pool; exhausted != (more == "0") {
		t.Errorf("then %s more addresses", more)
	}
	if len(o.take()) == 0 {
		t.Error("nobody has asked the server")
	}
}
