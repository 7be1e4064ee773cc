package graft

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
)

// An engine that is asked again about a bind that its predecessor has made does what the predecessor did not come to:
// clients reach the server, and nobody else has its ports.
func TestBindIsFinished(t *testing.T) {
	host := newPlace(t, host4, host6)
	second := addr("[2001:db8:1::1]:8006")
	for name, tt := range map[string]struct {
		rules       []string
		family, typ int
		addr        string
		services    int
		guard       Port
		published   bool
	}{
		"one family":           {rules: []string{"-i", "0.0.0.0:80=198.51.100.1:8004"}, family: ip4, typ: tcp, addr: "0.0.0.0:80", services: 1},
		"any port":             {rules: []string{"-i", "0.0.0.0:0-65535=198.51.100.1"}, family: ip4, typ: udp, addr: "0.0.0.0:0", services: 1},
		"both families":        {rules: []string{"-i", "0.0.0.0:80=198.51.100.1:8004", "-i", "[::]:80=[2001:db8:1::1]:8006"}, family: ip6, typ: tcp, addr: "[::]:80", services: 2, guard: guardPort(host, second)},
		"translated":           {rules: []string{"-i", "0.0.0.0:80=[2001:db8:1::1]:8006"}, family: ip4, typ: udp, addr: "0.0.0.0:80", guard: publishedPort(host, second), published: true},
		"its private loopback": {rules: everywhere, family: ip4, typ: tcp, addr: "127.0.0.1:80"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUntrapped(t, host, tt.rules...)
			w.enforcer.published = map[netip.AddrPort]uint16{}
			number := w.socket(host, tt.family, tt.typ)
			if answer, err := w.Bind(w.program, number, addr(tt.addr)); err != nil || answer != succeeded {
				t.Fatalf("%+v, %v", answer, err)
			}
			_, before := w.at()
			w.enforcer.served, w.enforcer.published = nil, map[netip.AddrPort]uint16{} // it did not come to that
			must(t, w.Close())
			w.Engine = New(w.Config, w.now.Load().Rules)
			if answer, err := w.Bind(w.program, number, addr(tt.addr)); err != nil || answer != succeeded {
				t.Fatalf("again: %+v, %v", answer, err)
			}
			if _, at := w.at(); at != before {
				t.Errorf("it is at %v, and was at %v", at, before)
			}
			if len(w.enforcer.served) != tt.services {
				t.Errorf("services %+v, want %d", w.enforcer.served, tt.services)
			}
			if private := w.enforcer.published[second]; (private == before.Port()) != tt.published {
				t.Errorf("published is port %d of %v", private, before)
			}
			if tt.guard == (Port{}) {
				return
			}
			if _, err := claimIn(host, tt.guard); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("the port of %v: %v", tt.guard.At, err)
			}
			must(t, w.Close())
		})
	}
}

// If the rules lead elsewhere by now, a bind that was made stays as it is.
func TestBindByEarlierRules(t *testing.T) {
	host := newPlace(t, host4)
	w := newUntrapped(t, host, "-i", "0.0.0.0:80=198.51.100.1:8004")
	number := w.socket(host, ip4, tcp)
	for range 2 {
		if answer, err := w.Bind(w.program, number, addr("0.0.0.0:80")); err != nil || answer != succeeded {
			t.Fatalf("%+v, %v", answer, err)
		}
		w.enforcer.served = nil
		w.Update(Rules{Table: tableOf(t, &endpoint.Set{}, "-i", "0.0.0.0:80=198.51.100.1:8005"), Host: map[string]Place{"": host}})
	}
	if len(w.enforcer.served) > 0 {
		t.Errorf("services %+v", w.enforcer.served)
	}
}
