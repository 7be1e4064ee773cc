package nri

import (
	"context"
	"errors"

	"github.com/containerd/nri/pkg/api"

	agent "github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/oci"
)

// end is a registration that is to go.
type end struct{ name, id string }

// endOf returns the registration that a container may have.
func endOf(pod *api.PodSandbox, c *api.Container) end {
	return end{oci.PodContainer(podOf(pod, c)), c.GetId()}
}

// unregister unregisters a container in the background: the agent answers when all that the container had
// is gone, and containerd does not wait so long. register waits for it.
func (p *Plugin) unregister(e end) {
	if e.name == "" || e.id == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending[e] != nil {
		return
	}
	gone := make(chan struct{})
	p.ending[e] = gone
	go func() {
		if err := p.agent.Unregister(e.name, e.id); err != nil && !errors.Is(err, agent.ErrNotFound) {
			p.log.Warn("the agent is not told of the end of a container; it notices that itself", "container", e.name, "err", err)
		}
		p.mu.Lock()
		delete(p.ending, e)
		p.mu.Unlock()
		close(gone)
	}()
}

// free waits until no container of a name is being unregistered. It returns false if ctx ends first.
func (p *Plugin) free(ctx context.Context, name string) bool {
	var all []chan struct{}
	p.mu.Lock()
	for e, gone := range p.ending {
		if e.name == name {
			all = append(all, gone)
		}
	}
	p.mu.Unlock()
	for _, gone := range all {
		select {
		case <-gone:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// takeBack unregisters those of some containers that no program has used: containerd has made them without
// this plugin, or not at all. A program that runs has been grafted by another plugin, or by the runtime.
func (p *Plugin) takeBack(all map[end]bool) {
	if len(all) == 0 {
		return
	}
	list, err := p.agent.Containers()
	if err != nil {
		p.log.Warn("containers may stay registered that are not made; the agent removes them after two minutes", "err", err)
		return
	}
	for i := range list {
		if e := (end{list[i].Name, list[i].ID}); list[i].PID == 0 && all[e] {
			p.unregister(e)
		}
	}
}
