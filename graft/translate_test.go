package graft

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// fakeTranslator knows virtual addresses.
type fakeTranslator map[netip.Addr]netip.Addr

func (f fakeTranslator) V6(v4 netip.Addr) (netip.Addr, bool) {
	v6, known := f[v4]
	return v6, known
}

func (f fakeTranslator) Map(netip.Addr, time.Duration) (netip.Addr, error) {
	return netip.Addr{}, unix.ENOBUFS
}

// A connect to a virtual address is begun on an IPv6 socket, which takes the place of the program's.
// Whatever is not ours to translate stays the kernel's, and what no rule covers is refused.
func TestConnectTranslated(t *testing.T) {
	host := newPlace(t, host6)
	known := fakeTranslator{
		netip.MustParseAddr("198.18.0.1"): host6,
		netip.MustParseAddr("198.18.0.2"): netip.MustParseAddr("2001:db8:2::1"), // no rule
		netip.MustParseAddr("198.18.0.3"): netip.MustParseAddr("2001:db8:3::1"), // no route
	}
	for name, tt := range map[string]struct {
		to       string
		typ      int
		nonblock bool
		want     Answer
		swapped  bool
	}{
		"waits":            {to: "198.18.0.1:80", typ: tcp, swapped: true},
		"does not wait":    {to: "198.18.0.1:80", typ: tcp, nonblock: true, want: fail(unix.EINPROGRESS), swapped: true},
		"no rule":          {to: "198.18.0.2:80", typ: tcp, want: fail(unix.ENETUNREACH)},
		"refused at once":  {to: "198.18.0.3:80", typ: tcp, want: fail(unix.ENETUNREACH)},
		"nobody's address": {to: "198.18.0.4:80", typ: tcp},
		"a resolver":       {to: "198.18.0.1:53", typ: tcp},
		"UDP":              {to: "198.18.0.1:80", typ: unix.SOCK_DGRAM},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUntrapped(t, host, "-e", "2001:db8:1::/48=::", "-e", "2001:db8:3::/48=::")
			w.Translation = Translation{Translator: known}
			number := w.socket(host, ip4, tt.typ)
			if err := unix.SetNonblock(w.program.files[number], tt.nonblock); err != nil {
				t.Fatal(err)
			}
			if err := unix.SetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
				t.Fatal(err)
			}
			answer, err := w.Connect(w.program, number, addr(tt.to))
			if err != nil || answer != tt.want {
				t.Fatalf("%+v, %v, want %+v", answer, err, tt.want)
			}
			family, _ := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_DOMAIN)
			keeps, _ := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			if swapped := family == unix.AF_INET6; swapped != tt.swapped || swapped && len(w.enforcer.translated) == 0 || keeps != 1 {
				t.Errorf("its socket is of family %d with keepalive %d, and %d are noted", family, keeps, len(w.enforcer.translated))
			}
			if place, _ := w.at(); place != "host" {
				t.Errorf("it is in %s", place)
			}
		})
	}
}

// A connect that was begun, and whose answer was lost, gets this answer by the call that repeats it. Any other connect on
// such a socket is the kernel's.
func TestConnectBegun(t *testing.T) {
	host := newPlace(t, host4)
	listener, err := host.Socket(keeperTCP)
	must(t, err)
	defer unix.Close(listener)
	deaf := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}} // drops all packets
	must(t, unix.SetsockoptSockFprog(listener, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &deaf[0]}))
	at := addr("198.51.100.1:80")
	must(t, errors.Join(unix.Bind(listener, sockaddr.Of(at)), unix.Listen(listener, 1)))
	w := newUntrapped(t, host)
	w.Translation = Translation{Translator: fakeTranslator{}}
	number := w.socket(host, ip4, tcp)
	file := w.program.files[number]
	must(t, unix.SetNonblock(file, true))
	if err := unix.Connect(file, sockaddr.Of(at)); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	plain := func() (Answer, error) { return w.Connect(w.program, number, addr("198.18.0.1:80")) }
	translated := func(state uint8) func() (Answer, error) {
		s := &socket{file: file, family: ip4, typ: tcp, state: state, local: addr("[2001:db8:1::1]:1024")}
		return func() (Answer, error) { return s.connectBegun(w.program) }
	}
	for name, tt := range map[string]struct {
		ask    func() (Answer, error)
		waits  bool
		before bool // the call was begun before
		want   Answer
	}{
		"another call":        {ask: plain},
		"connects":            {ask: plain, before: true, want: fail(unix.EINPROGRESS)},
		"connects, and waits": {ask: plain, before: true, waits: true},
		"another connected":   {ask: translated(unix.BPF_TCP_ESTABLISHED)},
		"connected":           {ask: translated(unix.BPF_TCP_ESTABLISHED), before: true, want: succeeded},
		"connected, closed":   {ask: translated(unix.BPF_TCP_CLOSE_WAIT), before: true, want: succeeded},
		"listens":             {ask: translated(tcpListen), before: true},
	} {
		w.program.again = tt.before
		must(t, unix.SetNonblock(file, !tt.waits))
		if answer, err := tt.ask(); err != nil || answer != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", name, answer, err, tt.want)
		}
	}
}

// An IPv4 server that a rule leads to an IPv6 address is bound there, and nothing else is. UDP is not,
// where the kernel programs translate none.
func TestBindTranslated(t *testing.T) {
	host := newPlace(t, host6)
	for typ, want := range map[int]Answer{tcp: succeeded, udp: fail(unix.EADDRNOTAVAIL)} {
		w := newUntrapped(t, host, "-i", "0.0.0.0:80=[2001:db8:1::1]:8080")
		number := w.socket(host, ip4, typ)
		answer, err := w.Bind(w.program, number, addr("0.0.0.0:80"))
		if err != nil || answer != want {
			t.Fatalf("%+v, %v, want %+v", answer, err, want)
		}
		if typ != tcp {
			continue
		}
		file := w.program.files[number]
		if b := w.enforcer.bindings[w.enforcer.cookie(file)]; b.View != addr("0.0.0.0:80") || !b.Ingress {
			t.Errorf("the kernel programs are told %+v", b)
		}
		if place, at := w.at(); place != "host" || at != addr("[2001:db8:1::1]:8080") || len(w.enforcer.translated) != 1 {
			t.Errorf("it is at %s in %s, and %d are noted", at, place, len(w.enforcer.translated))
		}
		if only, err := unix.GetsockoptInt(file, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil || only != 1 {
			t.Errorf("it is V6ONLY: %d, %v", only, err)
		}
	}
}

// A UDP server that a rule leads to an IPv6 address gets a private port, which is published there. The
// address stays the container's. What nobody could publish is refused, and leaves the socket unbound.
func TestPublishDatagrams(t *testing.T) {
	host := newPlace(t, host6)
	for name, tt := range map[string]struct {
		to    string
		taken bool
		fault error
		want  Answer
		fails bool
	}{
		"published":       {to: "[2001:db8:1::1]:8053", want: succeeded},
		"any address":     {to: "[::]:8053", want: fail(unix.EADDRNOTAVAIL)},
		"taken":           {to: "[2001:db8:1::1]:8053", taken: true, want: fail(unix.EADDRINUSE)},
		"a fault of ours": {to: "[2001:db8:1::1]:8053", fault: unix.ENOSPC, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUntrapped(t, host, "-i", "0.0.0.0:53="+tt.to)
			w.enforcer.published = map[netip.AddrPort]uint16{}
			w.enforcer.faults = map[string]error{"Publish": tt.fault}
			if tt.taken {
				other := udpAt(t, host, addr(tt.to))
				defer unix.Close(other)
			}
			number := w.socket(host, ip4, udp)
			answer, err := w.Bind(w.program, number, addr("0.0.0.0:53"))
			if (err != nil) != tt.fails || answer != tt.want {
				t.Fatalf("%+v, %v, want %+v", answer, err, tt.want)
			}
			b, bound := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]
			if want := tt.want == succeeded; bound != want || len(w.guards) > 0 != want {
				t.Errorf("it may bind %+v, and there are %d guards", b, len(w.guards))
			}
			if !bound {
				return
			}
			if b.Published != addr(tt.to) || b.View != addr("0.0.0.0:53") || !b.Private || b.Ingress ||
				w.enforcer.published[b.Published] != b.Host.Port() {
				t.Errorf("the kernel programs are told %+v and %v", b, w.enforcer.published)
			}
			unix.Close(w.guards[Port{Netns: host.Cookie(), Protocol: unix.IPPROTO_UDP, At: addr(tt.to)}])
		})
	}
}

// udpAt makes a socket of a place that has a port.
func udpAt(t *testing.T, place *fakePlace, at netip.AddrPort) (file int) {
	t.Helper()
	p := Port{Protocol: unix.IPPROTO_UDP, At: at}
	err := place.Do(func() (err error) {
		file, err = p.guard()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// The next engine holds the addresses again at which servers are published. One that somebody else
// has by now is left to them.
func TestRecoverPublished(t *testing.T) {
	host := newPlace(t, host6)
	w := newUntrapped(t, host, "-i", "0.0.0.0:53=[2001:db8:1::1]:8053")
	free, taken := addr("[2001:db8:1::1]:8053"), addr("[2001:db8:1::1]:8054")
	other := udpAt(t, host, taken)
	defer unix.Close(other)
	w.enforcer.published = map[netip.AddrPort]uint16{free: 20000, taken: 20001}
	if err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	file, held := w.guards[Port{Netns: host.Cookie(), Protocol: unix.IPPROTO_UDP, At: free}]
	if !held || len(w.guards) != 1 {
		t.Fatalf("held are %v", w.guards)
	}
	defer unix.Close(file)
	w.enforcer.faults = map[string]error{"Published": unix.EPERM}
	if err := w.Recover(); !errors.Is(err, unix.EPERM) {
		t.Errorf("a fault of the kernel's: %v", err)
	}
}

// A datagram that the kernel programs have led by an alias is logged with the IPv6 host's address. What
// is led to the container's loopback, as questions for names are, is logged as it is.
func TestLogDatagrams(t *testing.T) {
	var out strings.Builder
	w := newUntrapped(t, newPlace(t, host6), "-e", "2001:db8:1::/48=::")
	w.Log = slog.New(slog.NewTextHandler(&out, nil))
	list := []policy.Decision{
		{Asked: addr("198.18.0.1:123"), Led: addr("127.18.0.1:123"), Endpoint: -1, Protocol: unix.IPPROTO_UDP},
		{Asked: addr("198.18.0.2:123"), Led: addr("127.18.0.2:123"), Endpoint: -1, Protocol: unix.IPPROTO_UDP},
		{Asked: addr("198.18.0.1:80"), Led: addr("[2001:db8:1::1]:80"), Endpoint: -1, Protocol: unix.IPPROTO_TCP},
		{Asked: addr("198.18.0.1:53"), Led: addr("127.0.0.1:53"), Endpoint: -1, Protocol: unix.IPPROTO_UDP},
		{Asked: addr("127.0.0.1:80"), Led: addr("127.0.0.1:20000"), Endpoint: -1, Protocol: unix.IPPROTO_UDP},
		{Asked: addr("[::1]:80"), Led: addr("[::1]:20000"), Endpoint: -1, Protocol: unix.IPPROTO_UDP},
	}
	const udp2 = "addr=198.18.0.2:123 endpoint=- protocol=udp to=127.18.0.2:123 "
	const tcp6 = " protocol=tcp to=[2001:db8:1::1]:80 "
	const others = "addr=198.18.0.1:53 endpoint=- protocol=udp to=127.0.0.1:53 " +
		"addr=127.0.0.1:80 endpoint=- protocol=udp to=127.0.0.1:20000 addr=[::1]:80 endpoint=- protocol=udp to=[::1]:20000"
	for _, tt := range []struct {
		translator Translator
		want       string
	}{
		{nil, "addr=198.18.0.1:123 endpoint=- protocol=udp to=127.18.0.1:123 " + udp2 + "addr=198.18.0.1:80 endpoint=-" + tcp6 + others},
		{fakeTranslator{netip.MustParseAddr("198.18.0.1"): host6}, "addr=198.18.0.1:123 endpoint=e-1 protocol=udp to=[" + host6.String() + "]:123 " + udp2 + "addr=198.18.0.1:80 endpoint=e-1" + tcp6 + others},
	} {
		out.Reset()
		w.Translation = Translation{Translator: tt.translator}
		w.LogKernel(list, 0)
		var got []string
		for line := range strings.Lines(out.String()) {
			_, what, _ := strings.Cut(strings.TrimSpace(line), "socket=0 ")
			got = append(got, what)
		}
		if logged := strings.Join(got, " "); logged != tt.want {
			t.Errorf("it logs\n%s, want\n%s", logged, tt.want)
		}
	}
}
