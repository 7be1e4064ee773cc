package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// named compiles egress rules and name rules, whose endpoint is "six".
func named(t *testing.T, egress, names []string) (*policy.Table, []policy.NameRule, error) {
	t.Helper()
	eps := policytest.Endpoints(t)
	var out []policy.Egress
	for _, s := range egress {
		r, err := policy.ParseEgress(s, eps)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	six, err := eps.Get("six")
	if err != nil {
		t.Fatal(err)
	}
	var list []policy.NameRule
	for _, s := range names {
		r, err := policy.ParseNameRule(s)
		if err != nil {
			t.Fatal(err)
		}
		r.Endpoint = six
		list = append(list, r)
	}
	table, err := policy.NewTable(nil, out, list...)
	return table, list, err
}

// What is opened by a name adds to the egress rules for the address, which come first, and needs a row
// only if it adds something.
func TestOpened(t *testing.T) {
	const at = "2001:db8::7"
	for name, tt := range map[string]struct {
		egress, names []string
		want          []string // PORTS/PROTOCOL of the route's ranges
		needed        bool
	}{
		"nothing":          {nil, nil, nil, false},
		"all":              {nil, []string{"a.example"}, []string{"0-65535"}, true},
		"same twice":       {nil, []string{"a.example:80", "b.example:80"}, []string{"80"}, true},
		"several":          {nil, []string{"a.example:443/udp", "b.example:80-90", "*:443/tcp"}, []string{"80-90", "443/tcp", "443/udp"}, true},
		"beside a prefix":  {[]string{"[2001:db8::/32]:22=six", "2001:db8:1::/48=six"}, []string{"*:443"}, []string{"22", "443"}, true},
		"beside the same":  {[]string{"[2001:db8::7]:22=six"}, []string{"*:443"}, []string{"22", "443"}, true},
		"none beside it":   {[]string{"[2001:db8::7]:22=six"}, nil, []string{"22"}, true},
		"covered entirely": {[]string{"2001:db8::/32=six"}, []string{"*:443"}, []string{"0-65535"}, false},
		"of one protocol":  {[]string{"2001:db8::/32/tcp=six"}, []string{"*"}, []string{"0-65535/tcp", "0-65535"}, true},
		"of IPv4":          {[]string{"0.0.0.0/0=a"}, []string{"*:443"}, []string{"443"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			table, rules, err := named(t, tt.egress, tt.names)
			if err != nil {
				t.Fatal(err)
			}
			r, needed := table.Opened(netip.MustParseAddr(at), policy.Openings(rules))
			var got []string
			for _, o := range r.Ranges {
				got = append(got, o.Ports.String()+o.Protocol.String())
				if n := table.Numbered()[o.Endpoint].Name; n != "six" {
					t.Errorf("%s leads to %s", o.Ports, n)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || needed != tt.needed || r.Prefix.String() != at+"/128" {
				t.Errorf("%s needed %v, want %v (-want +got):\n%s", r.Prefix, needed, tt.needed, diff)
			}
			if len(tt.names) > 0 && (table.NameEndpoint().Name != "six" || !table.HasEgress(true)) {
				t.Error("the table does not lead names anywhere")
			}
			if table.Egress(policy.TCP, netip.MustParseAddrPort("[2001:db8:7::1]:443")) != nil && tt.egress == nil {
				t.Error("a name rule alone covers an address")
			}
		})
	}
}

// Name rules are refused that the kernel's tables could not hold for any address.
func TestNameRuleLimits(t *testing.T) {
	many := func(n int, format string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(format, i+1))
		}
		return list
	}
	for name, tt := range map[string]struct {
		egress, names []string
		says          string
	}{
		"most rules":         {nil, many(policy.NameRulesMax, "n%d.example"), ""},
		"too many rules":     {nil, many(policy.NameRulesMax+1, "n%d.example"), "there are 257"},
		"most ranges":        {[]string{"[::/0]:5000=six"}, many(policy.RangesMax-1, "*:%d"), ""},
		"too many ranges":    {[]string{"[::/0]:5000=six"}, many(policy.RangesMax, "*:%d"), "33 port ranges"},
		"ranges of prefixes": {many(10, "[2001:db8::/32]:%d=six"), many(policy.RangesMax-9, "*:%d"), "33 port ranges apply to 2001:db8::/32"},
		"most prefixes":      {many(500, "2001:db8:%x::/48=six"), []string{"*"}, ""},
		"too many prefixes":  {many(510, "2001:db8:%x::/48=six"), []string{"*"}, "at most 512 fit beside"},
	} {
		_, _, err := named(t, tt.egress, tt.names)
		if (err == nil) != (tt.says == "") || err != nil && (!errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want one that says %q", name, err, tt.says)
		}
	}
	for _, name := range []string{"a", "un"} {
		ep, err := policytest.Endpoints(t).Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.NewTable(nil, nil, policy.NameRule{Pattern: "*", Endpoint: ep}); !errors.Is(err, policy.ErrRule) {
			t.Errorf("names lead to %s: %v", name, err)
		}
	}
}

// The endpoint of the name rules keeps its number from table to table.
func TestNameEndpointNumber(t *testing.T) {
	table, rules, err := named(t, []string{"0.0.0.0/0=a"}, []string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	six := rules[0].Endpoint
	next, err := table.Next(nil, nil, rules...)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := policy.Restore(nil, nil, next.Numbered(), rules...)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]*endpoint.Endpoint{table.Numbered(), next.Numbered(), restored.Numbered()} {
		if slices.Index(list, six) != 1 {
			t.Errorf("the endpoint's number is %d", slices.Index(list, six))
		}
	}
	if gone, err := next.Next(nil, nil); err != nil || gone.NameEndpoint() != nil {
		t.Errorf("without name rules: %v, %v", gone.NameEndpoint(), err)
	}
}
