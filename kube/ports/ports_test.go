package ports

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

var (
	node = netip.MustParseAddr("198.51.100.1")
	alt  = netip.MustParseAddr("198.51.100.2")
	any4 = netip.IPv4Unspecified()
	r3   = grant.Range{First: 31000, Last: 31002}
)

func take(t *testing.T, table *Table, pod, rule string, addr netip.Addr, within grant.Range, want uint16) {
	t.Helper()
	if got, err := table.Take(pod, rule, v1alpha1.TCP, addr, within); err != nil || got != want {
		t.Errorf("%s %s: port %d, %v, want %d", pod, rule, got, err, want)
	}
}

func refused(t *testing.T, table *Table, pod, rule string, addr netip.Addr, within grant.Range, want string) {
	t.Helper()
	if got, err := table.Take(pod, rule, v1alpha1.TCP, addr, within); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s %s: port %d, %v, want %q", pod, rule, got, err, want)
	}
}

func TestTake(t *testing.T) {
	table := New(nil)
	take(t, table, "a", "x", node, r3, 31000)
	take(t, table, "b", "x", node, r3, 31001)
	take(t, table, "a", "x", node, r3, 31000) // the one that it has
	take(t, table, "c", "x", alt, r3, 31002)  // as the search goes on
	take(t, table, "d", "x", alt, r3, 31000)  // at another address
	take(t, table, "e", "x", node, r3, 31002)
	refused(t, table, "f", "x", node, r3, "none of the ports 31000-31002 is free at 198.51.100.1")
	refused(t, table, "f", "x", any4, r3, "none of the ports")
	table.Release("b")
	table.Release("b")
	take(t, table, "f", "x", node, r3, 31001)
	refused(t, table, "c", "x", node, r3, "none of the ports") // its endpoint moves, and it keeps what it has
	take(t, table, "c", "x", alt, r3, 31002)
	take(t, table, "f", "x", alt, r3, 31001) // it moves, and others may have its former port
	take(t, table, "b", "x", node, r3, 31001)
	take(t, table, "f", "x", node, grant.Range{First: 81, Last: 81}, 81)
	take(t, table, "f", "y", any4, grant.Range{First: 80, Last: 80}, 80)
	refused(t, table, "g", "x", node, grant.Range{First: 80, Last: 80}, "none of the ports 80 is free")
	take(t, table, "g", "y", node, grant.Range{First: 65535, Last: 65535}, 65535)
	table.Release("g")
	take(t, table, "g", "y", node, grant.Range{First: 65535, Last: 65535}, 65535)
}

func TestPortsOfOthers(t *testing.T) {
	table := New(func(protocol v1alpha1.Protocol, at netip.AddrPort) bool {
		return protocol != v1alpha1.TCP || at.Port() != 31000
	})
	take(t, table, "a", "x", node, r3, 31001)
	if got, err := table.Take("b", "x", v1alpha1.UDP, alt, grant.Range{First: 31000, Last: 31000}); err != nil || got != 31000 {
		t.Errorf("a UDP port that is taken for TCP: %d, %v", got, err)
	}
}

func TestAdopt(t *testing.T) {
	table := New(nil)
	at := netip.AddrPortFrom(node, 31001)
	for range 2 {
		if !table.Adopt("a", "x", at) {
			t.Error("a port is not adopted that is free, or that the rule has")
		}
	}
	if table.Adopt("b", "x", at) || table.Adopt("a", "x", netip.AddrPortFrom(node, 31002)) {
		t.Error("a port of another is adopted, or a second one")
	}
	take(t, table, "a", "x", node, r3, 31001)
	take(t, table, "b", "x", node, r3, 31000)
	take(t, table, "c", "x", node, r3, 31002)
}
