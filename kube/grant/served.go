package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

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
	Rule    string                `json:"rule"`
	Service *v1alpha1.ServicePort `json:"-"` // nil: none
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

// Take implements Ports.
func (c Claims) Take(_, rule string, _ v1alpha1.Protocol, _ netip.Addr, within Range) (uint16, error) {
	for _, s := range c {
		if s.Rule != rule {
			continue
		}
		if !within.Contains(s.Host.Port()) {
			return 0, fmt.Errorf("the pod has port %d, which is none of the ports %s", s.Host.Port(), within)
		}
		return s.Host.Port(), nil
	}
	return 0, errors.New("the pod has no port for the rule yet")
}
