package graft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// routes are those of a host that has 198.51.100.1 and, for 10.0.0.0/8, 198.51.100.2.
func routes(to netip.Prefix) ([]netip.Addr, error) {
	switch {
	case to.Addr().Is6():
		return nil, nil // none
	case to.Bits() >= 8 && netip.MustParsePrefix("10.0.0.0/8").Overlaps(to):
		return []netip.Addr{netip.MustParseAddr("198.51.100.2")}, nil
	}
	return []netip.Addr{netip.MustParseAddr("198.51.100.1")}, nil
}

func TestNeedsTraps(t *testing.T) {
	good := Facts{OwnIsLoopback: true, SeesAll: true}
	for _, c := range []struct {
		name      string
		endpoints []string // besides those that rules write out
		rules     []string
		facts     Facts
		want      string // part of the reason; empty: there is none
		source4   string // where there is none
		source6   string
	}{
		{name: "any address of the host", rules: everywhere, facts: good, source4: "0.0.0.0"},
		{name: "one address", rules: from, facts: good, source4: "198.51.100.1"},
		{name: "one address of each family", rules: append([]string{"-e", "::/0=2001:db8::1"}, from...), facts: good, source4: "198.51.100.1", source6: "2001:db8::1"},
		{name: "some destinations", rules: []string{"-e", "10.0.0.0/8:443=198.51.100.2"}, facts: good, source4: "198.51.100.2"},
		{name: "servers alone", rules: []string{"-i", "0.0.0.0:80=198.51.100.1:80"}, facts: good},
		{name: "a server at another address", rules: append([]string{"-i", "0.0.0.0:80=198.51.100.2:80"}, from...), facts: good, source4: "198.51.100.1"},
		{name: "a server at a unix socket", endpoints: []string{"x type unix path /x"}, rules: append([]string{"-i", "0.0.0.0:80=x"}, from...), facts: good, source4: "198.51.100.1"},
		{name: "a server of the host's loopback", rules: append([]string{"-e", "127.0.0.1:5432=127.0.0.1"}, from...), facts: good, source4: "198.51.100.1"},
		{name: "nothing but such a server", rules: []string{"-e", "127.0.0.1:5432=127.0.0.1"}, facts: good},
		{name: "an endpoint that no rule names", endpoints: []string{"x type unix path /x", "y type ipv4 addr 198.51.100.9 port dynamic netns n"}, rules: everywhere, facts: good, source4: "0.0.0.0"},

		{name: "a network of its own", rules: everywhere, facts: Facts{SeesAll: true}, want: "may have more than a loopback"},
		{name: "some programs are not seen", rules: everywhere, facts: Facts{OwnIsLoopback: true}, want: "mode preload"},
		{name: "no rule", endpoints: []string{"x type ipv4 addr 198.51.100.1 port dynamic"}, facts: good, want: "no rule names an endpoint"},
		{name: "an endpoint of programs", endpoints: []string{"x type ipv4 addr 198.51.100.1 port dynamic nameable"}, rules: everywhere, facts: good, want: "programs may name endpoint x"},
		{name: "a unix socket", endpoints: []string{"x type unix path /x"}, rules: append([]string{"-e", "10.0.0.1:80=x"}, everywhere...), facts: good, want: "the rule -e 10.0.0.1/32:80=x leads to a unix socket"},
		{name: "another namespace", endpoints: []string{"x type ipv4 addr 198.51.100.1 port dynamic netns n"}, rules: []string{"-e", "10.0.0.0/8=x"}, facts: good, want: "the rule -e 10.0.0.0/8=x leads to network namespace n"},
		{name: "a server in another namespace", endpoints: []string{"x type ipv4 addr 198.51.100.1 port dynamic netns n"}, rules: append([]string{"-i", "0.0.0.0:80=x"}, everywhere...), facts: good, want: "the rule -i 0.0.0.0:80=x leads to network namespace n"},
		{name: "two addresses", rules: append([]string{"-e", "10.0.0.0/8=198.51.100.2"}, from...), facts: good, want: "the rules -e 0.0.0.0/0=e-2 and -e 10.0.0.0/8=e-1 leave from different addresses, 198.51.100.1 and 198.51.100.2"},
		{name: "an address and any other", rules: append([]string{"-e", "10.0.0.0/8=198.51.100.2"}, everywhere...), facts: good, want: "different addresses, 0.0.0.0 and 198.51.100.2"},
		{name: "an address that no route chooses", rules: []string{"-e", "10.0.0.0/8=198.51.100.1"}, facts: good, want: "the rule -e 10.0.0.0/8=e-1 leaves from 198.51.100.1, and the host's routes choose 198.51.100.2"},
		{name: "a loopback address to elsewhere", rules: append([]string{"-e", "10.0.0.0/8=127.0.0.1"}, from...), facts: good, want: "different addresses"},
		{name: "the host's loopback from an address", rules: append([]string{"-e", "127.0.0.1:5432=198.51.100.2"}, from...), facts: good, want: "different addresses"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.facts.SourcesFor = routes
			var set endpoint.Set
			for _, text := range c.endpoints {
				ep, err := endpoint.Parse(text)
				if err == nil {
					err = set.Add(ep)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			table := tableOf(t, &set, c.rules...)
			c.facts.Endpoints = set.All()
			reason := NeedsTraps(table, c.facts)
			if (reason == nil) != (c.want == "") || reason != nil && !strings.Contains(reason.Error(), c.want) {
				t.Fatalf("it needs traps: %v, want %q", reason, c.want)
			}
			if reason != nil {
				return
			}
			for i, want := range []string{c.source4, c.source6} {
				var source netip.Addr
				if want != "" {
					source = netip.MustParseAddr(want)
				}
				if got := Source(table, i == 1); got != source {
					t.Errorf("it leaves from %s, want %q", got, want)
				}
			}
		})
	}
}

// tableOf compiles rules as a user writes them: "-i RULE" and "-e RULE".
func tableOf(t *testing.T, set *endpoint.Set, rules ...string) *policy.Table {
	t.Helper()
	var ingress []policy.Ingress
	var egress []policy.Egress
	p := policy.Parser{Endpoints: set, Translated: true}
	for i := 0; i < len(rules); i += 2 {
		var err error
		if rules[i] == "-i" {
			var list []policy.Ingress
			list, err = p.Ingress(rules[i+1])
			ingress = append(ingress, list...)
		} else {
			var list []policy.Egress
			list, err = p.Egress(rules[i+1])
			egress = append(egress, list...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	table, err := policy.NewTable(ingress, egress)
	if err != nil {
		t.Fatal(err)
	}
	return table
}
