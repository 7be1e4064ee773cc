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

// of returns a pod of a namespace: "shop/a"; of "default", if it says none.
func of(table *Table, pod string) *Pod {
	namespace, _, found := strings.Cut(pod, "/")
	if !found {
		namespace = "default"
	}
	return table.Of(pod, namespace)
}

func take(t *testing.T, table *Table, pod, rule string, addr netip.Addr, within grant.Range, want uint16) {
	t.Helper()
	if got, err := of(table, pod).Take("", rule, v1alpha1.TCP, addr, within); err != nil || got != want {
		t.Errorf("%s %s: port %d, %v, want %d", pod, rule, got, err, want)
	}
}

func refused(t *testing.T, table *Table, pod, rule string, addr netip.Addr, within grant.Range, want string) {
	t.Helper()
	p := of(table, pod)
	if got, err := p.Take("", rule, v1alpha1.TCP, addr, within); err == nil || !strings.Contains(err.Error(), want) || !p.Short {
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
	if got, err := of(table, "b").Take("", "x", v1alpha1.UDP, alt, grant.Range{First: 31000, Last: 31000}); err != nil || got != 31000 {
		t.Errorf("a UDP port that is taken for TCP: %d, %v", got, err)
	}
}

// settle has a pod have some rules, of which a Service leads to those with an s before the name.
func settle(t *testing.T, table *Table, pod string, lapses bool, rules ...string) {
	t.Helper()
	var list []grant.Served
	for _, r := range rules {
		s := grant.Served{Rule: strings.TrimPrefix(r, "s:")}
		if s.Rule != r {
			s.Services = []v1alpha1.ServicePort{{Name: "web"}}
		}
		list = append(list, s)
	}
	if got := of(table, pod).Settle(list); got != lapses {
		t.Errorf("%s has %q: ports lapse: %v, want %v", pod, rules, got, lapses)
	}
}

func TestLapsed(t *testing.T) {
	listens := map[uint16]bool{}
	table := New(func(_ v1alpha1.Protocol, at netip.AddrPort) bool { return !listens[at.Port()] })
	r1 := grant.Range{First: 443, Last: 443}
	const none = "none of the ports"

	// A pod that is refused has had nothing.
	take(t, table, "shop/a", "x", node, r1, 443)
	refused(t, table, "bank/b", "x", node, r1, none)
	settle(t, table, "shop/a", false)
	take(t, table, "bank/b", "x", node, r1, 443)
	settle(t, table, "bank/b", false)

	// The rule of a pod that is still there goes, and comes back while nobody else has the port, also to a server that listens.
	take(t, table, "shop/a", "x", node, r1, 443)
	settle(t, table, "shop/a", false, "x")
	settle(t, table, "shop/a", true)
	settle(t, table, "shop/a", false)
	listens[443] = true
	refused(t, table, "shop/b", "x", node, r1, none)
	take(t, table, "shop/a", "x", node, r1, 443)
	settle(t, table, "shop/a", false, "x")
	refused(t, table, "shop/b", "x", node, r1, none)
	settle(t, table, "shop/a", true)

	// Nobody listens any more: another pod has it, and the former owner loses it.
	listens[443] = false
	take(t, table, "shop/b", "x", node, r1, 443)
	settle(t, table, "shop/b", false, "s:x")
	refused(t, table, "shop/a", "x", node, r1, none)

	// A Service may lead to the port: pods of its namespace may have it, and others once the pod is gone.
	settle(t, table, "shop/b", false, "x")
	settle(t, table, "shop/b", true)
	refused(t, table, "bank/c", "x", node, r1, none)
	take(t, table, "shop/a", "x", node, r1, 443)
	settle(t, table, "shop/a", false, "x")
	settle(t, table, "shop/a", true)
	take(t, table, "bank/c", "x", node, r1, 443) // no Service has led to shop/a
	if !table.Release("bank/c") || table.Release("bank/c") {
		t.Error("a pod has no ports, or has some after they are released")
	}

	// A port that has lapsed is the last one to be given. One that moves is known until the new one is in force.
	take(t, table, "shop/d", "x", node, r3, 31000)
	settle(t, table, "shop/d", false, "x")
	settle(t, table, "shop/d", true)
	take(t, table, "shop/e", "x", node, r3, 31001)
	take(t, table, "shop/e", "y", node, r3, 31002)
	take(t, table, "shop/e", "z", node, r3, 31000)
	refused(t, table, "shop/d", "x", node, r3, none)
}

func TestClaim(t *testing.T) {
	busy := uint16(0)
	table := New(func(_ v1alpha1.Protocol, at netip.AddrPort) bool { return at.Port() != busy })
	claim := func(pod, rule string, port uint16) { of(table, pod).Claim(rule, netip.AddrPortFrom(node, port)) }
	claim("a", "x", 31000)
	claim("b", "x", 31001)
	claim("b", "y", 31001) // by an old status, say
	refused(t, table, "c", "x", node, grant.Range{First: 31000, Last: 31001}, "none of the ports")
	refused(t, table, "c", "x", alt, grant.Range{First: 31000, Last: 31001}, "none of the ports") // a's may be of all addresses
	take(t, table, "b", "x", any4, r3, 31001)
	take(t, table, "b", "y", node, r3, 31002)
	take(t, table, "a", "x", node, r3, 31000)
	settle(t, table, "a", false, "x")
	settle(t, table, "b", true, "x", "y") // what y claims is none that it has

	claim("d", "x", 443)
	settle(t, table, "d", true) // the first decision refuses the pod
	refused(t, table, "other/e", "x", node, grant.Range{First: 443, Last: 443}, "none of the ports")
	take(t, table, "d", "x", node, grant.Range{First: 443, Last: 444}, 443)
	claim("f", "x", 445)
	busy = 445 // another process has it
	take(t, table, "f", "x", node, grant.Range{First: 445, Last: 446}, 446)

	claim("g", "x", 20005)
	settle(t, table, "g", true) // the first decision refuses the pod
	busy = 20005
	take(t, table, "g", "x", node, grant.Range{First: 20005, Last: 20006}, 20006)
	claim("h", "x", 20007)
	take(t, table, "h", "x", node, grant.Range{First: 20007, Last: 20008}, 20007)
	settle(t, table, "h", false, "x")
	settle(t, table, "h", true)
	busy = 20007 // its own server listens there
	take(t, table, "h", "x", node, grant.Range{First: 20007, Last: 20008}, 20007)
}

func TestAdopt(t *testing.T) {
	table := New(nil)
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(node, port) }
	for range 2 {
		of(table, "a").Adopt("x", at(31001))
	}
	of(table, "b").Adopt("x", at(31001)) // another has it
	of(table, "a").Adopt("x", at(31002)) // the rule has one
	of(table, "b").AdoptFormer("x", at(31001))
	of(table, "d").AdoptFormer("x", at(31000))
	of(table, "d").AdoptFormer("x", at(31002)) // the last one
	of(table, "a").Claim("x", at(31001))
	take(t, table, "a", "x", node, r3, 31001)
	take(t, table, "d", "x", node, r3, 31002)
	take(t, table, "b", "x", node, r3, 31000) // of its own namespace
	settle(t, table, "a", false, "x")
}
