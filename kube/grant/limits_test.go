package grant

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// large writes a list of many values.
func large(count int, value func(int) string) string {
	var list []string
	for i := range count {
		list = append(list, value(i))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// A policy that is too large becomes small, and refuses the pods that it may select.
func TestShorten(t *testing.T) {
	peers := `ingress: [{endpoint: web, port: 80, from: ` + large(4000, func(i int) string {
		return fmt.Sprintf("{ipBlock: {cidr: 10.%d.%d.0/24}}", i/256, i%256)
	}) + `}]`
	values := `matchExpressions: [{key: app, operator: NotIn, values: ` + large(4000, func(i int) string { return fmt.Sprintf("value-%d-of-many", i) }) + `}]`
	for name, tt := range map[string]struct {
		policy  string
		refuses bool
	}{
		"many peers":                   {`{podSelector: {matchLabels: {app: web}}, ` + peers + `}`, true},
		"many peers, of another pod":   {`{podSelector: {matchLabels: {app: db}}, ` + peers + `}`, false},
		"a selector that is too large": {`{podSelector: {matchLabels: {app: db}, ` + values + `}, ingress: [{endpoint: web, port: 80}]}`, true},
	} {
		q := question(t, web, tt.policy, `{podSelector: {matchLabels: {app: web}}, ingress: [{endpoint: web, port: 81}]}`)
		p := q.Policies[0]
		for range 2 { // caches may do it twice
			if err := Shorten(p); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := json.Marshal(p); err != nil || len(text) > policyMax/16+1024 {
			t.Errorf("%s: %d bytes are left, %v", name, len(text), err)
		}
		const why = "at most 65536 may be"
		if d := Decide(q); strings.Contains(d.Grant.Refused, "GraftPolicy p: its spec has ") != tt.refuses || strings.Contains(d.Grant.Refused, why) != tt.refuses {
			t.Errorf("%s: refused %q, want that it is refused: %v", name, d.Grant.Refused, tt.refuses)
		}
		if err := CheckPolicy(p, q.Namespace, q.Endpoint); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: the policy is accepted: %v", name, err)
		}
	}
}

func TestShortenLeavesOthers(t *testing.T) {
	q := question(t, web, `{podSelector: {}, ingress: [{endpoint: web, port: 80}]}`)
	before := q.Policies[0].DeepCopy()
	if err := Shorten(q.Policies[0]); err != nil || fmt.Sprint(q.Policies[0].Spec) != fmt.Sprint(before.Spec) {
		t.Errorf("%+v, %v, want %+v", q.Policies[0], err, before)
	}
}

// counted counts ports.
type counted struct {
	fixed
	taken int
}

func (c *counted) Take(pod, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within Range) (uint16, error) {
	c.taken++
	return c.fixed.Take(pod, rule, protocol, addr, within)
}

// A container has no more endpoints than the agent gives it, and takes no ports for others.
func TestEndpointsOfContainer(t *testing.T) {
	policy := func(first, count int, also string) string {
		return `{podSelector: {}, ingress: ` + large(count, func(i int) string { return fmt.Sprintf("{endpoint: web, port: %d, container: nginx}", first+i) }) + also + `}`
	}
	const out = `, egress: [{endpoint: out, to: [10.0.0.0/8], containers: [nginx]}]`
	for name, tt := range map[string]struct {
		policies []string
		taken    int
		refused  bool
	}{
		"as many as fit":             {[]string{policy(1, 255, out)}, 255, false},
		"one too many to listen at":  {[]string{policy(1, 256, ""), policy(1000, 1, "")}, 256, true},
		"one too many to connect by": {[]string{policy(1, 256, out)}, 256, true},
	} {
		q, ports := question(t, web, tt.policies...), &counted{}
		q.Ports = ports
		d := Decide(q)
		if is := strings.Contains(d.Grant.Refused, "container nginx has more than 256 rules"); is != tt.refused || ports.taken != tt.taken {
			t.Errorf("%s: %d ports are taken, refused %q", name, ports.taken, d.Grant.Refused)
		}
	}
}
