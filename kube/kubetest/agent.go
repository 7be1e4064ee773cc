package kubetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tsugiki/tsugiki/api"
)

// ErrAgentGone is what calls of an agent return that was restarted.
var ErrAgentGone = errors.New("the agent is gone")

// Agent stands for the agent of a node: it keeps grants, has no containers but those that a test
// says, and follows a new grant for them as the real one does.
type Agent struct {
	mu         sync.Mutex // guards what follows
	grants     map[string]api.Grant
	running    map[string]api.PodState // pods with containers, by UID
	streams    []chan api.PodEvent
	containers []api.Container
	puts       int
	refuse     func(api.Grant) error // nil: the agent refuses nothing
	fails      string                // rules that begin so cannot be put in force; empty: all can
	bare       map[string][]string   // containers that began without rules, by the pod's UID
	changed    chan struct{}         // closed at each change
}

// NewAgent makes one without grants.
func NewAgent() *Agent {
	return &Agent{grants: map[string]api.Grant{}, running: map[string]api.PodState{}, bare: map[string][]string{}, changed: make(chan struct{})}
}

func (a *Agent) change() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// PutGrant implements node.Agent. Rules that a running container has and that are not granted any
// more are withdrawn, and others are added, but for rules with +own, and those of a container that began without
// rules: they need a new container. Rules whose endpoint has changed are moved.
func (a *Agent) PutGrant(uid string, g api.Grant) (api.Granted, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		if err := a.refuse(g); err != nil {
			return api.Granted{}, err
		}
	}
	a.grants[uid] = g
	a.puts++
	a.change()
	return a.follow(uid, g), nil
}

// follow has the containers of a pod follow a grant. The caller holds mu.
func (a *Agent) follow(uid string, g api.Grant) api.Granted {
	answer := api.Granted{
		Withdrawn: map[string][]string{}, Added: map[string][]string{}, Moved: map[string][]string{},
		Restart: map[string][]string{}, Because: map[string]string{},
	}
	for _, c := range a.bare[uid] {
		if list := append(slices.Clone(g.Containers[c].Ingress), g.Containers[c].Egress...); len(list) > 0 {
			answer.Restart[c], answer.Because[c] = list, "the container began without rules"
		}
	}
	p, found := a.running[uid]
	if !found {
		return answer
	}
	before := p.Running
	p.Running = maps.Clone(before) // of which others may have the map
	a.running[uid] = p
	for c, had := range before {
		now := g.Containers[c]
		for _, r := range append(had.Ingress, had.Egress...) {
			if !slices.Contains(now.Ingress, r) && !slices.Contains(now.Egress, r) {
				answer.Withdrawn[c] = append(answer.Withdrawn[c], r)
			}
		}
		take := func(has, now []string) (next []string) {
			for _, r := range now {
				switch {
				case slices.Contains(has, r):
					if definition(had.Endpoints, r) != definition(g.Containers[c].Endpoints, r) {
						answer.Moved[c] = append(answer.Moved[c], r)
					}
				case strings.Contains(r, "+own"):
					answer.Restart[c], answer.Because[c] = append(answer.Restart[c], r), "it needs accept(2) to be trapped"
					continue
				case a.fails != "" && strings.HasPrefix(r, a.fails):
					answer.Failed = append(answer.Failed, api.GrantFailure{Container: c, Rule: r, Reason: "the port is taken"})
					continue
				default:
					answer.Added[c] = append(answer.Added[c], r)
				}
				next = append(next, r)
			}
			return next
		}
		p.Running[c] = api.Rules{Mode: had.Mode, Endpoints: now.Endpoints, Ingress: take(had.Ingress, now.Ingress), Egress: take(had.Egress, now.Egress)}
	}
	return answer
}

// definition returns the definition of a rule's endpoint.
func definition(endpoints []string, rule string) string {
	_, name, _ := strings.Cut(rule, "=")
	for _, e := range endpoints {
		if strings.HasPrefix(e, name+" ") {
			return e
		}
	}
	return ""
}

// Refuse has a function say which grants the agent refuses; nil: none.
func (a *Agent) Refuse(refuse func(api.Grant) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

// Fail makes the agent answer that it cannot put some rules in force: those that begin with a text. With an
// empty text it puts all rules in force.
func (a *Agent) Fail(rules string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = rules
}

// DeleteGrant implements node.Agent.
func (a *Agent) DeleteGrant(uid string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, found := a.grants[uid]; !found {
		return api.ErrNotFound
	}
	delete(a.grants, uid)
	a.change()
	return nil
}

// Pods implements node.Agent.
func (a *Agent) Pods() ([]api.PodState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pods := maps.Clone(a.running)
	for uid, g := range a.grants {
		p := pods[uid]
		p.UID, p.Namespace, p.Name, p.Grant = uid, g.Namespace, g.Name, &g
		pods[uid] = p
	}
	return slices.Collect(maps.Values(pods)), nil
}

// Containers implements node.Agent. There are those of Run.
func (a *Agent) Containers() ([]api.Container, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.containers), nil
}

// Run has containers run, and no others.
func (a *Agent) Run(list ...api.Container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.containers = list
	a.change()
}

// PodEvents implements node.Agent.
func (a *Agent) PodEvents(ctx context.Context, each func(api.PodEvent)) error {
	events := make(chan api.PodEvent, 4096)
	events <- api.PodEvent{Type: api.PodReady}
	a.mu.Lock()
	a.streams = append(a.streams, events)
	a.change()
	a.mu.Unlock()
	for {
		select {
		case e, more := <-events:
			if !more {
				return ErrAgentGone
			}
			each(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Tell puts an event into all streams.
func (a *Agent) Tell(e api.PodEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		s <- e
	}
}

// Register is a container of a pod that asks for its grant. It returns what it is given, and false
// if there is no grant yet; then it waits.
func (a *Agent) Register(pod api.Pod) (api.Grant, bool) {
	a.mu.Lock()
	g, found := a.grants[pod.UID]
	a.mu.Unlock()
	e := api.PodEvent{Type: api.PodWaiting, Pod: pod}
	switch {
	case found && g.Refused != "":
		e.Type, e.Reason = api.PodRefused, g.Refused
	case found:
		e.Type = api.PodRegistered
		a.mu.Lock()
		a.bare[pod.UID] = slices.DeleteFunc(a.bare[pod.UID], func(c string) bool { return c == pod.Container })
		if _, named := g.Containers[pod.Container]; !named {
			a.bare[pod.UID] = append(a.bare[pod.UID], pod.Container)
			a.mu.Unlock()
			break
		}
		p := a.running[pod.UID]
		p.UID, p.Namespace, p.Name = pod.UID, pod.Namespace, pod.Name
		p.Running = maps.Clone(p.Running)
		if p.Running == nil {
			p.Running = map[string]api.Rules{}
		}
		p.Running[pod.Container] = g.Containers[pod.Container]
		a.running[pod.UID] = p
		a.mu.Unlock()
	}
	a.Tell(e)
	return g, found
}

// Restart ends all streams and forgets all grants. Containers run on.
func (a *Agent) Restart() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		close(s)
	}
	a.streams, a.grants = nil, map[string]api.Grant{}
	a.change()
}

// Grant returns the grant of a pod.
func (a *Agent) Grant(uid string) (api.Grant, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g, found := a.grants[uid]
	return g, found
}

// Puts returns how often a grant was put.
func (a *Agent) Puts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.puts
}

// Changed returns a channel that is closed at the next change of a grant.
func (a *Agent) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}
