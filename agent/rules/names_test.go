package rules

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

func parseTranslated(t api.Rules, from netip.Addr) (Rules, error) {
	t.Translate = &api.Translate{}
	if from.IsValid() {
		t.Translate.IPv6 = from.String()
	}
	return Parse(t)
}

// Programs of a translated container reach all of IPv6, or what its egress and name rules say, from one
// address.
func TestParseTranslated(t *testing.T) {
	from := netip.MustParseAddr("2001:db8::9")
	for name, tt := range map[string]struct {
		texts     api.Rules
		from      netip.Addr
		egress    []string
		names     []string
		endpoints []string
		says      string
	}{
		"nothing":         {egress: []string{"::/0=e-1"}, endpoints: []string{"e-1 type ipv6 addr :: port dynamic"}},
		"an address":      {from: from, egress: []string{"::/0=e-1"}, endpoints: []string{"e-1 type ipv6 addr 2001:db8::9 port dynamic"}},
		"names":           {texts: api.Rules{NameRules: []string{"*.Example.com:443", "db.example."}}, names: []string{"*.example.com:443=names", "db.example=names"}, endpoints: []string{"names type ipv6 addr :: port dynamic"}},
		"names from":      {texts: api.Rules{NameRules: []string{"*"}}, from: from, names: []string{"*=names"}, endpoints: []string{"names type ipv6 addr 2001:db8::9 port dynamic"}},
		"names beside -e": {texts: api.Rules{NameRules: []string{"*"}, Egress: []string{"2001:db8:7::/48=2001:db8::9"}}, egress: []string{"2001:db8:7::/48=e-1"}, names: []string{"*=e-1"}, endpoints: []string{"e-1 type ipv6 addr 2001:db8::9 port dynamic"}},
		"an endpoint": {
			texts:  api.Rules{NameRules: []string{"*"}, Endpoints: []string{"out type ipv6 addr 2001:db8::9 port dynamic", "four type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"198.51.100.0/24=four", "2001:db8:7::/48=out"}},
			egress: []string{"198.51.100.0/24=four", "2001:db8:7::/48=out"}, names: []string{"*=out"},
			endpoints: []string{"four type ipv4 addr 0.0.0.0 port dynamic", "out type ipv6 addr 2001:db8::9 port dynamic"},
		},
		"-e and --ipv6":      {texts: api.Rules{Egress: []string{"::/0=::"}}, from: from, says: "leave ipv6 out"},
		"the name is taken":  {texts: api.Rules{NameRules: []string{"*"}, Endpoints: []string{"names type ipv4 addr 0.0.0.0 port dynamic"}}, says: "the endpoint of the name rules: "},
		"a wrong name rule":  {texts: api.Rules{NameRules: []string{"*", "a..b"}}, says: `bad rule --name-rule "a..b": `},
		"preload":            {texts: api.Rules{Mode: "preload"}, says: "in the modes auto and seccomp"},
		"several are wrong":  {texts: api.Rules{NameRules: []string{"a..b"}, Egress: []string{"x"}}, says: `bad rule -e "x": `},
		"several are wrong2": {texts: api.Rules{NameRules: []string{"a..b"}, Egress: []string{"x"}}, says: `bad rule --name-rule "a..b": `},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parseTranslated(tt.texts, tt.from)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v, want one that says %q", err, tt.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, n := range r.NameRules {
				names = append(names, n.String()+"="+n.Endpoint.Name)
			}
			texts := r.Texts()
			slices.Sort(texts.Endpoints)
			if diff := cmp.Diff([][]string{tt.egress, tt.names, tt.endpoints}, [][]string{texts.Egress, names, texts.Endpoints}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if _, err := policy.NewTable(r.Ingress, r.Egress, r.NameRules...); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Parse(api.Rules{NameRules: []string{"*"}}); !errors.Is(err, errNameRules) {
		t.Errorf("without translation: %v", err)
	}
}

// What explain says of name rules: before a start, and from what a running container lists.
func TestExplainNameRules(t *testing.T) {
	r, err := parseTranslated(api.Rules{NameRules: []string{"*.example.com:443/tcp", "db.example:53"}, Egress: []string{"[2001:db8:7::/48]:22=2001:db8::9"}}, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := OfEndpoints([]api.Endpoint{
		{Name: "e-1", Definition: DefinitionOf(r.NameRules[0].Endpoint), Rules: []string{"-e [2001:db8:7::/48]:22=e-1", "--name-rule *.example.com:443/tcp", "--name-rule db.example:53"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*Rules{"before": &r, "running": &listed} {
		list, err := r.Explain()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range list {
			got = append(got, v.Call+" "+v.Address+" | "+v.Rule+" | "+v.Endpoint)
		}
		want := []string{
			"connect [2001:db8:7::/48]:22 | -e [2001:db8:7::/48]:22=e-1 | e-1", "connect hosts named *.example.com:443/tcp | --name-rule *.example.com:443/tcp | e-1",
			"connect hosts named db.example:53 | --name-rule db.example:53 | e-1", "connect any other |  | ", "bind any other |  | ",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		for to, why := range map[string]string{
			"[2001:db8::1]:443":  "no -e rule covers it; if a program has got it in the answer for a name that matches, it is covered by --name-rule *.example.com:443/tcp",
			"[2001:db8::1]:53":   "by --name-rule db.example:53",
			"[2001:db8::1]:22":   "no rule covers it",
			"[2001:db8:7::1]:53": "no -e rule covers it; ",
			"[2001:db8:7::1]:23": "covers the address, and not port 23",
			"[::1]:443":          "no rule covers it",
			"198.51.100.1:443":   "the rules are for IPv6",
			"[2001:db8:7::1]:22": "2001:db8:7::/48 is the longest prefix",
		} {
			v, err := r.ExplainConnect(policy.TCP, netip.MustParseAddrPort(to))
			if err != nil || !strings.Contains(v.Why, why) {
				t.Errorf("%s, %s: %q, %v; want %q", name, to, v.Why, err, why)
			}
		}
		if v, err := r.ExplainConnect(policy.UDP, netip.MustParseAddrPort("[2001:db8::1]:443")); err != nil || !strings.Contains(v.Why, "no rule covers it") {
			t.Errorf("%s, UDP: %q, %v", name, v.Why, err)
		}
	}
	for _, bad := range []api.Endpoint{
		{Name: "e-1", Definition: DefinitionOf(r.NameRules[0].Endpoint), Rules: []string{"--name-rule a..b"}},
	} {
		if _, err := OfEndpoints([]api.Endpoint{bad}); err == nil {
			t.Errorf("%v are taken", bad.Rules)
		}
	}
}
