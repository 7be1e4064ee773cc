package grant

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/policy"
)

// peersOf are the pods of a node: those of the shop, one of the bank, one in the node's network, and the
// pod itself.
func peersOf() *Peers {
	shop, bank := map[string]string{"team": "shop"}, map[string]string{"team": "bank"}
	addr := netip.MustParseAddr
	return NewPeers([]Peer{
		{UID: "u1", Namespace: "shop", NamespaceLabels: shop, Labels: map[string]string{"app": "web"}, Grafted: true, Addrs: []netip.Addr{addr("10.244.0.1")}},
		{UID: "u2", Namespace: "shop", NamespaceLabels: shop, Labels: map[string]string{"app": "cache"}, Grafted: true, Addrs: []netip.Addr{addr("10.244.0.2"), addr("fd00::2")}},
		{UID: "u3", Namespace: "shop", NamespaceLabels: shop, Labels: map[string]string{"app": "cart"}, Addrs: []netip.Addr{addr("10.244.0.3")}},
		{UID: "u4", Namespace: "bank", NamespaceLabels: bank, Labels: map[string]string{"app": "cart"}, Addrs: []netip.Addr{addr("10.244.0.4")}},
		{UID: "u5", Namespace: "shop", NamespaceLabels: shop, Labels: map[string]string{"app": "host"}},
	})
}

func TestSources(t *testing.T) {
	for _, tt := range []struct{ from, want string }{
		{`[{ipBlock: {cidr: 10.0.0.0/8}}]`, "from:10.0.0.0/8"},
		{`[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]`, "from:10.0.0.0/8 except:10.1.0.0/16"},
		// An address is let in that one block has, whatever another one excepts.
		{`[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: 10.1.2.0/24}}]`, "from:10.0.0.0/8 except:10.1.0.0/16 from:10.1.2.0/24"},
		{`[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: 10.0.0.0/7}}]`, "from:10.0.0.0/7 from:10.0.0.0/8 from:10.1.0.0/16"},
		{`[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.2.0/24]}}]`, "from:10.0.0.0/8 from:10.1.0.0/16 except:10.1.2.0/24"},
		{`[{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]`, ""},
		{`[{podSelector: {}}]`, "from:pod:u2 from:10.244.0.1/32 from:10.244.0.2/32 from:10.244.0.3/32 from:fd00::2/128"},
		{`[{podSelector: {matchLabels: {app: cart}}}]`, "from:10.244.0.3/32"},
		{`[{podSelector: {matchLabels: {app: cache}}}]`, "from:pod:u2 from:10.244.0.2/32 from:fd00::2/128"},
		{`[{namespaceSelector: {}, podSelector: {matchLabels: {app: cart}}}]`, "from:10.244.0.3/32 from:10.244.0.4/32"},
		{`[{namespaceSelector: {matchLabels: {team: bank}}}]`, "from:10.244.0.4/32"},
		{`[{podSelector: {matchLabels: {app: nothing}}}]`, ""},
		{`[{podSelector: {matchLabels: {app: host}}}]`, ""},
		{`[{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.0.3/32]}}, {podSelector: {matchLabels: {app: cart}}}]`, "from:10.244.0.0/16 from:10.244.0.3/32"},
	} {
		q := question(t, web, `{podSelector: {}, ingress: [{endpoint: web, port: 80, from: `+tt.from+`}]}`)
		q.Peers = peersOf
		d := Decide(q)
		if d.Grant.Refused != "" {
			t.Errorf("%s: refused: %s", tt.from, d.Grant.Refused)
			continue
		}
		rule, _, _ := strings.Cut(d.Grant.Containers["nginx"].Ingress[0], "=")
		got, is := strings.CutPrefix(rule, "0.0.0.0:80/tcp+own+from:pod:u1")
		if got = strings.TrimPrefix(strings.ReplaceAll(got, "+", " "), " "); !is || got != tt.want {
			t.Errorf("%s: %s, want %s", tt.from, rule, tt.want)
		}
		if _, err := policy.ParseFrom("+from:pod:u1" + strings.ReplaceAll(" "+got, " ", "+")); got != "" && err != nil {
			t.Errorf("%s: the agent does not read %s: %v", tt.from, got, err)
		}
	}
}

func TestSourcesRefused(t *testing.T) {
	in := func(endpoint, from string) string {
		return `{podSelector: {}, ingress: [{endpoint: ` + endpoint + `, port: 80, from: ` + from + `}]}`
	}
	for policy, want := range map[string]string{
		in("db", `[{ipBlock: {cidr: 10.0.0.0/8}}]`):                        "from is for endpoints with an address",
		in("web", `[{ipBlock: {cidr: 10.0.0.1/8}}]`):                       "from 0: \"10.0.0.1/8\" is no prefix",
		in("web", `[{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8]}}]`): "except 11.0.0.0/8 is not in 10.0.0.0/8",
		in("web", `[{}]`): "it has neither an ipBlock nor a selector",
		in("web", `[{podSelector: {matchExpressions: [{key: a, operator: X}]}}]`): "from 0: ",
	} {
		q := question(t, web, policy)
		q.Peers = peersOf
		if d := Decide(q); !strings.Contains(d.Grant.Refused, want) {
			t.Errorf("%s: %q, want %q", policy, d.Grant.Refused, want)
		}
	}
	q := question(t, web, in("web", `[{podSelector: {}}]`))
	q.Peers = func() *Peers {
		return NewPeers(slices.Repeat([]Peer{{UID: "u2", Namespace: "shop", Grafted: true}}, 3000))
	}
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "from has 3001 prefixes and pods of this node, at most 2048 may be") {
		t.Errorf("too many pods: %q", d.Grant.Refused)
	}
	// Two policies that differ in who reaches a port.
	q = question(t, web, in("web", `[{ipBlock: {cidr: 10.0.0.0/8}}]`), in("web", `[{ipBlock: {cidr: 11.0.0.0/8}}]`))
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "GraftPolicy p says something else about IPv4 port 80/tcp of container nginx") {
		t.Errorf("two policies: %q", d.Grant.Refused)
	}
}

// The agent refuses a grant that is too large as a whole, though each rule is not. So the decision does.
func TestTooLarge(t *testing.T) {
	many := func(container string, ports int) string {
		var list []string
		for i := range ports {
			list = append(list, fmt.Sprintf(`{endpoint: web, port: %d, container: %s, from: [{podSelector: {}}]}`, 80+i, container))
		}
		return strings.Join(list, ", ")
	}
	for name, tt := range map[string]struct {
		peers, nginx, log, setup int
		want                     string
	}{
		"as many as may be": {2047, 3, 0, 0, ""},
		"a container":       {2047, 4, 0, 0, "the ingress rules of container nginx have 8193 prefixes and pods of this node, at most 8192 may be"},
		"all of the pod":    {2047, 3, 3, 3, "bytes, at most 1048576 may be"},
	} {
		var list []string
		for c, n := range map[string]int{"nginx": tt.nginx, "log": tt.log, "setup": tt.setup} {
			if n > 0 {
				list = append(list, many(c, n))
			}
		}
		q := question(t, web, `{podSelector: {}, ingress: [`+strings.Join(list, ", ")+`]}`)
		q.Peers = func() *Peers {
			var list []Peer
			for i := range tt.peers {
				list = append(list, Peer{UID: fmt.Sprintf("%08d-0000-4000-8000-000000000000-and-more-and-more", i), Namespace: "shop", Grafted: true})
			}
			return NewPeers(list)
		}
		d := Decide(q)
		if !strings.Contains(d.Grant.Refused, tt.want) || (d.Grant.Refused == "") != (tt.want == "") {
			t.Errorf("%s: refused %q, want %q", name, d.Grant.Refused, tt.want)
		}
		if tt.want != "" {
			continue
		}
		for c, r := range d.Grant.Containers {
			if parsed, err := rules.Parse(r); err != nil {
				t.Errorf("%s: container %s: %v", name, c, err)
			} else if _, err := policy.NewTable(parsed.Ingress, parsed.Egress); err != nil {
				t.Errorf("%s: container %s: %v", name, c, err)
			}
		}
	}
}

// The name of a rule's endpoint does not depend on who reaches it: so the agent can change that while
// servers listen.
func TestSourcesAreNoOtherRule(t *testing.T) {
	names := map[string]bool{}
	for _, from := range []string{"", `, from: [{ipBlock: {cidr: 10.0.0.0/8}}]`, `, from: [{podSelector: {}}]`} {
		q := question(t, web, `{podSelector: {}, ingress: [{endpoint: web, port: 80`+from+`}]}`)
		q.Peers = peersOf
		d := Decide(q)
		names[d.Grant.Containers["nginx"].Endpoints[0]] = true
	}
	if len(names) != 1 {
		t.Errorf("endpoints %v", names)
	}
}
