package grant

import (
	"fmt"
	"strings"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// CheckEndpoint tells what is wrong with an endpoint by itself.
func CheckEndpoint(e *v1alpha1.GraftEndpoint) error {
	d := decider{Question: &Question{Node: anyNode}}
	if e.Spec.Type == v1alpha1.Unix {
		return nil
	}
	if _, err := d.address(e); err != nil {
		return err
	}
	if e.Spec.Ports != "" {
		if _, err := ParseRange(e.Spec.Ports); err != nil {
			return err
		}
	}
	for _, a := range e.Spec.AllowedPods {
		if _, err := matches(&a.NamespaceSelector, nil); err != nil {
			return fmt.Errorf("allowedPods: %w", err)
		}
		if a.PodSelector != nil {
			if _, err := matches(a.PodSelector, nil); err != nil {
				return fmt.Errorf("allowedPods: %w", err)
			}
		}
	}
	for _, r := range e.Spec.Resolvers {
		if err := checkResolver(r); err != nil {
			return fmt.Errorf("resolvers: %w", err)
		}
	}
	for _, to := range e.Spec.Destinations {
		if _, err := parsePrefix(to.CIDR); err != nil {
			return fmt.Errorf("destinations: %w", err)
		}
		if to.Ports != "" {
			if _, err := ParseRange(to.Ports); err != nil {
				return fmt.Errorf("destinations: %w", err)
			}
		}
	}
	return nil
}

// CheckPolicy tells why no pod of a namespace with some labels can have a policy's rules: which
// endpoint is missing, is not for the namespace, or does not cover a rule. Labels of pods and the
// node may still refuse a pod.
func CheckPolicy(p *v1alpha1.GraftPolicy, namespace map[string]string, endpoint func(string) *v1alpha1.GraftEndpoint) error {
	if err := checkSize(p); err != nil {
		return err
	}
	if _, err := matches(&p.Spec.PodSelector, nil); err != nil {
		return fmt.Errorf("podSelector: %w", err)
	}
	if err := checkCharge(p, namespace); err != nil {
		return fmt.Errorf("charge: %w", err)
	}
	if t := p.Spec.Translate; t != nil {
		e, err := forNamespace(t.Endpoint, p.Namespace, namespace, endpoint)
		if err == nil {
			_, err = reached(e)
		}
		if err != nil {
			return fmt.Errorf("translate: %w", err)
		}
	}
	for i, r := range p.Spec.Ingress {
		e, err := forNamespace(r.Endpoint, p.Namespace, namespace, endpoint)
		if err == nil && e.Spec.Type != v1alpha1.Unix && e.Spec.Ports == "" {
			err = fmt.Errorf("GraftEndpoint %s has no ports: pods cannot listen there", e.Name)
		}
		if err == nil {
			err = checkService(p.Namespace, r.Service)
		}
		if err == nil {
			err = checkPeers(r.From, e)
		}
		if err != nil {
			return fmt.Errorf("ingress %d: %w", i, err)
		}
	}
	for i, r := range p.Spec.Egress {
		e, err := forNamespace(r.Endpoint, p.Namespace, namespace, endpoint)
		if err != nil {
			return fmt.Errorf("egress %d: %w", i, err)
		}
		ports := allPorts
		if r.Ports != "" {
			if ports, err = ParseRange(r.Ports); err != nil {
				return fmt.Errorf("egress %d: %w", i, err)
			}
		}
		for _, to := range r.To {
			if _, err := destination(to, ports, e); err != nil {
				return fmt.Errorf("egress %d: %w", i, err)
			}
		}
	}
	return nil
}

// checkCharge refuses that a pod's quota does not pay for the work of others, unless whoever gives labels
// to namespaces permits it.
func checkCharge(p *v1alpha1.GraftPolicy, namespace map[string]string) error {
	if p.Spec.Charge == v1alpha1.Count && namespace[v1alpha1.LabelCharge] != v1alpha1.ChargeOptional {
		return fmt.Errorf("%s needs the label %s=%s of namespace %s, which who runs the cluster gives", v1alpha1.Count, v1alpha1.LabelCharge, v1alpha1.ChargeOptional, p.Namespace)
	}
	return nil
}

// forNamespace returns an endpoint that some pods of a namespace may use.
func forNamespace(name, namespace string, labels map[string]string, endpoint func(string) *v1alpha1.GraftEndpoint) (*v1alpha1.GraftEndpoint, error) {
	e := endpoint(name)
	if e == nil {
		return nil, fmt.Errorf("there is no GraftEndpoint %s", name)
	}
	for _, a := range e.Spec.AllowedPods {
		if is, err := matches(&a.NamespaceSelector, labels); err == nil && is {
			return e, nil
		}
	}
	return nil, fmt.Errorf("GraftEndpoint %s is not for pods of namespace %s", name, namespace)
}

// checkService refuses Services of the cluster itself. The admission policy of deploy/ lets no node
// write endpoints of these.
func checkService(namespace string, s *v1alpha1.ServicePort) error {
	if s != nil && (strings.HasPrefix(namespace, "kube-") || namespace == "default" && s.Name == "kubernetes") {
		return fmt.Errorf("the Service %s of namespace %s is one of the cluster itself; name another Service, or none", s.Name, namespace)
	}
	return nil
}
