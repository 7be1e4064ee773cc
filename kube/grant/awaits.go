package grant

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// # Rules whose endpoint may come
//
// Watches are not ordered among each other: a policy may come before an endpoint that it names. See
// Question.MayCome.

// errNoEndpoint says that a rule names an endpoint that there is not. Nothing of the rule has been added.
var errNoEndpoint = errors.New("there is no GraftEndpoint")

// awaitedMax is how many destinations may be left out: each is compared with all others.
const awaitedMax = 64

// awaited is what awaits has found out.
type awaited struct {
	destinations int       // that are left out
	leads        []leading // nil: nobody has asked yet
}

// leading is a destination of a rule.
type leading struct {
	to       netip.Prefix
	endpoint string
}

// awaits tells whether a rule, with its destinations, is left out, as its endpoint may come. A rule is not left out
// while one of another endpoint has a destination that contains one of its own: that would lead elsewhere.
func (d *decider) awaits(endpoint string, to []string, err error) bool {
	a := &d.awaited
	if !errors.Is(err, errNoEndpoint) || d.MayCome == nil || !d.MayCome(endpoint) {
		return false
	}
	if a.destinations += len(to); a.destinations > awaitedMax {
		return false
	}
	if a.leads == nil {
		a.leads = leadingOf(d.selecting)
	}
	for _, text := range to {
		narrow, err := parsePrefix(text)
		if err != nil || slices.ContainsFunc(a.leads, func(l leading) bool { return l.endpoint != endpoint && contains(l.to, narrow) }) {
			return false
		}
	}
	if !slices.Contains(d.Awaits, endpoint) {
		d.Awaits = append(d.Awaits, endpoint)
	}
	return true
}

// leadingOf returns the destinations of policies. It leaves out those that are no prefixes.
func leadingOf(policies []*v1alpha1.GraftPolicy) []leading {
	list := []leading{}
	for _, p := range policies {
		for i := range p.Spec.Egress {
			for _, text := range p.Spec.Egress[i].To {
				if to, err := parsePrefix(text); err == nil {
					list = append(list, leading{to, p.Spec.Egress[i].Endpoint})
				}
			}
		}
	}
	return list
}
