package grant

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tsugiki/tsugiki/api"
)

// # Pods that ask by an annotation
//
// They have no RuntimeClass, so tsugiki-runtime does not make their containers: the plugin of NRI has
// containerd do that. The plugin cannot take a capability away, and hears of none. So what the runtime
// does about capabilities is asked of the pod's specification here.

// Asks tells whether a pod asks by the annotation to be grafted.
func Asks(p *corev1.Pod) bool { return p.Annotations[api.AnnotationGraft] == "true" }

// annotated tells whether the pod is one of those above.
func annotated(p *corev1.Pod) bool { return Asks(p) && p.Spec.RuntimeClassName == nil }

// OfClass refuses a pod that asks by the annotation and has a RuntimeClass that is none of ours: what
// makes its containers may not know seccomp, or the node's network.
func OfClass(p *corev1.Pod) Decision {
	d := refusal(p, fmt.Errorf("the annotation %s is for pods without a RuntimeClass, and this one has %s: take the RuntimeClass away, or write runtimeClassName: tsugiki, or take the annotation away",
		api.AnnotationGraft, *p.Spec.RuntimeClassName))
	d.Final = true
	return d
}

// fitAnnotated refuses pods that a plugin of NRI cannot graft.
func fitAnnotated(p *corev1.Pod) error {
	if p.Spec.HostUsers != nil && !*p.Spec.HostUsers {
		return errors.New("NRI does not say which users of the node those of the pod are (hostUsers: false); write runtimeClassName: tsugiki in place of the annotation, or leave hostUsers out")
	}
	if name := raw(p); name != "" {
		return fmt.Errorf("container %s may have CAP_NET_RAW, with which programs get around their rules: write securityContext: {capabilities: {drop: [ALL]}} (or [NET_RAW]) for each container, or runtimeClassName: tsugiki in place of the annotation", name)
	}
	return nil
}

// errTranslated refuses translation of a pod that asks by the annotation.
var errTranslated = fmt.Errorf("IPv4 is translated in pods without a network: write runtimeClassName: tsugiki-translate in place of the annotation %s", api.AnnotationGraft)

// raw returns the name of a container that does not drop CAP_NET_RAW, or adds it; empty, if the pod has
// none. Engines give it to each container.
func raw(p *corev1.Pod) string {
	for _, c := range allContainers(p) {
		s := c.SecurityContext
		if s == nil || s.Capabilities == nil || !dropsRaw(s.Capabilities.Drop) || slices.ContainsFunc(s.Capabilities.Add, isRaw) {
			return c.Name
		}
	}
	return ""
}

// dropsRaw tells whether engines take CAP_NET_RAW away. They know capabilities by names without CAP_, and
// drop nothing for other names.
func dropsRaw(list []corev1.Capability) bool {
	return slices.ContainsFunc(list, func(c corev1.Capability) bool {
		return slices.Contains([]string{"ALL", "NET_RAW"}, strings.ToUpper(string(c)))
	})
}

func isRaw(c corev1.Capability) bool {
	return slices.Contains([]string{"ALL", "NET_RAW"}, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
}

// allContainers are the containers of a pod, also ephemeral ones, which share the pod's namespaces.
func allContainers(p *corev1.Pod) []corev1.Container {
	all := containers(p)
	for _, c := range p.Spec.EphemeralContainers {
		all = append(all, corev1.Container(c.EphemeralContainerCommon))
	}
	return all
}
