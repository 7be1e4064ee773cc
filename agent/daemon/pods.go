package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// # Pods of Kubernetes
//
// With [kubernetes] grants, containers of pods have the rules of their pod's grant, and no others.
// A registration uses the grant of its moment. Once others can find the container, it looks whether
// the grant has been replaced meanwhile; a new grant, for its part, is in the table before it looks
// for containers. So no container misses a grant. One that cannot follow is not started, so none keeps
// rules of an old grant.

// engineOfPods is the engine of containers that have grants; see config.Engines.
const engineOfPods = "cri"

// errNoGrants says that this daemon has no use for grants.
var errNoGrants = errors.New("the agent does not follow grants; write [kubernetes] grants = true into its configuration and restart it")

// grantFor waits for what the pod of a container is given, and puts the rules into its
// registration. nil: the registration needs no grant. A container that its pod's grant does not
// name is left without rules.
func (d *Daemon) grantFor(ctx context.Context, r *api.Registration) (*api.Grant, error) {
	if d.grants == nil && r.GrantWithin > 0 {
		return nil, fmt.Errorf("%w: %w", rules.ErrNotAllowed, errNoGrants) // nobody has looked at the pod's capabilities
	}
	if d.grants == nil || r.Engine != engineOfPods || r.Rules != nil {
		return nil, nil
	}
	if r.GrantWithin > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.GrantWithin)*time.Millisecond)
		defer cancel()
	}
	g, err := d.grants.Await(ctx, r.Pod)
	if err != nil {
		return nil, err
	}
	if given, named := g.Containers[r.Pod.Container]; named {
		r.Rules = &given
	}
	return g, nil
}

// tellOf puts the outcome of a registration into the streams of events.
func (d *Daemon) tellOf(r *api.Registration, err error) {
	if d.grants == nil || r.Pod == nil || errors.Is(err, errAbandoned) {
		return
	}
	e := api.PodEvent{Type: api.PodRegistered, Pod: *r.Pod}
	if err != nil {
		e.Type, e.Reason = api.PodRefused, httpapi.OneLine(err)
	}
	d.grants.Tell(e)
}

// catchUp has a container follow the grant of its pod, if it was replaced since the container was
// registered. After an error the container may have rules that were withdrawn.
func (d *Daemon) catchUp(m *managed, used *api.Grant) error {
	if used == nil || d.grants.Get(m.Pod.UID) == used {
		return nil
	}
	f, err := d.followGrant(m)
	if err == nil && len(f.restart) > 0 {
		err = errors.New(f.because) // the next try has the new grant from its beginning
	}
	if err != nil {
		return fmt.Errorf("follow the new grant of the container's pod: %w", err)
	}
	return nil
}

// containersOf returns the containers of a pod, by name.
func (d *Daemon) containersOf(uid string) []*managed {
	return slices.DeleteFunc(d.all(), func(m *managed) bool { return m.Pod == nil || m.Pod.UID != uid })
}

// podNetwork returns the network namespace of a pod's containers, if one has begun.
func (d *Daemon) podNetwork(uid string) (cookie uint64, known bool) {
	for _, m := range d.containersOf(uid) {
		if cookie := m.Network(); cookie != 0 {
			return cookie, true
		}
	}
	return 0, false
}

// admitPod has the containers let in a pod whose rules name it. Before, nobody could know the pod's
// network namespace.
func (d *Daemon) admitPod(uid string) {
	for _, m := range d.all() {
		if m.NamesPod(uid) {
			m.letPodsIn()
		}
	}
}

// letPodsIn does the work of AdmitPods. After an error the pods stay out.
func (m *managed) letPodsIn() {
	if err := m.AdmitPods(); err != nil {
		m.log.Error("pods that rules name are not let in", "err", err)
	}
}

// followGrant has a container follow the present grant of its pod. Without one, and with a refusal,
// nothing is given to it.
func (d *Daemon) followGrant(m *managed) (followed, error) {
	m.following.Lock()
	defer m.following.Unlock()
	var want api.Rules
	if g := d.grants.Get(m.Pod.UID); g != nil && g.Refused == "" {
		want = g.Containers[m.Pod.Container]
	}
	m.RefuseNames(losesResolvers(m.Translate, want))
	f, err := m.follow(want)
	if want.Mode != "" && want.Mode != m.Mode {
		f.needsNew("mode: "+want.Mode, "the mode cannot change")
	}
	if retranslates(m.Translate, want) {
		f.needsNew(restartTranslate, "the translation cannot change")
	}
	return f, err
}

// follow has all containers of a pod follow its grant.
func (d *Daemon) follow(uid string) (api.Granted, error) {
	all := api.Granted{
		Withdrawn: map[string][]string{}, Restored: map[string][]string{}, Added: map[string][]string{}, Moved: map[string][]string{},
		Changed: map[string][]string{}, Restart: map[string][]string{}, Because: map[string]string{},
	}
	containers := d.containersOf(uid)
	for _, m := range containers {
		d.podNotes.note(m.Pod, m.ID)
	}
	err := d.followAsPod(uid)
	if errors.Is(err, errNoSandbox) {
		for _, m := range containers {
			all.Restart[m.Pod.Container] = []string{restartSlow}
		}
		err = nil
	}
	errs := []error{err}
	for _, m := range containers {
		f, err := d.followGrant(m)
		errs = append(errs, err)
		if f.because != "" {
			all.Because[m.Pod.Container] = f.because
		}
		for into, list := range map[*map[string][]string][]string{
			&all.Withdrawn: f.Withdrawn, &all.Restored: f.Restored, &all.Added: f.Added, &all.Moved: f.Moved, &all.Changed: f.Sources, &all.Restart: f.restart,
		} {
			if len(list) > 0 {
				(*into)[m.Pod.Container] = append((*into)[m.Pod.Container], list...)
			}
		}
	}
	return all, errors.Join(errs...)
}

func (d *Daemon) podRoutes() httpapi.Routes {
	routes := httpapi.Routes{
		"PUT /v1/pods/{uid}":    d.handlePutGrant,
		"DELETE /v1/pods/{uid}": d.handleDeleteGrant,
		"GET /v1/pods":          d.handlePods,
		"GET /v1/pods/events":   d.handlePodEvents,
	}
	if d.grants == nil {
		for pattern := range routes {
			routes[pattern] = func(w http.ResponseWriter, _ *http.Request) {
				httpapi.Answer(w, http.StatusConflict, api.Failure{Error: errNoGrants.Error()})
			}
		}
	}
	return routes
}

func (d *Daemon) handlePutGrant(w http.ResponseWriter, r *http.Request) {
	var g api.Grant
	err := httpapi.ReadObject(http.MaxBytesReader(w, r.Body, registrationMax), &g)
	if err == nil {
		err = d.grants.Put(r.PathValue("uid"), g)
	}
	var answer api.Granted
	if err == nil {
		answer, err = d.follow(r.PathValue("uid"))
	}
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	httpapi.Answer(w, http.StatusOK, answer)
}

func (d *Daemon) handleDeleteGrant(w http.ResponseWriter, r *http.Request) {
	uid := r.PathValue("uid")
	had := d.grants.Delete(uid)
	if !had && len(d.containersOf(uid)) == 0 {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	if _, err := d.follow(uid); err != nil {
		httpapi.Refuse(w, err)
		return
	}
	httpapi.AnswerStatus(w, http.StatusNoContent)
}

func (d *Daemon) handlePods(w http.ResponseWriter, _ *http.Request) {
	pods := map[string]*api.PodState{}
	for uid, g := range d.grants.All() {
		pods[uid] = &api.PodState{UID: uid, Namespace: g.Namespace, Name: g.Name, Grant: g}
	}
	for _, m := range d.all() {
		if m.Pod == nil {
			continue
		}
		p := pods[m.Pod.UID]
		if p == nil {
			p = &api.PodState{UID: m.Pod.UID, Namespace: m.Pod.Namespace, Name: m.Pod.Name}
			pods[p.UID] = p
		}
		if p.Running == nil {
			p.Running = map[string]api.Rules{}
		}
		has := m.Rules()
		has.Endpoints = append(has.Endpoints, m.FormerEndpoints()...)
		p.Running[m.Pod.Container] = has
	}
	list := slices.SortedFunc(maps.Values(pods), func(a, b *api.PodState) int { return strings.Compare(a.UID, b.UID) })
	if list == nil {
		list = []*api.PodState{}
	}
	httpapi.Answer(w, http.StatusOK, list)
}

// handlePodEvents answers with a line for each event, until the caller goes or reads too slowly.
func (d *Daemon) handlePodEvents(w http.ResponseWriter, r *http.Request) {
	s, err := d.grants.Watch()
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	defer s.Close()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusOK)
	if err := errors.Join(out.SetReadDeadline(time.Time{}), out.SetWriteDeadline(time.Time{})); err != nil {
		return
	}
	for lines := json.NewEncoder(w); ; {
		select {
		case e, more := <-s.Events:
			if !more || lines.Encode(e) != nil || out.Flush() != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
