package grant

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// # Translation of IPv4
//
// A container whose IPv4 is translated has no network but a loopback, which no other container shares:
// the agent's kernel programs know the loopback's owner by its network namespace. That the pod has no
// network is for the agent to see, which refuses the container otherwise. What is decided here is what
// the pod's specification says: one container, nobody who could add a link, and no probe that has to
// come by a network.
//
// What the container reaches, and who is asked for names, is the endpoint's alone to say: the agent
// asks resolvers from the node's network, and no rule limits that.

// translate has the pod's only container reach all destinations of an endpoint.
func (d *decider) translate(p *v1alpha1.GraftPolicy) error {
	t := p.Spec.Translate
	if t == nil {
		return nil
	}
	if annotated(d.Pod) {
		return errTranslated
	}
	if err := translatable(d.Pod); err != nil {
		return err
	}
	e, err := d.endpoint(t.Endpoint)
	if err != nil {
		return err
	}
	destinations, err := reached(e)
	if err != nil {
		return err
	}
	addr, err := d.address(e)
	if err != nil {
		return err
	}
	given := api.Translate{DNS: e.Spec.Resolvers, Pool: t.Pool, FTP: portList(t.FTP), SIP: portList(t.SIP)}
	fresh, err := d.claim("", "translate", p.Name, fmt.Sprint(e.Name, given))
	if !fresh || err != nil {
		return err
	}
	c := d.Pod.Spec.Containers[0].Name
	for _, what := range destinations {
		name := digest("translate", e.Name, what)
		fresh, err := d.claim(c, "destination "+what, p.Name, e.Name)
		if err != nil {
			return err
		}
		if fresh {
			d.give(c, fmt.Sprintf("%s type ipv6 addr %s port dynamic", name, addr), "", what+"="+name)
		}
	}
	r := d.Grant.Containers[c]
	r.Translate = &given
	d.Grant.Containers[c] = r
	return nil
}

// translatable refuses pods whose IPv4 cannot be translated, whatever the endpoints are.
func translatable(pod *corev1.Pod) error {
	all := containers(pod)
	if len(pod.Spec.Containers) == 0 {
		return errors.New("the pod has no containers")
	}
	if len(all) > 1 {
		return fmt.Errorf("IPv4 is translated for the only container of a pod, and this one has %d: %s; put each into a pod of its own", len(all), names(all))
	}
	if name := administrator(pod); name != "" { // also of a user namespace: the pod's network is its own there
		return fmt.Errorf("container %s has CAP_NET_ADMIN, and so could give the pod a network; take the capability (or privileged) away", name)
	}
	for _, p := range []struct {
		kind  string
		probe *corev1.Probe
	}{{"livenessProbe", all[0].LivenessProbe}, {"readinessProbe", all[0].ReadinessProbe}, {"startupProbe", all[0].StartupProbe}} {
		if asksPod(p.probe) {
			return fmt.Errorf("the %s of container %s asks at the pod's address, and the pod has no network; write an exec probe", p.kind, all[0].Name)
		}
	}
	return nil
}

// asksPod tells whether a probe connects to the pod's own address.
func asksPod(p *corev1.Probe) bool {
	return p != nil && (p.GRPC != nil || p.HTTPGet != nil && p.HTTPGet.Host == "" || p.TCPSocket != nil && p.TCPSocket.Host == "")
}

func names(list []corev1.Container) string {
	var all []string
	for _, c := range list {
		all = append(all, c.Name)
	}
	return strings.Join(all, ", ")
}

// reached returns the destinations of an endpoint as the agent reads those of egress rules. It refuses an
// endpoint without resolvers: who wrote it for egress alone has not said that the node may ask for names.
func reached(e *v1alpha1.GraftEndpoint) (list []string, err error) {
	if e.Spec.Type != v1alpha1.IPv6 {
		return nil, fmt.Errorf("GraftEndpoint %s has the type %s; name one of type IPv6", e.Name, e.Spec.Type)
	}
	if len(e.Spec.Destinations) == 0 {
		return nil, fmt.Errorf("GraftEndpoint %s has no destinations: pods reach nothing through it", e.Name)
	}
	if len(e.Spec.Resolvers) == 0 {
		return nil, fmt.Errorf("GraftEndpoint %s has no resolvers, so it is not for translate: who runs the nodes writes resolvers that the node may ask for names on behalf of pods", e.Name)
	}
	for _, d := range e.Spec.Destinations {
		to, err := parsePrefix(d.CIDR)
		if err == nil && to.Addr().Is4() {
			err = fmt.Errorf("%s is no prefix of IPv6", to)
		}
		what := to.String()
		if err == nil && d.Ports != "" {
			var ports Range
			ports, err = ParseRange(d.Ports)
			what = fmt.Sprintf("[%s]:%s", to, ports)
		}
		if err != nil {
			return nil, fmt.Errorf("a destination of GraftEndpoint %s: %w", e.Name, err)
		}
		if !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	return list, nil
}

// checkTranslated refuses an ingress rule that a container whose IPv4 is translated cannot have.
func checkTranslated(r *v1alpha1.IngressRule) error {
	switch {
	case r.Own != nil && *r.Own:
		return errors.New("own is for pods with a network of their own, and this one's IPv4 is translated; leave own out")
	case len(r.From) > 0:
		return errors.New("from cannot be checked where IPv4 is translated; leave from out, and let a firewall of the node decide")
	}
	return nil
}

// checkResolver tells what is wrong with a resolver.
func checkResolver(s string) error {
	r, err := netip.ParseAddrPort(s)
	if err != nil || r.Port() == 0 || r.Addr().Zone() != "" || r.Addr().IsUnspecified() {
		return fmt.Errorf("%q is no resolver; write ADDR:PORT, as 198.51.100.53:53 or [2001:db8::53]:53", s)
	}
	return nil
}

// portList writes ports as the agent reads them; empty: its default.
func portList(ports []int32) string {
	var words []string
	for _, p := range ports {
		words = append(words, strconv.Itoa(int(p)))
	}
	return strings.Join(words, ",")
}
