package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
	"github.com/tsugiki/tsugiki/policy"
)

// fixed gives each rule the first port of its range.
type fixed struct{}

func (fixed) Take(_, _ string, _ v1alpha1.Protocol, _ netip.Addr, within Range) (uint16, error) {
	if within.First == 1 {
		return 0, errors.New("no port is free")
	}
	return within.First, nil
}

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return &v
}

const shop = `{namespaceSelector: {matchLabels: {team: shop}}}`

// endpoints of the tests, by name.
var endpointTexts = map[string]string{
	"web":   `{type: IPv4, address: Node, ports: 31000-31999, allowedPods: [` + shop + `]}`,
	"web6":  `{type: IPv6, address: Any, ports: "443", allowedPods: [` + shop + `]}`,
	"out":   `{type: IPv4, address: Any, destinations: [{cidr: 0.0.0.0/0}, {cidr: 127.0.0.53/32, ports: "53"}, {cidr: 198.51.100.0/24, ports: 8000-8999}], allowedPods: [` + shop + `]}`,
	"out6":  `{type: IPv6, address: "2001:db8::7", destinations: [{cidr: "::/0"}], allowedPods: [{namespaceSelector: {}}]}`,
	"local": `{type: IPv4, address: Any, destinations: [{cidr: 10.0.0.0/8, ports: 5000-5999}], allowedPods: [{namespaceSelector: {}}]}`,
	"db":    `{type: Unix, path: /run/db.sock, allowedPods: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}`,
	"bare":  `{type: IPv4, address: Node, allowedPods: [{namespaceSelector: {}}]}`,
	"full":  `{type: IPv4, address: Node, ports: "1", allowedPods: [{namespaceSelector: {}}]}`,
	"none":  `{type: IPv4, address: Node, ports: "80"}`,
	"bad":   `{type: IPv4, address: "::1", ports: "80", allowedPods: [{namespaceSelector: {}}]}`,
	"label": `{type: IPv4, allowedPods: [{namespaceSelector: {matchExpressions: [{key: a, operator: Maybe}]}}]}`,
}

func question(t *testing.T, pod string, policies ...string) *Question {
	q := &Question{
		Pod:       parse[corev1.Pod](t, pod),
		Namespace: map[string]string{"team": "shop"},
		Node:      Node{"n1", netip.MustParseAddr("198.51.100.9"), netip.Addr{}},
		Ports:     fixed{},
		Endpoint: func(name string) *v1alpha1.GraftEndpoint {
			text, found := endpointTexts[name]
			if !found {
				return nil
			}
			e := &v1alpha1.GraftEndpoint{Spec: *parse[v1alpha1.GraftEndpointSpec](t, text)}
			e.Name = name
			return e
		},
	}
	for i, text := range policies {
		p := &v1alpha1.GraftPolicy{Spec: *parse[v1alpha1.GraftPolicySpec](t, text)}
		p.Name = string(rune('p' + i))
		q.Policies = append(q.Policies, p)
	}
	return q
}

const web = `{metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}}, spec: {
  containers: [{name: nginx, ports: [{name: http, containerPort: 80}], readinessProbe: {httpGet: {port: http}}}, {name: log, ports: [{containerPort: 9000}]}],
  initContainers: [{name: setup}], ephemeralContainers: [{name: debug}]}}`

// named replaces the digests of endpoints by letters, in the order in which they come.
func named(r api.Rules) api.Rules {
	var names []string
	for i, ep := range r.Endpoints {
		name, _, _ := strings.Cut(ep, " ")
		names = append(names, name, string(rune('A'+i)))
	}
	letters := strings.NewReplacer(names...)
	for _, list := range [][]string{r.Endpoints, r.Ingress, r.Egress} {
		for i := range list {
			list[i] = letters.Replace(list[i])
		}
	}
	return r
}

func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		policies []string
		want     map[string]api.Rules
		served   []string
	}{
		"a server": {
			[]string{`{podSelector: {matchLabels: {app: web}}, ingress: [{endpoint: web, port: 80}]}`},
			map[string]api.Rules{"nginx": {Endpoints: []string{"A type ipv4 addr 198.51.100.9 port 31000"}, Ingress: []string{"0.0.0.0:80/tcp+own=A"}}},
			[]string{"nginx 80 198.51.100.9:31000"},
		},
		"not in the pod's own network, although it is probed there": {
			[]string{`{podSelector: {}, ingress: [{endpoint: web, port: 80, own: false}]}`},
			map[string]api.Rules{"nginx": {Endpoints: []string{"A type ipv4 addr 198.51.100.9 port 31000"}, Ingress: []string{"0.0.0.0:80/tcp=A"}}},
			[]string{"nginx 80 198.51.100.9:31000"},
		},
		"of the container that has the port, and of the one that is named": {
			[]string{`{podSelector: {}, ingress: [{endpoint: web, port: 9000, own: true}, {endpoint: web, port: 53, protocol: UDP, container: setup}]}`},
			map[string]api.Rules{
				"log":   {Endpoints: []string{"A type ipv4 addr 198.51.100.9 port 31000"}, Ingress: []string{"0.0.0.0:9000/tcp+own=A"}},
				"setup": {Endpoints: []string{"A type ipv4 addr 198.51.100.9 port 31000"}, Ingress: []string{"0.0.0.0:53/udp=A"}},
			},
			[]string{"log 9000 198.51.100.9:31000", "setup 53 198.51.100.9:31000"},
		},
		"at a unix socket": {
			[]string{`{podSelector: {}, ingress: [{endpoint: db, port: 7000}]}`},
			map[string]api.Rules{"nginx": {Endpoints: []string{"A type unix path /run/db.sock"}, Ingress: []string{"0.0.0.0:7000/tcp=A"}}},
			nil,
		},
		"clients": {
			[]string{`{podSelector: {}, mode: seccomp, egress: [{endpoint: out, to: [0.0.0.0/0, 198.51.100.0/25], ports: "8080", protocol: TCP, containers: [log]}, {endpoint: db, to: [10.9.9.9/32], ports: "5432", containers: [log]}]}`},
			map[string]api.Rules{"log": {
				Mode:      "seccomp",
				Endpoints: []string{"A type ipv4 addr 0.0.0.0 port dynamic", "B type ipv4 addr 0.0.0.0 port dynamic", "C type unix path /run/db.sock"},
				Egress:    []string{"0.0.0.0/0:8080/tcp=A", "198.51.100.0/25:8080/tcp=B", "10.9.9.9/32:5432=C"},
			}},
			nil,
		},
		"all containers, and IPv6": {
			[]string{`{podSelector: {}, egress: [{endpoint: out6, to: ["2001:db8::/32"], ports: 80-81}]}`},
			func() map[string]api.Rules {
				r := func() api.Rules {
					return api.Rules{Endpoints: []string{"A type ipv6 addr 2001:db8::7 port dynamic"}, Egress: []string{"[2001:db8::/32]:80-81=A"}}
				}
				return map[string]api.Rules{"nginx": r(), "log": r(), "setup": r()}
			}(),
			nil,
		},
		"two policies, one of which says the same, and one that is for others": {
			[]string{
				`{podSelector: {}, egress: [{endpoint: local, to: [10.1.0.0/16], ports: "5432", containers: [log]}]}`,
				`{podSelector: {}, egress: [{endpoint: local, to: [10.1.0.0/16], ports: "5432", containers: [log]}]}`,
				`{podSelector: {matchLabels: {app: db}}, egress: [{endpoint: nobody, to: [10.0.0.0/8]}]}`,
			},
			map[string]api.Rules{"log": {Endpoints: []string{"A type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"10.1.0.0/16:5432=A"}}},
			nil,
		},
		"a special destination that is named": {
			[]string{`{podSelector: {}, egress: [{endpoint: out, to: [127.0.0.53/32], ports: "53", containers: [log]}]}`},
			map[string]api.Rules{"log": {Endpoints: []string{"A type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"127.0.0.53/32:53=A"}}},
			nil,
		},
	} {
		d := Decide(question(t, web, tt.policies...))
		if d.Grant.Refused != "" || !d.Selected || d.Grant.Namespace != "shop" || d.Grant.Name != "web" {
			t.Errorf("%s: %+v", name, d)
			continue
		}
		got := map[string]api.Rules{}
		for c, r := range d.Grant.Containers {
			if parsed, err := rules.Parse(r); err != nil {
				t.Errorf("%s: the agent cannot read the rules of %s: %v", name, c, err)
			} else if _, err := policy.NewTable(parsed.Ingress, parsed.Egress); err != nil {
				t.Errorf("%s: the agent cannot have the rules of %s: %v", name, c, err)
			}
			got[c] = named(r)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		var served []string
		for _, s := range d.Served {
			served = append(served, s.Container+" "+Range{s.Port, s.Port}.String()+" "+s.Host.String())
		}
		if diff := cmp.Diff(tt.served, served); diff != "" {
			t.Errorf("%s: ports (-want +got):\n%s", name, diff)
		}
	}
}

// It does not matter which policy comes first.
func TestPoliciesInAnyOrder(t *testing.T) {
	const (
		plain    = `{podSelector: {}, ingress: [{endpoint: web, port: 80}]}`
		services = `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: web}}, {endpoint: web, port: 80, service: {name: a, port: http}}]}`
		other    = `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}]}`
		mode     = `{podSelector: {}, mode: seccomp, egress: [{endpoint: local, to: [10.0.0.0/8], ports: "5432", containers: [log]}]}`
		from     = `{podSelector: {}, ingress: [{endpoint: web, port: 9000, from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8}}, {ipBlock: {cidr: 11.0.0.0/8}}]}]}`
		reversed = `{podSelector: {}, ingress: [{endpoint: web, port: 9000, from: [{ipBlock: {cidr: 11.0.0.0/8}}, {ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {}}]}]}`
		refused  = `{podSelector: {}, charge: Count}`
	)
	for name, policies := range map[string][]string{
		"a Service of one":  {plain, services},
		"Services of both":  {services, other},
		"a mode":            {mode, plain},
		"lists that differ": {from, reversed},
		"a refusal":         {plain, refused, plain},
	} {
		decide := func() Decision {
			q := question(t, web, policies...)
			q.Peers = peersOf
			d := Decide(q)
			for _, r := range d.Grant.Containers {
				for _, list := range [][]string{r.Endpoints, r.Ingress, r.Egress} {
					slices.Sort(list)
				}
			}
			slices.SortFunc(d.Served, func(a, b Served) int { return strings.Compare(a.Rule, b.Rule) })
			return d
		}
		want := decide()
		slices.Reverse(policies)
		got := decide()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	d := Decide(question(t, web, plain, services, other))
	if want := []v1alpha1.ServicePort{{Name: "a", Port: "http"}, {Name: "web"}, {Name: "web", Port: "http"}}; len(d.Served) != 1 || !slices.Equal(d.Served[0].Services, want) {
		t.Errorf("%+v, want the Services %v", d.Served, want)
	}
	if mode := Decide(question(t, web, mode, plain)).Grant.Containers["nginx"].Mode; mode != "seccomp" {
		t.Errorf("mode %q", mode)
	}
}

// One rule that cannot be has the pod refused as a whole.
func TestRefused(t *testing.T) {
	in := func(rule string) string {
		return `{podSelector: {}, ingress: [{endpoint: web, port: 80}, ` + rule + `]}`
	}
	out := func(rule string) string { return `{podSelector: {}, egress: [` + rule + `]}` }
	const plain = `{podSelector: {}, ingress: [{endpoint: web, port: 80}]}`
	for name, tt := range map[string]struct {
		pod    string
		policy string
		want   string
	}{
		"no policy":                {web, `{podSelector: {matchLabels: {app: db}}, ingress: [{endpoint: web, port: 80}]}`, "no GraftPolicy of namespace shop selects the pod"},
		"the host's network":       {`{metadata: {name: a, namespace: shop}, spec: {hostNetwork: true, containers: [{name: c}]}}`, plain, "uses the host's network"},
		"CAP_NET_ADMIN":            {`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: c, securityContext: {capabilities: {add: [net_admin]}}}]}}`, plain, "container c has CAP_NET_ADMIN"},
		"all capabilities":         {`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: d}], initContainers: [{name: c, securityContext: {capabilities: {add: [ALL]}}}]}}`, plain, "container c has CAP_NET_ADMIN"},
		"privileged":               {`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: c, securityContext: {privileged: true}}]}}`, plain, "container c has CAP_NET_ADMIN"},
		"of an ephemeral one":      {`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: d}], ephemeralContainers: [{name: c, targetContainerName: d, securityContext: {capabilities: {add: [NET_ADMIN]}}}]}}`, plain, "container c has CAP_NET_ADMIN"},
		"no such endpoint":         {web, in(`{endpoint: x, port: 81}`), "GraftPolicy p, ingress 1: there is no GraftEndpoint x"},
		"nobody's endpoint":        {web, in(`{endpoint: none, port: 81}`), "GraftEndpoint none is not for this pod"},
		"by the pod's labels":      {strings.ReplaceAll(web, "app: web", "app: db"), in(`{endpoint: db, port: 81}`), "GraftEndpoint db is not for this pod"},
		"a selector of nothing":    {web, in(`{endpoint: label, port: 81}`), `"Maybe" is not a valid`},
		"no such container":        {web, in(`{endpoint: web, port: 81, container: x}`), "the pod has no container x"},
		"no ports":                 {web, in(`{endpoint: bare, port: 81}`), "GraftEndpoint bare has no ports"},
		"no port is free":          {web, in(`{endpoint: full, port: 81}`), "GraftEndpoint full: no port is free"},
		"an address of another":    {web, in(`{endpoint: bad, port: 81}`), `the address "::1" of GraftEndpoint bad is none of IPv4`},
		"two endpoints":            {web, in(`{endpoint: bare, port: 80}`), "GraftPolicy p says something else about IPv4 port 80/tcp of container nginx"},
		"one Service's port twice": {web, `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}, {endpoint: web, port: 81, service: {name: web, port: http}}]}`, `GraftPolicy p says something else about port "http" of Service web at `},
		"a Service of a socket":    {web, in(`{endpoint: db, port: 81, service: {name: web}}`), "GraftPolicy p, ingress 1: service is for endpoints with an address, and GraftEndpoint db is a unix socket"},
		"another destination":      {web, out(`{endpoint: local, to: [11.0.0.0/8], ports: "5432"}`), "11.0.0.0/8, ports 5432, is no destination of GraftEndpoint local"},
		"a wider destination":      {web, out(`{endpoint: local, to: [10.0.0.0/7], ports: "5432"}`), "is no destination"},
		"all ports":                {web, out(`{endpoint: local, to: [10.0.0.0/8]}`), "10.0.0.0/8, ports 1-65535, is no destination"},
		"a port beside":            {web, out(`{endpoint: local, to: [10.0.0.0/8], ports: 5999-6000}`), "is no destination"},
		"the node's loopback":      {web, out(`{endpoint: out, to: [127.0.0.0/8]}`), "127.0.0.0/8, ports 1-65535, is no destination of GraftEndpoint out"},
		"part of it":               {web, out(`{endpoint: out, to: [127.0.0.1/32], ports: "53"}`), "is no destination"},
		"another port of it":       {web, out(`{endpoint: out, to: [127.0.0.53/32], ports: "54"}`), "is no destination"},
		"the node's metadata":      {web, out(`{endpoint: out, to: [169.254.169.254/32]}`), "is no destination"},
		"mapped":                   {web, out(`{endpoint: out6, to: ["::ffff:127.0.0.0/104"]}`), "is no prefix"},
		"IPv6's loopback":          {web, out(`{endpoint: out6, to: ["::1/128"]}`), "is no destination"},
		"bits after the length":    {web, out(`{endpoint: out, to: [10.0.0.1/8]}`), "is no prefix"},
		"containers of nobody":     {web, out(`{endpoint: local, to: [10.0.0.0/8], ports: "5432", containers: [x]}`), "the pod has no container x"},
		"one prefix, two places":   {web, out(`{endpoint: out, to: [10.0.0.0/8], ports: "5432"}, {endpoint: local, to: [10.0.0.0/8], ports: "5432"}`), "GraftPolicy p says something else about destination 10.0.0.0/8:5432 of container nginx"},
	} {
		d := Decide(question(t, tt.pod, tt.policy))
		if !strings.Contains(d.Grant.Refused, tt.want) || len(d.Grant.Containers) > 0 || len(d.Served) > 0 {
			t.Errorf("%s: %+v, want %q", name, d, tt.want)
		}
	}
	q := question(t, web, in(`{endpoint: web6, port: 443}`))
	if d := Decide(q); d.Grant.Refused != "" {
		t.Errorf("an address of each family: %s", d.Grant.Refused)
	}
	q = question(t, web, plain)
	q.Namespace = map[string]string{"team": "bank"}
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "GraftEndpoint web is not for this pod") {
		t.Errorf("another namespace: %+v", d)
	}
	q = question(t, strings.Replace(web, "spec: {", "spec: {hostUsers: false, ", 1), plain)
	q.Pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(bool)}
	*q.Pod.Spec.Containers[0].SecurityContext.Privileged = true
	if d := Decide(q); d.Grant.Refused != "" {
		t.Errorf("CAP_NET_ADMIN in a user namespace: %s", d.Grant.Refused)
	}
	q = question(t, web, `{podSelector: {}, mode: auto, egress: [{endpoint: local, to: [10.0.0.0/8], ports: "5432"}]}`, `{podSelector: {}, mode: seccomp, ingress: [{endpoint: web, port: 80}]}`)
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "GraftPolicy q, mode: GraftPolicy p says something else about mode") {
		t.Errorf("two modes: %+v", d)
	}
	const served = `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: kubernetes, port: http}}]}`
	for _, namespace := range []string{"kube-system", "default"} {
		q = question(t, strings.Replace(web, "namespace: shop", "namespace: "+namespace, 1), served)
		if d := Decide(q); !strings.Contains(d.Grant.Refused, "Service kubernetes of namespace "+namespace+" is one of the cluster itself") {
			t.Errorf("a Service of namespace %s: %+v", namespace, d)
		}
	}
	if d := Decide(question(t, web, served)); d.Grant.Refused != "" {
		t.Errorf("a Service of that name in another namespace: %s", d.Grant.Refused)
	}
	q = question(t, web, plain)
	q.Node.IPv4 = netip.Addr{}
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "node n1 has no IPv4 address for GraftEndpoint web") {
		t.Errorf("a node without IPv4: %+v", d)
	}
}

// One policy that selects the pod is enough to have its packets go the slow way. A refused pod keeps
// nothing of its policies.
func TestSlow(t *testing.T) {
	const direct, slow = `{podSelector: {}, egress: [{endpoint: out, to: [10.0.0.0/8]}]}`, `{podSelector: {matchLabels: {app: web}}, directForward: false}`
	for name, tt := range map[string]struct {
		policies []string
		want     bool
	}{
		"nobody says":          {[]string{direct}, false},
		"one of two":           {[]string{slow, direct}, true},
		"one alone":            {[]string{slow}, true},
		"one of another pod":   {[]string{direct, `{podSelector: {matchLabels: {app: db}}, directForward: false}`}, false},
		"one of a refused pod": {[]string{slow, `{podSelector: {}, egress: [{endpoint: missing, to: [10.0.0.0/8]}]}`}, false},
	} {
		if d := Decide(question(t, web, tt.policies...)); d.Grant.Slow != tt.want || !d.Selected {
			t.Errorf("%s: slow %v, selected %v; want %v", name, d.Grant.Slow, d.Selected, tt.want)
		}
	}
}

// A pod is only counted if whoever gives labels to its namespace permits it.
func TestCharge(t *testing.T) {
	const rule, count, take = `{podSelector: {}, egress: [{endpoint: out, to: [10.0.0.0/8]}]}`, `{podSelector: {}, charge: Count}`, `{podSelector: {}, charge: Take}`
	for name, tt := range map[string]struct {
		label    string
		policies []string
		charge   string
		refused  string
	}{
		"nobody says":           {"", []string{rule}, "", ""},
		"as configured":         {"", []string{rule, take}, "", ""},
		"count, with the label": {"optional", []string{rule, count, count}, "count", ""},
		"count, without it":     {"", []string{rule, count}, "", "GraftPolicy q, charge: Count needs the label tsugiki.dev/charge=optional of namespace shop"},
		"count, with another":   {"required", []string{count}, "", "Count needs the label"},
		"two that do not agree": {"optional", []string{count, take}, "", "GraftPolicy q, charge: GraftPolicy p says something else about charge"},
	} {
		q := question(t, web, tt.policies...)
		q.Namespace[v1alpha1.LabelCharge] = tt.label
		for _, p := range q.Policies {
			p.Namespace = "shop"
		}
		d := Decide(q)
		if d.Grant.Charge != tt.charge || !strings.Contains(d.Grant.Refused, tt.refused) || (tt.refused == "") != (d.Grant.Refused == "") {
			t.Errorf("%s: %+v, want charge %q, refused %q", name, d.Grant, tt.charge, tt.refused)
		}
	}
}

// A decision with the claims of a pod is the one from which the claims came, as far as they are the
// endpoint's ports.
func TestClaims(t *testing.T) {
	const policy = `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: web}}]}`
	q := question(t, web, policy)
	first := Decide(q)
	if len(first.Served) != 1 {
		t.Fatalf("%+v", first)
	}
	for name, tt := range map[string]struct {
		condition func(s *Served) corev1.PodCondition
		want      string // the port; empty: none
	}{
		"what it has": {said, "31000"},
		"another port": {func(s *Served) corev1.PodCondition {
			s.Host = netip.MustParseAddrPort("10.0.0.1:31999")
			return said(s)
		}, "31999"},
		"a port of others": {func(s *Served) corev1.PodCondition {
			s.Host = netip.MustParseAddrPort("198.51.100.9:22")
			return said(s)
		}, ""},
		"of another rule":   {func(s *Served) corev1.PodCondition { s.Rule = "g0"; return said(s) }, ""},
		"not any more":      {func(s *Served) corev1.PodCondition { c := said(s); c.Status = corev1.ConditionFalse; return c }, ""},
		"another condition": {func(s *Served) corev1.PodCondition { c := said(s); c.Type = corev1.PodReady; return c }, ""},
	} {
		s := first.Served[0]
		q.Pod.Status.Conditions = []corev1.PodCondition{tt.condition(&s)}
		claims, err := ClaimsOf(q.Pod)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		q.Ports = claims
		d := Decide(q)
		got := d.Grant.Refused
		if len(d.Served) == 1 {
			got = fmt.Sprint(d.Served[0].Host.Port())
			if d.Served[0].Host.Addr() != q.Node.IPv4 || !slices.Equal(d.Served[0].Services, []v1alpha1.ServicePort{{Name: "web"}}) {
				t.Errorf("%s: %+v", name, d.Served[0])
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	q.Pod.Status.Conditions = []corev1.PodCondition{{Type: ConditionPorts, Status: corev1.ConditionTrue, Message: "{"}}
	if claims, err := ClaimsOf(q.Pod); err == nil {
		t.Errorf("half an object: %v", claims)
	}
}

// What a pod does not serve yet, or not at a port of the endpoint any more, takes nothing from what it serves.
func TestClaimsOfSome(t *testing.T) {
	q := question(t, web, `{podSelector: {}, ingress: [{endpoint: web, port: 80, service: {name: web}}, {endpoint: web6, port: 443}, {endpoint: web, port: 81}]}`)
	q.Node.IPv6 = netip.MustParseAddr("2001:db8::9")
	claims := Claims(Decide(q).Served)
	if len(claims) != 3 {
		t.Fatalf("%+v", claims)
	}
	for name, ports := range map[string]Claims{
		"a rule that is new":       claims[:2],
		"of two endpoints":         {claims[0], {Rule: claims[1].Rule, Host: netip.MustParseAddrPort("[2001:db8::9]:80")}, claims[2]},
		"a container that is away": {claims[2], claims[0]},
	} {
		q.Ports = ports
		d := Decide(q)
		if d.Grant.Refused != "" || len(d.Served) != 2 || !slices.ContainsFunc(d.Served, func(s Served) bool { return s.Rule == claims[0].Rule && len(s.Services) == 1 }) {
			t.Errorf("%s: %+v, %q", name, d.Served, d.Grant.Refused)
		}
	}
}

// said is the condition that a node writes for a port.
func said(s *Served) corev1.PodCondition {
	text, err := json.Marshal([]*Served{s})
	if err != nil {
		panic(err)
	}
	return corev1.PodCondition{Type: ConditionPorts, Status: corev1.ConditionTrue, Message: string(text)}
}
