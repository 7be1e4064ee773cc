package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agent "github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/oci"
	"github.com/tsugiki/tsugiki/shim"
)

// engine is what the agent calls containers that have grants.
const engine = "cri"

// graft registers a container, and returns what makes it a grafted one. nil: its pod's grant has nothing
// for it. After an error the container is not registered.
func (p *Plugin) graft(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	profile, err := profileOf(c)
	if err != nil {
		return nil, err
	}
	l := p.limits.Load()
	ctx, cancel := context.WithTimeout(context.Background(), l.answer)
	defer cancel()
	if profile != nil && profile.ListenerPath != "" && p.isRegistered(ctx, c.GetId()) {
		return nil, nil // by another tsugiki-nri of this node
	}
	r, err := registration(pod, c)
	if err != nil {
		return nil, err
	}
	r.GrantWithin = int(l.grant / time.Millisecond)
	answer, err := p.register(ctx, r)
	if err != nil || !answer.Graft {
		return nil, err
	}
	a, err := adjustment(c, profile, answer)
	if err != nil {
		p.unregister(end{answer.Name, r.ID})
		return nil, err
	}
	return a, nil
}

// registration says to the agent which container it is. containerd says who the pod is, and no author of
// a pod can change that. It returns an error for a container that this plugin cannot graft.
func registration(pod *api.PodSandbox, c *api.Container) (agent.Registration, error) {
	of := podOf(pod, c)
	r := agent.Registration{ID: c.GetId(), Name: oci.PodContainer(of), Engine: engine, Pod: of}
	network := false
	for _, n := range c.GetLinux().GetNamespaces() {
		switch n.GetType() {
		case string(specs.NetworkNamespace):
			network = true
		case string(specs.UserNamespace):
			return r, errors.New("NRI does not say which users of the node those of a user namespace are; leave hostUsers: false out, or give the pod the RuntimeClass tsugiki")
		}
	}
	switch {
	case r.ID == "" || r.Name == "" || of.UID == "":
		return r, errors.New("NRI does not say which container of which pod it is; give the pod the RuntimeClass tsugiki")
	case !network:
		return r, errors.New("a container in the host's network namespace cannot be grafted; leave hostNetwork or the annotation out")
	case twice(c.GetEnv()):
		return r, errors.New("the container has the variable LD_PRELOAD twice, and NRI changes one of them; write it once")
	case c.GetUser() == nil:
		return r, errors.New("this version of containerd does not say as which user the container runs; give the pod the RuntimeClass tsugiki")
	}
	r.UID, r.GID = int(c.GetUser().GetUid()), int(c.GetUser().GetGid())
	return r, nil
}

// twice tells whether an environment has LD_PRELOAD more than once.
func twice(env []string) bool {
	n := 0
	for _, e := range env {
		if strings.HasPrefix(e, preloadVariable+"=") {
			n++
		}
	}
	return n > 1
}

func podOf(pod *api.PodSandbox, c *api.Container) *agent.Pod {
	return &agent.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(), Container: c.GetName(), Sandbox: pod.GetId()}
}

// errLate says that the agent has not answered in time.
var errLate = errors.New("the agent has not answered in time; the kubelet tries again")

// register registers a container before ctx ends. An answer that comes too late is taken back: containerd does not wait
// for it.
func (p *Plugin) register(ctx context.Context, r agent.Registration) (agent.Registered, error) {
	if !p.free(ctx, r.Name) {
		return agent.Registered{}, errLate
	}
	type result struct {
		answer agent.Registered
		err    error
	}
	came := make(chan result, 1)
	go func() {
		answer, err := p.agent.Register(r)
		came <- result{answer, err}
	}()
	select {
	case got := <-came:
		if errors.Is(got.err, agent.ErrNoAgent) {
			got.err = fmt.Errorf("%w; the kubelet tries again", agent.ErrNoAgent)
		}
		return got.answer, got.err
	case <-ctx.Done():
	}
	go func() {
		got := <-came
		if got.err == nil && !got.answer.Graft || errors.Is(got.err, agent.ErrRefused) {
			return
		}
		p.takeBack(map[end]bool{{r.Name, r.ID}: true})
	}()
	return agent.Registered{}, errLate
}

// isRegistered tells whether the agent has a container, and says so in time.
func (p *Plugin) isRegistered(ctx context.Context, id string) bool {
	has := make(chan bool, 1)
	go func() {
		list, err := p.agent.Containers()
		has <- err == nil && slices.ContainsFunc(list, func(c agent.Container) bool { return c.ID == id })
	}()
	select {
	case is := <-has:
		return is
	case <-ctx.Done():
		return false
	}
}

const preloadVariable = "LD_PRELOAD"

// adjustment is what makes a container a grafted one.
func adjustment(c *api.Container, profile *specs.LinuxSeccomp, r agent.Registered) (*api.ContainerAdjustment, error) {
	composed, err := oci.Compose(profile, r)
	if err != nil {
		return nil, err
	}
	a := &api.ContainerAdjustment{}
	a.SetLinuxSeccompPolicy(api.FromOCILinuxSeccomp(composed))
	if r.Library == "" {
		return a, nil
	}
	var mounts []specs.Mount
	for _, m := range c.GetMounts() {
		mounts = append(mounts, specs.Mount{Destination: m.GetDestination(), Type: m.GetType()})
	}
	m, preload := oci.LibraryMount(r.Library, mounts)
	a.AddMount(&api.Mount{Destination: m.Destination, Type: m.Type, Source: m.Source, Options: m.Options})
	for _, e := range shim.Preload(c.GetEnv(), preload) {
		if value, is := strings.CutPrefix(e, preloadVariable+"="); is {
			a.AddEnv(preloadVariable, value)
			break // NRI has a variable once
		}
	}
	return a, nil
}
