package grant

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
	"github.com/tsugiki/tsugiki/policy"
)

// sixes are endpoints of type IPv6, by name.
var sixes = map[string]string{
	"six":   `{type: IPv6, address: Any, ports: "443", resolvers: ["[2001:db8::53]:53", "198.51.100.53:5353"], destinations: [{cidr: "2001:db8::/32"}, {cidr: "2001:db9::7/128", ports: 80-81}], allowedPods: [` + shop + `]}`,
	"node6": `{type: IPv6, resolvers: ["198.51.100.53:53"], destinations: [{cidr: "::/0"}], allowedPods: [` + shop + `]}`,
	"none6": `{type: IPv6, address: Any, allowedPods: [` + shop + `]}`,
	"mute6": `{type: IPv6, address: Any, destinations: [{cidr: "::/0"}], allowedPods: [` + shop + `]}`,
	"bad6":  `{type: IPv6, address: Any, resolvers: ["198.51.100.53:53"], destinations: [{cidr: "10.0.0.0/8"}], allowedPods: [` + shop + `]}`,
	"bank6": `{type: IPv6, address: Any, resolvers: ["198.51.100.53:53"], destinations: [{cidr: "::/0"}], allowedPods: [{namespaceSelector: {matchLabels: {team: bank}}}]}`,
}

// four is a pod of one container.
const four = `{metadata: {name: four, namespace: shop, uid: u4, labels: {app: four}}, spec: {containers: [{name: old, ports: [{containerPort: 80}], livenessProbe: {exec: {command: ["true"]}}}]}}`

func questionOfFour(t *testing.T, pod string, policies ...string) *Question {
	q := question(t, pod, policies...)
	find := q.Endpoint
	q.Endpoint = func(name string) *v1alpha1.GraftEndpoint {
		text, is := sixes[name]
		if !is {
			return find(name)
		}
		e := &v1alpha1.GraftEndpoint{Spec: *parse[v1alpha1.GraftEndpointSpec](t, text)}
		e.Name = name
		return e
	}
	return q
}

// A container whose IPv4 is translated reaches the destinations of the endpoint, and nothing else. The
// endpoint's resolvers are asked. Servers bind addresses of IPv4, whatever the endpoint's type is.
func TestTranslate(t *testing.T) {
	const plain = `{podSelector: {}, translate: {endpoint: six}}`
	want := func(change func(*api.Rules)) api.Rules {
		r := api.Rules{
			Endpoints: []string{"A type ipv6 addr :: port dynamic", "B type ipv6 addr :: port dynamic"},
			Egress:    []string{"2001:db8::/32=A", "[2001:db9::7/128]:80-81=B"},
			Translate: &api.Translate{DNS: []string{"[2001:db8::53]:53", "198.51.100.53:5353"}},
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	for name, tt := range map[string]struct {
		policies []string
		want     api.Rules
	}{
		"an endpoint":             {[]string{plain}, want(nil)},
		"two policies that agree": {[]string{plain, plain}, want(nil)},
		"ports of its own": {
			[]string{`{podSelector: {}, mode: seccomp, translate: {endpoint: six, pool: 10.18.0.0/15, ftp: [21, 2121], sip: [5060]}}`},
			want(func(r *api.Rules) {
				r.Mode = "seccomp"
				r.Translate.Pool, r.Translate.FTP, r.Translate.SIP = "10.18.0.0/15", "21,2121", "5060"
			}),
		},
		"servers, by a policy that comes first": {
			[]string{`{podSelector: {}, ingress: [{endpoint: six, port: 80}]}`, plain},
			want(func(r *api.Rules) {
				r.Endpoints = append(r.Endpoints, "C type ipv6 addr :: port 443")
				r.Ingress = []string{"0.0.0.0:80/tcp=C"}
			}),
		},
		"the same destination by an egress rule": {
			[]string{plain, `{podSelector: {}, egress: [{endpoint: six, to: ["2001:db8::/32"]}]}`}, want(nil),
		},
	} {
		d := Decide(questionOfFour(t, four, tt.policies...))
		got := d.Grant.Containers["old"]
		if d.Grant.Refused != "" || len(d.Grant.Containers) != 1 {
			t.Errorf("%s: %+v", name, d)
			continue
		}
		parsed, err := rules.Parse(got)
		if err == nil {
			_, err = policy.NewTable(parsed.Ingress, parsed.Egress)
		}
		if err != nil || parsed.Translation == nil {
			t.Errorf("%s: the agent cannot have %+v: %v", name, got, err)
		}
		if diff := cmp.Diff(tt.want, named(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// An egress rule that comes or goes leaves the names of the destinations: others would need a new container.
func TestTranslateWithEgress(t *testing.T) {
	const plain, egress = `{podSelector: {}, translate: {endpoint: six}}`, `{podSelector: {}, egress: [{endpoint: six, to: ["2001:db8::/32"]}]}`
	want := Decide(questionOfFour(t, four, plain)).Grant
	for _, policies := range [][]string{{plain, egress}, {egress, plain}} {
		if diff := cmp.Diff(want, Decide(questionOfFour(t, four, policies...)).Grant); diff != "" {
			t.Errorf("%v (-want +got):\n%s", policies, diff)
		}
	}
}

// A pod that cannot be translated as the resources say is given nothing at all.
func TestTranslateRefused(t *testing.T) {
	to := func(text string) string { return `{podSelector: {}, translate: {endpoint: six}, ` + text + `}` }
	with := func(text string) string { return strings.Replace(four, "spec: {", "spec: {"+text+", ", 1) }
	probe := func(text string) string {
		return strings.Replace(four, `{exec: {command: ["true"]}}`, text, 1)
	}
	const plain = `{podSelector: {}, translate: {endpoint: six}}`
	for name, tt := range map[string]struct {
		pod, policy, want string
	}{
		"a second container":   {web, plain, "IPv4 is translated for the only container of a pod, and this one has 3: nginx, log, setup; put each into a pod of its own"},
		"an init container":    {with(`initContainers: [{name: first}]`), plain, "this one has 2: old, first"},
		"CAP_NET_ADMIN":        {with(`hostUsers: false, ephemeralContainers: [{name: debug, securityContext: {privileged: true}}]`), plain, "container debug has CAP_NET_ADMIN, and so could give the pod a network"},
		"a probe by HTTP":      {probe(`{httpGet: {port: 80}}`), plain, "the livenessProbe of container old asks at the pod's address"},
		"a probe by TCP":       {probe(`{tcpSocket: {port: 80}}`), plain, "write an exec probe"},
		"a probe by gRPC":      {probe(`{grpc: {port: 80}}`), plain, "write an exec probe"},
		"an endpoint of IPv4":  {four, `{podSelector: {}, translate: {endpoint: out}}`, "GraftEndpoint out has the type IPv4; name one of type IPv6"},
		"a unix socket":        {strings.Replace(four, "app: four", "app: web", 1), `{podSelector: {}, translate: {endpoint: db}}`, "GraftEndpoint db has the type Unix"},
		"no destinations":      {four, `{podSelector: {}, translate: {endpoint: none6}}`, "GraftEndpoint none6 has no destinations"},
		"no resolvers":         {four, `{podSelector: {}, translate: {endpoint: mute6}}`, "GraftEndpoint mute6 has no resolvers, so it is not for translate"},
		"destinations of IPv4": {four, `{podSelector: {}, translate: {endpoint: bad6}}`, "a destination of GraftEndpoint bad6: 10.0.0.0/8 is no prefix of IPv6"},
		"no such endpoint":     {four, `{podSelector: {}, translate: {endpoint: x}}`, "GraftPolicy p, translate: there is no GraftEndpoint x"},
		"nobody's endpoint":    {four, `{podSelector: {}, translate: {endpoint: bank6}}`, "GraftEndpoint bank6 is not for this pod"},
		"no address":           {four, `{podSelector: {}, translate: {endpoint: node6}}`, "node n1 has no IPv6 address for GraftEndpoint node6"},
		"own":                  {four, to(`ingress: [{endpoint: six, port: 80, own: true}]`), "own is for pods with a network of their own"},
		"sources":              {four, to(`ingress: [{endpoint: six, port: 80, from: [{ipBlock: {cidr: "2001:db8::/32"}}]}]`), "from cannot be checked where IPv4 is translated"},
	} {
		d := Decide(questionOfFour(t, tt.pod, tt.policy))
		if !strings.Contains(d.Grant.Refused, tt.want) || len(d.Grant.Containers) > 0 || len(d.Served) > 0 {
			t.Errorf("%s: %+v, want %q", name, d, tt.want)
		}
	}
	q := questionOfFour(t, four, plain, `{podSelector: {}, translate: {endpoint: six, pool: 10.18.0.0/15}}`)
	if d := Decide(q); !strings.Contains(d.Grant.Refused, "GraftPolicy q, translate: GraftPolicy p says something else about translate") {
		t.Errorf("two policies: %+v", d)
	}
	if d := Decide(questionOfFour(t, probe(`{tcpSocket: {host: "198.51.100.9", port: 80}}`), plain)); d.Grant.Refused != "" {
		t.Errorf("a probe of another host: %+v", d)
	}
	// A container that somebody adds to debug the pod has no rules, and takes none away.
	if d := Decide(questionOfFour(t, with(`ephemeralContainers: [{name: debug}]`), plain)); d.Grant.Refused != "" {
		t.Errorf("an ephemeral container: %+v", d)
	}
}

// CheckPolicy names what is wrong with resources of which no pod makes use.
func TestCheckTranslate(t *testing.T) {
	q := questionOfFour(t, four)
	for endpoint, want := range map[string]string{
		"six": "", "node6": "", "none6": "has no destinations", "mute6": "has no resolvers", "out": "name one of type IPv6", "bad6": "is no prefix of IPv6", "bank6": "is not for pods of namespace shop", "x": "there is no GraftEndpoint x",
	} {
		p := &v1alpha1.GraftPolicy{Spec: *parse[v1alpha1.GraftPolicySpec](t, `{podSelector: {}, translate: {endpoint: `+endpoint+`}}`)}
		p.Name, p.Namespace = "p", "shop"
		err := CheckPolicy(p, q.Namespace, q.Endpoint)
		if got := errorText(err); want == "" && err != nil || !strings.Contains(got, want) || want != "" && !strings.HasPrefix(got, "translate: ") {
			t.Errorf("endpoint %s: %q, want %q", endpoint, got, want)
		}
	}
	for resolver, right := range map[string]bool{
		"198.51.100.53:53": true, "[2001:db8::53]:5353": true, "127.0.0.53:53": true,
		"198.51.100.53": false, "2001:db8::53": false, "[::]:53": false, "198.51.100.53:0": false, "[fe80::1%eth0]:53": false, "resolver:53": false,
	} {
		e := &v1alpha1.GraftEndpoint{Spec: v1alpha1.GraftEndpointSpec{Type: v1alpha1.IPv6, Address: v1alpha1.AnyAddress, Resolvers: []string{resolver}}}
		if err := CheckEndpoint(e); (err == nil) != right {
			t.Errorf("resolver %s: %v", resolver, err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
