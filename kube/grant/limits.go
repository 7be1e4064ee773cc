package grant

import (
	"encoding/json"
	"fmt"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const (
	// endpointsMax is the limit of the agent for the endpoints of a container.
	endpointsMax = 256
	// policyMax is the size of the largest policy that counts, in bytes of JSON. Each node has all policies in
	// memory, and the API server takes policies of more than a megabyte.
	policyMax = 64 << 10
)

// Shorten takes the rules from a policy that is too large, and notes its size. If the selector is what is large, the
// policy selects all pods of its namespace then.
func Shorten(p *v1alpha1.GraftPolicy) error {
	size := func(s *v1alpha1.GraftPolicySpec) (int, error) {
		text, err := json.Marshal(s)
		return len(text), err
	}
	all, err := size(&p.Spec)
	if err != nil || all <= policyMax {
		return err
	}
	short := v1alpha1.GraftPolicySpec{PodSelector: p.Spec.PodSelector}
	if selector, err := size(&short); err != nil || selector > policyMax/16 {
		short = v1alpha1.GraftPolicySpec{}
	}
	p.Spec, p.TooLarge = short, all
	return nil
}

// checkSize refuses a policy that is too large.
func checkSize(p *v1alpha1.GraftPolicy) error {
	if p.TooLarge > 0 {
		return fmt.Errorf("its spec has %d bytes, at most %d may be; write several policies, or fewer and wider prefixes", p.TooLarge, policyMax)
	}
	return nil
}

// room refuses another endpoint of a container that has all that it may have.
func (d *decider) room(container string) error {
	if len(d.Grant.Containers[container].Endpoints) >= endpointsMax {
		return fmt.Errorf("container %s has more than %d rules", container, endpointsMax)
	}
	return nil
}
