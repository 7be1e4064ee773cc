package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Served is a port of a container at an address of the node.
type Served struct {
	Container string            `json:"container"`
	Port      uint16            `json:"port"`
	Protocol  v1alpha1.Protocol `json:"protocol"`
	Host      netip.AddrPort    `json:"host"`
	// Rule is the name of the rule's endpoint in the agent.
	Rule string `json:"rule"`
	// Services are those whose endpoint it is, sorted.
	Services []v1alpha1.ServicePort `json:"-"`
}

// ConditionPorts is the type of a pod's condition whose message has, as JSON, the list of what is
// served. Conditions are in the status of a pod: neither the pod's author nor the tsugiki-kube of
// another node may write them.
const ConditionPorts = "tsugiki.dev/Ports"

// Claims is what a pod serves by its condition. As Ports, it gives each rule the port that the rule
// has, and no other.
type Claims []Served

// ClaimsOf reads the condition of a pod. Without one, there are no claims.
func ClaimsOf(p *corev1.Pod) (Claims, error) {
	for _, c := range p.Status.Conditions {
		if c.Type != ConditionPorts || c.Status != corev1.ConditionTrue {
			continue
		}
		var claims Claims
		if err := json.Unmarshal([]byte(c.Message), &claims); err != nil {
			return nil, fmt.Errorf("condition %s of pod %s/%s: %w", ConditionPorts, p.Namespace, p.Name, err)
		}
		return claims, nil
	}
	return nil, nil
}

// ErrNoPortYet is what Ports return that know a port of some rules alone. A decision leaves the rule out: the pod's
// others are what they are.
var ErrNoPortYet = errors.New("the pod has no port for the rule yet")

// Take implements Ports. A rule that is new has no port until the node has said which, nor has one whose port is not the
// endpoint's any more.
func (c Claims) Take(_, rule string, _ v1alpha1.Protocol, _ netip.Addr, within Range) (uint16, error) {
	i := slices.IndexFunc(c, func(s Served) bool { return s.Rule == rule && within.Contains(s.Host.Port()) })
	if i < 0 {
		return 0, ErrNoPortYet
	}
	return c[i].Host.Port(), nil
}
