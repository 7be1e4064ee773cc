package nri

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/containerd/nri/pkg/api"

	agent "github.com/tsugiki/tsugiki/api"
)

// Configure notes how long containerd waits for an answer.
func (p *Plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	l := limitsFor(p.asked())
	p.limits.Store(l)
	p.log.Info("connected to NRI", "runtime", runtime, "version", version, "answers within", l.answer)
	return 0, nil // all that the plugin has functions for
}

// CreateContainer says how containerd is to make a container.
func (p *Plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (a *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	err = p.guarded(pod, func() (err error) {
		a, err = p.graft(pod, c)
		return err
	})
	if err != nil {
		a = nil
		p.log.Warn("container refused", "pod", pod.GetNamespace()+"/"+pod.GetName(), "container", c.GetName(), "err", err)
	}
	return a, nil, err
}

// StopContainer hears of a container that has ended, or that was not made.
func (p *Plugin) StopContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.RemoveContainer(context.Background(), pod, c)
}

// RemoveContainer hears of a container that is removed. If the agent cannot be told, it notices the end
// of the container itself, and containerd need not wait for that.
func (p *Plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	_ = p.guarded(pod, func() error { // nothing of these fails
		p.unregister(endOf(pod, c))
		return nil
	})
	return nil
}

// Synchronize hears of all containers, when the plugin has connected.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	byID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	without := map[end]bool{}
	for _, c := range containers {
		pod := byID[c.GetPodSandboxId()]
		if pod == nil || c.GetLinux().GetSeccompPolicy().GetListenerPath() != "" {
			continue
		}
		_ = p.guarded(pod, func() error {
			without[endOf(pod, c)] = true
			return nil
		})
	}
	go p.takeBack(without)
	return nil, nil
}

// guarded calls a function for a container of a pod that asks to be grafted. Its error is one line, and
// wraps none that NRI takes for a fault of the connection.
func (p *Plugin) guarded(pod *api.PodSandbox, do func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			p.log.Error("a fault of tsugiki-nri", "cause", cause, "stack", string(debug.Stack()))
			err = errors.New("tsugiki: a fault of tsugiki-nri, whose log says more")
		}
	}()
	asks, err := asks(pod)
	if err == nil && asks {
		err = do()
	}
	if err != nil {
		return errors.New("tsugiki: " + strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// asks tells whether a pod asks by the annotation to be grafted. Of a pod with a RuntimeClass, the
// runtime is asked, and not this plugin.
func asks(pod *api.PodSandbox) (bool, error) {
	if pod.GetRuntimeHandler() != "" {
		return false, nil
	}
	switch v := pod.GetAnnotations()[agent.AnnotationGraft]; v {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, fmt.Errorf("the annotation %s of the pod is %.40q; write \"true\", or leave it out", agent.AnnotationGraft, v)
	}
}
