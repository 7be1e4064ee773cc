package graft

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A bind to the wildcard of both families is one to the IPv4 address, and its second address is
// that of IPv6, whose port a guard has.
func TestBindForBothFamilies(t *testing.T) {
	host := newPlace(t, host4, host6)
	both := []string{"-i", "0.0.0.0:80=198.51.100.1:8004", "-i", "[::]:80=[2001:db8:1::1]:8006"}
	second := netip.MustParseAddrPort("[2001:db8:1::1]:8006")
	for _, c := range []struct {
		name   string
		rules  []string
		typ    int
		v6only int
		steer  error
		at     string
		both   bool
	}{
		{name: "both", rules: both, typ: tcp, at: "[::ffff:198.51.100.1]:8004", both: true},
		{name: "V6ONLY", rules: both, typ: tcp, v6only: 1, at: "[2001:db8:1::1]:8006"},
		{name: "datagrams", rules: both, typ: udp, at: "[2001:db8:1::1]:8006"},
		{name: "a kernel that cannot", rules: both, typ: tcp, steer: errors.New("no"), at: "[2001:db8:1::1]:8006"},
		{name: "IPv6 alone", rules: both[2:], typ: tcp, at: "[2001:db8:1::1]:8006"},
		{name: "IPv4 alone", rules: both[:2], typ: tcp, at: "[::ffff:198.51.100.1]:8004"},
		{name: "the host's wildcard", rules: []string{both[0], both[1], "-i", "[::]:80=[::]:8006"}, typ: tcp, at: "[::]:8006"},
		{name: "any IPv4 address", rules: []string{"-i", "0.0.0.0:80=0.0.0.0:8004", both[2], both[3]}, typ: tcp, at: "[::ffff:0.0.0.0]:8004", both: true},
		{name: "other ports", rules: []string{"-i", "0.0.0.0:81=198.51.100.1:8004", both[2], both[3]}, typ: tcp, at: "[2001:db8:1::1]:8006"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newUntrapped(t, host, c.rules...)
			w.enforcer.faults["Steer"] = c.steer
			number := w.socket(host, ip6, c.typ)
			if err := unix.SetsockoptInt(w.program.files[number], unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, c.v6only); err != nil {
				t.Fatal(err)
			}
			if answer, err := w.Bind(w.program, number, addr("[::]:80")); err != nil || answer != succeeded {
				t.Fatalf("%+v, %v", answer, err)
			}
			b := w.enforcer.bindings[w.enforcer.cookie(w.program.files[number])]
			if _, at := w.at(); at.String() != c.at || b.Host != at || b.View != addr("[::]:80") {
				t.Errorf("at %v, and the kernel programs know %+v; want %s", at, b, c.at)
			}
			want := 1
			if c.both {
				want = 2
			}
			if (b.Second == second) != c.both || len(w.enforcer.served) != want {
				t.Errorf("second address %v, served %+v", b.Second, w.enforcer.served)
			}
			if _, err := claimIn(host, guardPort(host, second)); c.both && !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("the port of %v: %v", second, err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if _, err := claimIn(host, guardPort(host, second)); c.both && err != nil {
				t.Errorf("the port of %v after the engine's end: %v", second, err)
			}
		})
	}
}

// A server that one engine has bound, and that listens when there is another, has its second port guarded.
func TestListenForBothFamilies(t *testing.T) {
	host := newPlace(t, host4, host6)
	second := guardPort(host, addr("[2001:db8:1::1]:8006"))
	w := newWorld(t, host, newPlace(t), false, "-i", "0.0.0.0:80=198.51.100.1:8004", "-i", "[::]:80=[2001:db8:1::1]:8006")
	number := w.socket(host, ip6, tcp)
	if answer, err := w.Bind(w.program, number, addr("[::]:80")); err != nil || answer != succeeded {
		t.Fatalf("%+v, %v", answer, err)
	}
	must(t, w.Close())
	w.Engine = New(w.Config, w.now.Load().Rules)
	s, err := inspect(w.program.files[number])
	must(t, err)
	for _, c := range []struct {
		view string
		want error
	}{{"[::]:81", nil}, {"[::]:80", unix.EADDRINUSE}} {
		w.begin().steerListener(s, addr(c.view)) // without kernel programs, Listen sees the host's address
		if _, err := claimIn(host, second); !errors.Is(err, c.want) {
			t.Errorf("%s: the port of %v: %v, want %v", c.view, second.At, err, c.want)
		}
	}
	must(t, w.Close())
}

// A bind that fails keeps no guard, and one more than there may be is for one family.
func TestGuardsAreFew(t *testing.T) {
	host := newPlace(t, host6)
	w := newUntrapped(t, host, "-i", "0.0.0.0:80=198.51.100.1:8004", "-i", "[::]:80=[2001:db8:1::1]:8006")
	if answer, err := w.Bind(w.program, w.socket(host, ip6, tcp), addr("[::]:80")); err != nil || answer != fail(unix.EADDRNOTAVAIL) {
		t.Fatalf("bind to an IPv4 address that the host has not: %+v, %v", answer, err)
	}
	if len(w.guards) > 0 {
		t.Errorf("%d guards", len(w.guards))
	}
	for port := range guardsMax {
		w.guards[Port{At: netip.AddrPortFrom(host6, uint16(port))}] = -1
	}
	if answer, err := w.Bind(w.program, w.socket(host, ip6, tcp), addr("[::]:80")); err != nil || answer != succeeded {
		t.Fatalf("%+v, %v", answer, err)
	}
	if _, at := w.at(); at.Addr() != host6 {
		t.Errorf("at %v", at)
	}
}
