package grant

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// ingress adds the rules of a policy's ingress rule.
func (d *decider) ingress(policy string, r *v1alpha1.IngressRule) error {
	e, err := d.endpoint(r.Endpoint)
	if err != nil {
		return err
	}
	if err := checkService(d.Pod.Namespace, r.Service); err != nil {
		return err
	}
	c, err := listener(d.Pod, r)
	if err != nil {
		return err
	}
	protocol := r.Protocol
	if protocol == "" {
		protocol = v1alpha1.TCP
	}
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
	from, err := d.sources(r.From)
	if err != nil {
		return err
	}
	family := "IPv4 port "
	if e.Spec.Type == v1alpha1.IPv6 && !d.translated {
		family = "IPv6 port "
	}
	if fresh, err := d.claim(c.Name, family+what, policy, e.Name+own+from); !fresh || err != nil {
		return err
	}
	if e.Spec.Type == v1alpha1.Unix {
		if from != "" {
			return fmt.Errorf("GraftEndpoint %s: %w", e.Name, errUnixFrom)
		}
		d.give(c.Name, fmt.Sprintf("%s type unix path %s", name, e.Spec.Path), fmt.Sprintf("0.0.0.0:%s=%s", what, name), "")
		return nil
	}
	addr, err := d.address(e)
	if err != nil {
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
	port, err := d.Ports.Take(string(d.Pod.UID), name, protocol, addr, within)
	if err != nil {
		return fmt.Errorf("GraftEndpoint %s: %w", e.Name, err)
	}
	at := d.reachable(addr)
	if r.Service != nil { // an EndpointSlice has each name of a port once
		where := fmt.Sprintf("port %q of Service %s at %s", r.Service.Port, r.Service.Name, at)
		if _, err := d.claim("", where, policy, name); err != nil {
			return err
		}
	}
	bind := netip.IPv4Unspecified()
	if addr.Is6() && !d.translated {
		bind = netip.IPv6Unspecified()
	}
	text := fmt.Sprintf("%s/%s%s=%s", netip.AddrPortFrom(bind, uint16(r.Port)), strings.ToLower(string(protocol)), own+from, name)
	d.give(c.Name, fmt.Sprintf("%s type %s addr %s port %d", name, strings.ToLower(string(e.Spec.Type)), addr, port), text, "")
	d.Served = append(d.Served, Served{c.Name, uint16(r.Port), protocol, netip.AddrPortFrom(at, port), name, r.Service})
	return nil
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
