// Package policytest makes rules, tables and destinations for the tests of packages that
// work with rules. No package of the product may import it. It needs no privilege.
package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Endpoints returns the endpoints that the tests' rules name.
func Endpoints(t testing.TB) *endpoint.Set {
	t.Helper()
	var s endpoint.Set
	for _, e := range []string{
		"a type ipv4 addr 198.51.100.1 port dynamic",
		"b type ipv4 addr 203.0.113.1 port dynamic",
		"any type ipv4 addr 0.0.0.0 port dynamic",
		"six type ipv6 addr 2001:db8::1 port dynamic",
		"web type ipv4 addr 198.51.100.1 port 8080",
		"range type ipv4 addr 198.51.100.1 port 8000-8099",
		"un type unix path /run/un.sock",
	} {
		ep, err := endpoint.Parse(e)
		if err == nil {
			err = s.Add(ep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &s
}

// Table compiles rules whose endpoints are those of Endpoints.
func Table(t testing.TB, ingress, egress []string) (*policy.Table, error) {
	t.Helper()
	eps := Endpoints(t)
	var in []policy.Ingress
	for _, s := range ingress {
		r, err := policy.ParseIngress(s, eps)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, r)
	}
	var out []policy.Egress
	for _, s := range egress {
		r, err := policy.ParseEgress(s, eps)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return policy.NewTable(in, out)
}

// UpdateRules name endpoints that come and go.
var UpdateRules = []string{
	"127.0.0.0/8=a", "127.2.0.0/16=b", "127.2.3.0/24:53=c", "127.2.3.0/24=d", "127.9.0.0/16=e", "10.0.0.0/8=b", "10.1.0.0/16:80-90=c",
}

// RulesOf returns the rules whose endpoints are in eps.
func RulesOf(t *testing.T, rules []string, eps map[string]*endpoint.Endpoint) []policy.Egress {
	t.Helper()
	var active []policy.Egress
	for _, s := range rules {
		what, name, _ := strings.Cut(s, "=")
		if eps[name] == nil {
			continue
		}
		var set endpoint.Set
		if err := set.Add(eps[name]); err != nil {
			t.Fatal(err)
		}
		r, err := policy.ParseEgress(what+"="+name, &set)
		if err != nil {
			t.Fatal(err)
		}
		active = append(active, r)
	}
	return active
}

// Fresh returns an endpoint with an address of its own, in the namespace that netnsOf gives for it.
func Fresh(t *testing.T, name string, last int) *endpoint.Endpoint {
	t.Helper()
	ep, err := endpoint.Parse(fmt.Sprintf("%s type ipv4 addr 127.0.1.%d port dynamic", name, last))
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// AddressesNear returns the first and last address of every prefix, their neighbours, and some
// random addresses, each with ports at the ends of ranges.
func AddressesNear(tb *policy.Table, random *rand.Rand) []netip.AddrPort {
	var addrs []netip.Addr
	for _, r := range tb.Routes() {
		first := r.Prefix.Addr()
		last := lastOf(r.Prefix)
		addrs = append(addrs, first, last, first.Prev(), last.Next())
	}
	for range 50 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, byte(random.IntN(3)), byte(random.IntN(4)), byte(random.IntN(256))}))
		addrs = append(addrs, netip.AddrFrom4([4]byte{byte(random.IntN(256)), byte(random.IntN(256)), 0, 1}))
	}
	var tos []netip.AddrPort
	for _, a := range addrs {
		if !a.IsValid() {
			continue
		}
		for _, port := range []uint16{1, 53, 79, 80, 90, 91, 443, 1000, 1001, 65535} {
			tos = append(tos, netip.AddrPortFrom(a, port))
		}
	}
	return tos
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
