// Package grant decides what a pod is given: it turns the policies of the pod's namespace and the
// endpoints of the cluster into rules of the agent, or into a refusal with its reason.
//
// Its decisions depend on its arguments alone. It reads no cluster and calls no agent. It needs no
// privilege and no particular kernel.
//
// # Theory of operation
//
// Every rule of a policy that selects the pod becomes a rule of each container that it is for, if the
// endpoint is for the pod and covers the rule. If one rule does not, the pod is refused as a whole:
// a pod with some of its rules could do harm that one without rules cannot. A rule whose endpoint may be
// on its way does not refuse the pod, and is left out (awaits.go). Each rule of the agent gets an endpoint
// of its own, named by a digest of what the rule is, so that the agent can take away one rule of a pod
// that runs.
package grant

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Node has the addresses of a node. One that it does not have is the zero value.
type Node struct {
	Name       string
	IPv4, IPv6 netip.Addr
}

// Add gives a node an address, if the node has none of the family yet.
func (n *Node) Add(a netip.Addr) {
	into := &n.IPv4
	if a = a.Unmap(); a.Is6() {
		into = &n.IPv6
	}
	if !into.IsValid() {
		*into = a
	}
}

// anyNode has an address of each family.
var anyNode = Node{IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()}

// Ports gives pods ports of the node.
type Ports interface {
	// Take returns a port for a rule of a pod: the one that the rule has, or one of a range that is
	// free for the rule's protocol. An error says in one line why there is none, and refuses the pod, if
	// it is not ErrNoPortYet.
	Take(pod, rule string, protocol v1alpha1.Protocol, addr netip.Addr, within Range) (uint16, error)
}

// Question is what is asked: what is the pod given on the node?
type Question struct {
	Pod *corev1.Pod
	// Namespace has the labels of the pod's namespace.
	Namespace map[string]string
	// Policies are those of the pod's namespace.
	Policies []*v1alpha1.GraftPolicy
	// Endpoint returns an endpoint of the cluster; nil if there is none of that name.
	Endpoint func(name string) *v1alpha1.GraftEndpoint
	// MayCome is asked of an endpoint that there is not, and tells whether it may be on its way: a rule that
	// names it is left out then, and does not refuse the pod. nil: none may.
	MayCome func(name string) bool
	// Peers returns the pods of the node that are not over. It is asked once, and only if a rule selects
	// pods.
	Peers func() *Peers
	Node  Node
	Ports Ports
}

// Decision is the answer.
type Decision struct {
	Grant api.Grant
	// Selected says that a policy selects the pod.
	Selected bool
	// Served are the ports of the pod that are ports of the node.
	Served []Served
	// Final says that the pod's specification alone refuses it, whatever the resources say.
	Final bool
	// Awaits are endpoints that may come, and whose rules are left out.
	Awaits []string
}

// Decide answers a question. A pod that no policy selects is refused.
func Decide(q *Question) Decision {
	d := decider{
		Question: q, used: map[string]used{}, services: map[string][]v1alpha1.ServicePort{}, allowed: map[string]*v1alpha1.GraftEndpoint{},
		peers: sync.OnceValue(q.Peers),
	}
	d.Grant = api.Grant{Namespace: q.Pod.Namespace, Name: q.Pod.Name, Containers: map[string]api.Rules{}}
	err := fit(q.Pod)
	d.Final = err != nil
	if err == nil {
		err = d.policies()
	}
	if err == nil && !d.Selected {
		err = fmt.Errorf("no GraftPolicy of namespace %s selects the pod; make one, or leave the %s out", q.Pod.Namespace, way(q.Pod))
	}
	if err == nil {
		err = size(&d.Grant)
	}
	if err != nil {
		refused := refusal(q.Pod, err)
		refused.Selected, refused.Final = d.Selected, d.Final
		return refused
	}
	return d.Decision
}

// refusal gives a pod nothing.
func refusal(p *corev1.Pod, why error) Decision {
	return Decision{Grant: api.Grant{Namespace: p.Namespace, Name: p.Name, Refused: why.Error()}}
}

// way names what a pod asks by to be grafted.
func way(p *corev1.Pod) string {
	if annotated(p) {
		return "annotation " + api.AnnotationGraft
	}
	return "RuntimeClass"
}

// fit refuses pods that can be given nothing, whatever the policies say.
func fit(pod *corev1.Pod) error {
	if pod.Spec.HostNetwork {
		return fmt.Errorf("the pod uses the host's network, where there is nothing to graft; leave hostNetwork or the %s out", way(pod))
	}
	if annotated(pod) {
		if err := fitAnnotated(pod); err != nil {
			return err
		}
	}
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		return nil // its capabilities are those of a user namespace
	}
	if name := administrator(pod); name != "" {
		return fmt.Errorf("container %s has CAP_NET_ADMIN, and so could configure the node's network; take the capability (or privileged) away, or set hostUsers: false", name)
	}
	return nil
}

// administrator returns the name of a container with CAP_NET_ADMIN; empty, if the pod has none.
func administrator(pod *corev1.Pod) string {
	for _, c := range allContainers(pod) {
		s := c.SecurityContext
		if s == nil {
			continue
		}
		admin := s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, func(c corev1.Capability) bool {
			return slices.Contains([]string{"ALL", "NET_ADMIN"}, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
		})
		if admin || s.Privileged != nil && *s.Privileged {
			return c.Name
		}
	}
	return ""
}

// containers returns the containers of a pod's specification that rules are for: first those that
// are not for its beginning alone. Ephemeral ones have no rules.
func containers(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
}

// used says which rule of which policy has used a name.
type used struct{ policy, text string }

type decider struct {
	*Question
	Decision
	used     map[string]used                    // by container and what the rule is for
	services map[string][]v1alpha1.ServicePort  // by rule
	allowed  map[string]*v1alpha1.GraftEndpoint // that are for the pod
	peers    func() *Peers
	// selecting are the policies that select the pod.
	selecting []*v1alpha1.GraftPolicy
	awaited   awaited
	// translated says that the pod's IPv4 is translated.
	translated bool
}

// policies adds the rules of the policies that select the pod. What a policy says of the pod as a whole comes
// first, so that it does not matter which policy comes first.
func (d *decider) policies() error {
	for _, p := range d.Policies {
		selects, err := matches(&p.Spec.PodSelector, d.Pod.Labels)
		if err != nil {
			return fmt.Errorf("podSelector of GraftPolicy %s: %w", p.Name, err)
		}
		if selects {
			d.selecting = append(d.selecting, p)
		}
	}
	d.Selected = len(d.selecting) > 0
	d.translated = slices.ContainsFunc(d.selecting, func(p *v1alpha1.GraftPolicy) bool { return p.Spec.Translate != nil })
	mode := ""
	for _, p := range d.selecting {
		if err := checkSize(p); err != nil {
			return fmt.Errorf("GraftPolicy %s: %w", p.Name, err)
		}
		d.Grant.Slow = d.Grant.Slow || p.Spec.DirectForward != nil && !*p.Spec.DirectForward
		if err := d.charge(p); err != nil {
			return fmt.Errorf("GraftPolicy %s, charge: %w", p.Name, err)
		}
		if err := d.translate(p); err != nil {
			return fmt.Errorf("GraftPolicy %s, translate: %w", p.Name, err)
		}
		if p.Spec.Mode == "" {
			continue
		}
		if _, err := d.claim("", "mode", p.Name, p.Spec.Mode); err != nil {
			return fmt.Errorf("GraftPolicy %s, mode: %w", p.Name, err)
		}
		mode = p.Spec.Mode
	}
	for _, p := range d.selecting {
		if err := d.rules(p); err != nil {
			return fmt.Errorf("GraftPolicy %s, %w", p.Name, err)
		}
	}
	for name, r := range d.Grant.Containers {
		r.Mode = mode
		d.Grant.Containers[name] = r
	}
	for i := range d.Served {
		d.Served[i].Services = d.services[d.Served[i].Rule]
		slices.SortFunc(d.Served[i].Services, func(a, b v1alpha1.ServicePort) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Port, b.Port))
		})
	}
	return nil
}

// rules adds the ingress and egress rules of a policy.
func (d *decider) rules(p *v1alpha1.GraftPolicy) error {
	for i := range p.Spec.Ingress {
		if err := d.ingress(p, i); err != nil && !d.awaits(p.Spec.Ingress[i].Endpoint, nil, err) {
			return fmt.Errorf("ingress %d: %w", i, err)
		}
	}
	for i := range p.Spec.Egress {
		if err := d.egress(p.Name, &p.Spec.Egress[i]); err != nil && !d.awaits(p.Spec.Egress[i].Endpoint, p.Spec.Egress[i].To, err) {
			return fmt.Errorf("egress %d: %w", i, err)
		}
	}
	return nil
}

// charge says how the pod is charged.
func (d *decider) charge(p *v1alpha1.GraftPolicy) error {
	if p.Spec.Charge == "" {
		return nil
	}
	if err := checkCharge(p, d.Namespace); err != nil {
		return err
	}
	if _, err := d.claim("", "charge", p.Name, string(p.Spec.Charge)); err != nil {
		return err
	}
	if p.Spec.Charge == v1alpha1.Count {
		d.Grant.Charge = api.ChargeCount
	}
	return nil
}

// endpoint returns the endpoint of a rule, if it is for the pod.
func (d *decider) endpoint(name string) (*v1alpha1.GraftEndpoint, error) {
	if e := d.allowed[name]; e != nil {
		return e, nil
	}
	e := d.Endpoint(name)
	if e == nil || e.DeletionTimestamp != nil {
		return nil, fmt.Errorf("%w %s", errNoEndpoint, name)
	}
	for _, a := range e.Spec.AllowedPods {
		is, err := matches(&a.NamespaceSelector, d.Namespace)
		if err == nil && is && a.PodSelector != nil {
			is, err = matches(a.PodSelector, d.Pod.Labels)
		}
		if err != nil {
			return nil, fmt.Errorf("allowedPods of GraftEndpoint %s: %w", name, err)
		}
		if is {
			d.allowed[name] = e
			return e, nil
		}
	}
	return nil, fmt.Errorf("GraftEndpoint %s is not for this pod: its allowedPods select neither namespace %s nor the pod's labels there", name, d.Pod.Namespace)
}

func matches(s *v1alpha1.LabelSelector, l map[string]string) (bool, error) {
	selector, err := s.Selector()
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(l)), nil
}

// address returns the node's address of an endpoint.
func (d *decider) address(e *v1alpha1.GraftEndpoint) (netip.Addr, error) {
	own, any := d.Node.IPv4, netip.IPv4Unspecified()
	if e.Spec.Type == v1alpha1.IPv6 {
		own, any = d.Node.IPv6, netip.IPv6Unspecified()
	}
	switch e.Spec.Address {
	case v1alpha1.AnyAddress:
		return any, nil
	case v1alpha1.NodeAddress, "":
		if !own.IsValid() {
			return own, fmt.Errorf("node %s has no %s address for GraftEndpoint %s", d.Node.Name, e.Spec.Type, e.Name)
		}
		return own, nil
	}
	a, err := netip.ParseAddr(e.Spec.Address)
	if err != nil || a.Is4() != (e.Spec.Type == v1alpha1.IPv4) || a.Is4In6() || a.Zone() != "" {
		return a, fmt.Errorf("the address %q of GraftEndpoint %s is none of %s", e.Spec.Address, e.Name, e.Spec.Type)
	}
	return a, nil
}

// digest names the endpoint of a rule. Names of endpoints have at most 15 bytes.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return "g" + hex.EncodeToString(sum[:7])
}

// claim has one rule alone say something about a container, or about the pod if that has no name. The
// same rule twice is one; then claim returns false.
func (d *decider) claim(container, what, policy, text string) (bool, error) {
	key := container + "\x00" + what
	before, taken := d.used[key]
	if taken && before.text != text {
		if container != "" {
			what += " of container " + container
		}
		return false, fmt.Errorf("GraftPolicy %s says something else about %s", before.policy, what)
	}
	d.used[key] = used{policy, text}
	return !taken, nil
}

// give adds a rule with its endpoint to a container.
func (d *decider) give(container, endpoint, ingress, egress string) {
	r := d.Grant.Containers[container]
	if !slices.Contains(r.Endpoints, endpoint) {
		r.Endpoints = append(r.Endpoints, endpoint)
	}
	if ingress != "" {
		r.Ingress = append(r.Ingress, ingress)
	}
	if egress != "" {
		r.Egress = append(r.Egress, egress)
	}
	d.Grant.Containers[container] = r
}
