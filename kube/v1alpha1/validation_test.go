package v1alpha1_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// The API server refuses resources that cannot be, and says why.
func TestValidation(t *testing.T) {
	c := kubetest.Client(t, kubetest.Serve(t).Config("admin"))
	kubetest.CreateFiles(t, c, nil, "crds/*.yaml")
	testkit.Eventually(t, func() error {
		return errors.Join(c.List(t.Context(), &v1alpha1.GraftPolicyList{}), c.List(t.Context(), &v1alpha1.GraftEndpointList{}))
	})
	const (
		endpoint = `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftEndpoint, metadata: {name: x}, spec: `
		policy   = `{apiVersion: tsugiki.dev/v1alpha1, kind: GraftPolicy, metadata: {name: x, namespace: default}, spec: `
	)
	many := func(n int, text string) string { // with their numbers
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(text, i))
		}
		return strings.Join(list, ", ")
	}
	labels := func(n int) string { return "{matchLabels: {" + many(n, "l%d: x") + "}}" }
	expressions := func(n, values int) string {
		return "{matchExpressions: [" + many(n, "{key: k%d, operator: In, values: ["+many(values, "v%d")+"]}") + "]}"
	}
	for _, tt := range []struct{ text, want string }{
		{endpoint + `{type: IPv4, ports: "80", allowedPods: [{namespaceSelector: {}}]}}`, ""},
		{endpoint + `{type: IPv6, address: "2001:db8::1", ports: 80-90, destinations: [{cidr: "2001:db8::/32", ports: "53"}]}}`, ""},
		{endpoint + `{type: Unix, path: /run/postgresql/.s.PGSQL.5432}}`, ""},
		{endpoint + `{type: ipv4}}`, "Unsupported value"},
		{endpoint + `{type: Unix}}`, "a Unix endpoint has a path"},
		{endpoint + `{type: Unix, path: /a, ports: "80"}}`, "a Unix endpoint has a path and no ports"},
		{endpoint + `{type: IPv4, path: /a}}`, "others have no path"},
		{endpoint + `{type: Unix, path: a}}`, "the path is absolute"},
		{endpoint + `{type: Unix, path: /a/../b}}`, "the path is absolute"},
		{endpoint + `{type: Unix, path: "/a,b"}}`, "without . and .. and special characters"},
		{endpoint + `{type: IPv4, address: "::1"}}`, "the address is Node, Any, or an IP address of the type"},
		{endpoint + `{type: IPv4, address: here}}`, "the address is Node, Any"},
		{endpoint + `{type: IPv4, ports: "0"}}`, "write PORT or FIRST-LAST"},
		{endpoint + `{type: IPv4, ports: "65536"}}`, "write PORT or FIRST-LAST"},
		{endpoint + `{type: IPv4, ports: 90-80}}`, "write PORT or FIRST-LAST"},
		{endpoint + `{type: IPv4, ports: 80-90-99}}`, "write PORT or FIRST-LAST"},
		{endpoint + `{type: IPv4, destinations: [{cidr: 10.0.0.0}]}}`, "destinations are prefixes of the endpoint's type"},
		{endpoint + `{type: IPv4, destinations: [{cidr: "::/0"}]}}`, "destinations are prefixes of the endpoint's type"},
		{endpoint + `{type: IPv4, destinations: [{cidr: 10.0.0.0/8, ports: x}]}}`, `destinations[0].ports: Invalid value: "x": write PORT or FIRST-LAST`},
		{endpoint + `{type: IPv4, destinations: [{cidr: 10.0.0.0/8, ports: "70000"}]}}`, `destinations[0].ports: Invalid value: "70000": write PORT or FIRST-LAST`},
		{endpoint + `{type: IPv4, destinations: [{cidr: 10.0.0.0/8, ports: "80"}, {cidr: 10.0.0.0/8, ports: 90-80}]}}`, `destinations[1].ports: Invalid value: "90-80": write PORT or FIRST-LAST`},
		{endpoint + `{type: IPv4, allowedPods: [{podSelector: {}}]}}`, "namespaceSelector: Required"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80}]}}`, ""},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.0/8], ports: 1-2, protocol: UDP, containers: [c]}], mode: preload}}`, ""},
		{policy + `{podSelector: {}, directForward: false}}`, ""},
		{policy + `{podSelector: {}, directForward: true}}`, "directForward can only be false"},
		{policy + `{podSelector: {}}}`, "a policy needs ingress, egress, translate, directForward or charge"},
		{endpoint + `{type: IPv6, resolvers: ["[2001:db8::53]:53", "198.51.100.53:5353"]}}`, ""},
		{endpoint + `{type: IPv4, resolvers: ["198.51.100.53:53"]}}`, "resolvers are for translate"},
		{endpoint + `{type: IPv6, resolvers: ["198.51.100.53"]}}`, "write ADDR:PORT"},
		{endpoint + `{type: IPv6, resolvers: ["2001:db8::53:53"]}}`, "write ADDR:PORT"},
		{endpoint + `{type: IPv6, resolvers: ["198.51.100.999:53"]}}`, "write ADDR:PORT"},
		{endpoint + `{type: IPv6, resolvers: ["[2001:db8::53]:65536"]}}`, "write ADDR:PORT"},
		{endpoint + `{type: IPv6, resolvers: []}}`, "should have at least 1 items"},
		{policy + `{podSelector: {}, translate: {endpoint: a}}}`, ""},
		{policy + `{podSelector: {}, mode: seccomp, translate: {endpoint: a, pool: 10.18.0.0/15, ftp: [21], sip: [5060]}}}`, ""},
		{policy + `{podSelector: {}, mode: preload, translate: {endpoint: a}}}`, "IPv4 is translated in the modes auto and seccomp"},
		{policy + `{podSelector: {}, translate: {}}}`, "endpoint: Required"},
		{policy + `{podSelector: {}, translate: {endpoint: a, pool: 10.18.0.0/16}}}`, "write an IPv4 prefix of 15 bits"},
		{policy + `{podSelector: {}, translate: {endpoint: a, pool: "2000::/15"}}}`, "write an IPv4 prefix of 15 bits"},
		{policy + `{podSelector: {}, translate: {endpoint: a, ftp: [0]}}}`, "greater than or equal to 1"},
		{policy + `{podSelector: {}, translate: {endpoint: a, sip: [1, 2, 3, 4, 5]}}}`, "at most 4 items"},
		{policy + `{podSelector: {}, charge: Count}}`, ""},
		{policy + `{podSelector: {}, charge: Free}}`, "Unsupported value"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}}, {namespaceSelector: {}, podSelector: {}}]}]}}`, ""},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: []}]}}`, "should have at least 1 items"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{}]}]}}`, "a peer has an ipBlock, or a podSelector"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}}`, "a peer has an ipBlock, or a podSelector"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{ipBlock: {cidr: 10.0.0.1}}]}]}}`, "write a prefix"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}]}}`, "write prefixes"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8]}}]}]}}`, "except has parts of the cidr"},
		{policy + `{ingress: [{endpoint: a, port: 80}]}}`, "podSelector: Required"},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: ` + labels(16) + `}}`, ""},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: ` + labels(17) + `}}`, "must have at most 16 items"},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: ` + expressions(16, 64) + `}}`, ""},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: ` + expressions(17, 1) + `}}`, "must have at most 16 items"},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: ` + expressions(1, 65) + `}}`, "must have at most 64 items"},
		{policy + `{ingress: [{endpoint: a, port: 80}], podSelector: {matchExpressions: [{key: a, operator: Maybe}]}}}`, "Unsupported value"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{podSelector: ` + labels(17) + `}]}]}}`, "must have at most 16 items"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, from: [{namespaceSelector: ` + expressions(17, 1) + `}]}]}}`, "must have at most 16 items"},
		{endpoint + `{type: IPv4, allowedPods: [{namespaceSelector: ` + labels(17) + `}]}}`, "must have at most 16 items"},
		{endpoint + `{type: IPv4, allowedPods: [{namespaceSelector: {}, podSelector: ` + expressions(1, 65) + `}]}}`, "must have at most 64 items"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 0}]}}`, "greater than or equal to 1"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, protocol: SCTP}]}}`, "Unsupported value"},
		{policy + `{podSelector: {}, ingress: [{endpoint: a, port: 80, protocol: UDP, own: true}]}}`, "own is for TCP"},
		{policy + `{podSelector: {}, ingress: []}}`, "should have at least 1 items"},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: []}]}}`, "should have at least 1 items"},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.0/8], ports: "70000"}]}}`, `egress[0].ports: Invalid value: "70000": write PORT or FIRST-LAST`},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.0/8], ports: 90-80}]}}`, `egress[0].ports: Invalid value: "90-80": write PORT or FIRST-LAST`},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.0/8], ports: 0-80}]}}`, `egress[0].ports: Invalid value: "0-80": write PORT or FIRST-LAST`},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.1]}]}}`, "write prefixes"},
		{policy + `{podSelector: {}, egress: [{endpoint: a, to: [10.0.0.0/8, 10.0.0.0/8]}]}}`, "Duplicate value"},
		{policy + `{podSelector: {}, mode: magic, ingress: [{endpoint: a, port: 80}]}}`, "Unsupported value"},
	} {
		o := kubetest.Parse(t, []byte(tt.text))[0]
		err := c.Create(t.Context(), o, client.DryRunAll)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
}
