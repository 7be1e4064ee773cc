package daemon

import (
	"errors"
	"maps"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// # Containers of pods without rules
//
// A container that its pod's grant does not name begins bare: it has neither a filter nor a cgroup of ours, and no
// record, and nobody tells the daemon when it ends. No later grant can give it rules. Who gives grants is told so with
// each of them, until a container of its name is registered that has rules.

// errBare says why a container has none of the rules of its pod's grant.
var errBare = errors.New("the container began without rules, so nothing of it is grafted; restart it to have these rules")

// bareOf returns the names of a pod's containers that began without rules.
func (n *podNotes) bareOf(uid string) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.byUID[uid]
	if of == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(of.Containers)) {
		if of.Containers[name].Bare {
			names = append(names, name)
		}
	}
	return names
}

// bareNeeds returns the rules, as texts with their flags, that a container without rules is given at present.
func (d *Daemon) bareNeeds(uid, container string) (list []string) {
	want := d.grantedTo(uid, container)
	wanted, err := rules.Parse(want)
	if err != nil {
		return nil // the grants' table has checked it
	}
	for _, o := range missing(&wanted, &rules.Rules{}) {
		list = append(list, o.text)
	}
	if retranslates(nil, want) {
		list = append(list, restartTranslate)
	}
	return list
}

// knownPod returns what is known of a pod in a list, of which it may be new.
func knownPod(pods map[string]*api.PodState, uid, namespace, name string) *api.PodState {
	p := pods[uid]
	if p == nil {
		p = &api.PodState{UID: uid, Namespace: namespace, Name: name}
		pods[uid] = p
	}
	return p
}
