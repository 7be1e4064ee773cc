package container

import (
	"slices"

	"github.com/tsugiki/tsugiki/policy"
)

// NamesPod tells whether a rule's sources name a pod.
func (c *Container) NamesPod(uid string) bool {
	return slices.ContainsFunc(c.given.Load().has(), func(r policy.Ingress) bool { return slices.Contains(r.From.Pods(), uid) })
}

// Network returns the cookie of the network namespace of the container's programs; 0 before it is
// known.
func (c *Container) Network() uint64 { return c.network.Load() }

// AdmitPods lets in the pods that sources name, as the owner knows them by now.
func (c *Container) AdmitPods() error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing || c.enforced == nil {
		return nil
	}
	return c.admitPods()
}

// The caller of admitPods holds c.changes, or nobody else can have c yet.
func (c *Container) admitPods() error { return c.enforced.AdmitPods(c.owner.PodNetwork) }
