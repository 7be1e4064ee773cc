package grant

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// ingress adds the rules of a policy's ingress rule.
func (d *decider) ingress(p *v1alpha1.GraftPolicy, i int) error {
	r := &p.Spec.Ingress[i]
	e, err := d.endpoint(r.Endpoint)
	if err != nil {
		return err
	}
	if err := checkService(d.Pod.Namespace, r.Service, e); err != nil {
		return err
	}
	c, err := listener(d.Pod, r)
	if err != nil {
		return err
	}
	protocol := cmp.Or(r.Protocol, v1alpha1.TCP)
	if d.translated {
		if err := checkTranslated(r); err != nil {
			return err
		}
	}
	own := ""
	if !d.translated && protocol == v1alpha1.TCP && (r.Own != nil && *r.Own || r.Own == nil && probed(c, r.Port)) {
		own = "+own"
	}
	what := fmt.Sprintf("%d/%s", r.Port, strings.ToLower(string(protocol)))
	name := digest("in", c.Name, e.Name, what)
	// A server may have an address of each family.
	family := "IPv4 port "
	if e.Spec.Type == v1alpha1.IPv6 && !d.translated {
		family = "IPv6 port "
	}
	from := d.from(p, i)
	text := e.Name + own
	if from != nil {
		if from.err != nil {
			return from.err
		}
		text += "+from " + from.text
	}
	fresh, err := d.claim(c.Name, family+what, p.Name, text)
	if err != nil {
		return err
	}
	if e.Spec.Type == v1alpha1.Unix {
		if from != nil {
			return fmt.Errorf("GraftEndpoint %s: %w", e.Name, errUnixFrom)
		}
		if fresh {
			d.give(c.Name, fmt.Sprintf("%s type unix path %s", name, e.Spec.Path), fmt.Sprintf("0.0.0.0:%s=%s", what, name), "")
		}
		return nil
	}
	addr, err := d.address(e)
	if err != nil {
		return err
	}
	at := d.reachable(addr)
	if err := d.service(p.Name, r.Service, name, at); !fresh || err != nil {
		return err
	}
	if e.Spec.Ports == "" {
		return fmt.Errorf("GraftEndpoint %s has no ports: pods cannot listen there", e.Name)
	}
	if err := d.room(c.Name); err != nil {
		return err
	}
	within, err := ParseRange(e.Spec.Ports)
	if err != nil {
		return fmt.Errorf("GraftEndpoint %s: %w", e.Name, err)
	}
	words, err := from.wordsFor(d.Pod.UID)
	if err != nil {
		return err
	}
	port, err := d.Ports.Take(string(d.Pod.UID), name, protocol, addr, within)
	switch {
	case errors.Is(err, ErrNoPortYet):
		return nil
	case err != nil:
		return fmt.Errorf("GraftEndpoint %s: %w", e.Name, err)
	}
	bind := netip.IPv4Unspecified()
	if addr.Is6() && !d.translated {
		bind = netip.IPv6Unspecified()
	}
	rule := fmt.Sprintf("%s/%s%s=%s", netip.AddrPortFrom(bind, uint16(r.Port)), strings.ToLower(string(protocol)), own+words, name)
	d.give(c.Name, fmt.Sprintf("%s type %s addr %s port %d", name, strings.ToLower(string(e.Spec.Type)), addr, port), rule, "")
	d.Served = append(d.Served, Served{Container: c.Name, Port: uint16(r.Port), Protocol: protocol, Host: netip.AddrPortFrom(at, port), Rule: name})
	return nil
}

// service notes the Service whose endpoint a rule is. An EndpointSlice has each name of a port once.
func (d *decider) service(policy string, s *v1alpha1.ServicePort, rule string, at netip.Addr) error {
	if s == nil {
		return nil
	}
	fresh, err := d.claim("", fmt.Sprintf("port %q of Service %s at %s", s.Port, s.Name, at), policy, rule)
	if fresh {
		d.services[rule] = append(d.services[rule], *s)
	}
	return err
}

// reachable returns an address of the node at which others reach what listens at an address.
func (d *decider) reachable(a netip.Addr) netip.Addr {
	switch {
	case !a.IsUnspecified():
		return a
	case a.Is4():
		return d.Node.IPv4
	}
	return d.Node.IPv6
}

// listener returns the container that listens at a rule's port.
func listener(pod *corev1.Pod, r *v1alpha1.IngressRule) (*corev1.Container, error) {
	all := containers(pod)
	if len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("the pod has no containers")
	}
	if r.Container != "" {
		i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == r.Container })
		if i < 0 {
			return nil, fmt.Errorf("the pod has no container %s", r.Container)
		}
		return &all[i], nil
	}
	for i := range all {
		if slices.ContainsFunc(all[i].Ports, func(p corev1.ContainerPort) bool {
			return p.ContainerPort == r.Port && (p.Protocol == corev1.Protocol(r.Protocol) || p.Protocol == "" && r.Protocol != v1alpha1.UDP)
		}) {
			return &all[i], nil
		}
	}
	return &all[0], nil
}

// probed tells whether the kubelet connects to a port of a container in the pod's own network.
func probed(c *corev1.Container, port int32) bool {
	is := func(p intstr.IntOrString) bool {
		if p.Type == intstr.Int {
			return p.IntVal == port
		}
		return slices.ContainsFunc(c.Ports, func(n corev1.ContainerPort) bool { return n.Name == p.StrVal && n.ContainerPort == port })
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		switch {
		case p == nil:
		case p.HTTPGet != nil && p.HTTPGet.Host == "" && is(p.HTTPGet.Port),
			p.TCPSocket != nil && p.TCPSocket.Host == "" && is(p.TCPSocket.Port),
			p.GRPC != nil && p.GRPC.Port == port:
			return true
		}
	}
	return false
}

// egress adds the rules of a policy's egress rule.
func (d *decider) egress(policy string, r *v1alpha1.EgressRule) error {
	e, err := d.endpoint(r.Endpoint)
	if err != nil {
		return err
	}
	ports := allPorts
	if r.Ports != "" {
		if ports, err = ParseRange(r.Ports); err != nil {
			return err
		}
	}
	protocol := ""
	if r.Protocol != "" {
		protocol = "/" + strings.ToLower(string(r.Protocol))
	}
	for _, name := range r.Containers {
		if !slices.ContainsFunc(containers(d.Pod), func(c corev1.Container) bool { return c.Name == name }) {
			return fmt.Errorf("the pod has no container %s", name)
		}
	}
	for _, text := range r.To {
		to, err := destination(text, ports, e)
		if err != nil {
			return err
		}
		what := to.String()
		switch {
		case r.Ports == "":
		case to.Addr().Is6():
			what = fmt.Sprintf("[%s]:%s", to, ports)
		default:
			what = fmt.Sprintf("%s:%s", to, ports)
		}
		what += protocol
		name := digest("out", e.Name, what)
		definition := fmt.Sprintf("%s type unix path %s", name, e.Spec.Path)
		if e.Spec.Type != v1alpha1.Unix {
			addr, err := d.address(e)
			if err != nil {
				return err
			}
			definition = fmt.Sprintf("%s type %s addr %s port dynamic", name, strings.ToLower(string(e.Spec.Type)), addr)
		}
		for _, c := range containers(d.Pod) {
			if len(r.Containers) > 0 && !slices.Contains(r.Containers, c.Name) {
				continue
			}
			fresh, err := d.claim(c.Name, "destination "+what, policy, e.Name)
			if err != nil {
				return err
			}
			if fresh {
				if err := d.room(c.Name); err != nil {
					return err
				}
				d.give(c.Name, definition, "", what+"="+name)
			}
		}
	}
	return nil
}
