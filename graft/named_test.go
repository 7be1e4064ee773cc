package graft

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// A connect to a virtual address is translated if name rules have opened the address and port behind it.
// An egress rule comes first.
func TestConnectOpened(t *testing.T) {
	host := newPlace(t, host6)
	known := fakeTranslator{netip.MustParseAddr("198.18.0.1"): host6}
	names := &endpoint.Endpoint{Name: "names", Type: endpoint.IPv6, Addr: netip.IPv6Unspecified()}
	for name, tt := range map[string]struct {
		rule    string
		port    uint16
		swapped bool
		asked   bool
	}{
		"opened":         {"2001:db8:7::/48=::", 443, true, true},
		"another port":   {"2001:db8:7::/48=::", 80, false, true},
		"an egress rule": {"2001:db8:1::/48=::", 80, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUntrapped(t, host, "-e", tt.rule)
			asked := false
			w.Translation = Translation{Translator: known, Opened: func(to netip.AddrPort) *endpoint.Endpoint {
				asked = true
				if to == netip.AddrPortFrom(host6, 443) {
					return names
				}
				return nil
			}}
			number := w.socket(host, ip4, tcp)
			answer, err := w.Connect(w.program, number, netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), tt.port))
			want := fail(unix.ENETUNREACH)
			if tt.swapped {
				want = Answer{}
			}
			family, _ := unix.GetsockoptInt(w.program.files[number], unix.SOL_SOCKET, unix.SO_DOMAIN)
			if err != nil || answer != want || family == unix.AF_INET6 != tt.swapped || asked != tt.asked {
				t.Errorf("%+v, %v, want %+v; its socket is of family %d, names were asked: %v", answer, err, want, family, asked)
			}
		})
	}
}

// Name rules leave from one address with the egress rules, or calls have to be trapped.
func TestNamesHaveASource(t *testing.T) {
	named := func(addr string, egress ...policy.Egress) *policy.Table {
		t.Helper()
		r, err := policy.ParseNameRule("*.example.com")
		if err != nil {
			t.Fatal(err)
		}
		r.Endpoint = &endpoint.Endpoint{Name: "names", Type: endpoint.IPv6, Addr: netip.MustParseAddr(addr)}
		table, err := policy.NewTable(nil, egress, r)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	rule := policy.Egress{
		Prefix: netip.MustParsePrefix("2001:db8:7::/48"), Ports: policy.AllPorts,
		Endpoint: &endpoint.Endpoint{Name: "e-1", Type: endpoint.IPv6, Addr: netip.MustParseAddr("2001:db8::1")},
	}
	facts := Facts{OwnIsLoopback: true, SeesAll: true}
	for _, addr := range []string{"::", "2001:db8::9"} {
		table := named(addr)
		if err := NeedsTraps(table, facts); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		if source := Source(table, true); source.String() != addr || Source(table, false).IsValid() {
			t.Errorf("they leave from %s and %s, want %s", source, Source(table, false), addr)
		}
		if err := NeedsTraps(named(addr, rule), facts); err == nil || !strings.Contains(err.Error(), "different addresses") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if err := NeedsTraps(named("2001:db8::1", rule), facts); err != nil {
		t.Error(err)
	}
}
