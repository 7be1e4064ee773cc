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
// registered. After an error the container may have rules that were withdrawn. m is nil if the container has no rules.
func (d *Daemon) catchUp(m *managed, pod *api.Pod, used *api.Grant) error {
	if used == nil || d.grants.Get(pod.UID) == used {
		return nil
	}
	if m == nil {
		if len(d.bareNeeds(pod.UID, pod.Container)) > 0 {
			return errBare // as above: the next try has them
		}
		return nil
	}
	f := d.followGrant(m)
	var errs []error
	if len(f.restart) > 0 {
		errs = append(errs, errors.New(f.because)) // the next try has the new grant from its beginning
	}
	if f.stays != nil {
		errs = append(errs, f.stays)
	}
	for _, failed := range f.failed {
		errs = append(errs, errors.New(failed.Reason))
	}
	if err := errors.Join(errs...); err != nil {
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
func (d *Daemon) followGrant(m *managed) followed {
	m.following.Lock()
	defer m.following.Unlock()
	want := d.grantedTo(m.Pod.UID, m.Pod.Container)
	f := m.follow(want)
	if want.Mode != "" && want.Mode != m.Mode {
		f.needsNew("mode: "+want.Mode, "the mode cannot change")
	}
	if retranslates(m.Translate, want) {
		f.needsNew(restartTranslate, "the translation cannot change")
	}
	return f
}

// grantedTo returns the rules that a container of a pod is given at present.
func (d *Daemon) grantedTo(uid, container string) (none api.Rules) {
	if g := d.grants.Get(uid); g != nil && g.Refused == "" {
		return g.Containers[container]
	}
	return none
}

// follow has all containers of a pod follow its grant. After an error something may be in force that is not granted any
// more, so whoever gives grants has to try again at once; others may not look at Failed.
func (d *Daemon) follow(uid string) (api.Granted, error) {
	all := api.Granted{
		Withdrawn: map[string][]string{}, Restored: map[string][]string{}, Added: map[string][]string{}, Moved: map[string][]string{},
		Changed: map[string][]string{}, Restart: map[string][]string{}, Because: map[string]string{},
	}
	fails := func(container string, failed api.GrantFailure) {
		failed.Container = container
		all.Failed = append(all.Failed, failed)
	}
	d.noteChange(uid)
	containers := d.containersOf(uid)
	for _, m := range containers {
		if err := d.podNotes.noteFormer(m.Pod, m.ID); err != nil {
			fails(m.Pod.Container, api.GrantFailure{Reason: httpapi.OneLine(err)})
		}
	}
	bare := d.podNotes.bareOf(uid) // before the note of a pod without a grant goes
	var errs []error
	switch err := d.followAsPod(uid); {
	case errors.Is(err, errNoSandbox):
		for _, m := range containers {
			all.Restart[m.Pod.Container] = []string{restartSlow}
		}
	case err != nil:
		errs = append(errs, err)
	}
	for _, name := range bare {
		if list := d.bareNeeds(uid, name); len(list) > 0 {
			all.Restart[name], all.Because[name] = list, errBare.Error()
		}
	}
	for _, m := range containers {
		f := d.followGrant(m)
		for _, failed := range f.failed {
			fails(m.Pod.Container, failed)
		}
		if f.stays != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", m.Pod.Container, f.stays))
		}
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
	if len(all.Failed) == 0 && len(errs) == 0 {
		errs = append(errs, d.forgetUngranted(uid))
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
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	uid := r.PathValue("uid")
	orphans := d.orphansOf(uid) // before: one that is taken over meanwhile is among the containers then
	answer, err := d.follow(uid)
	if err != nil {
		httpapi.Refuse(w, fmt.Errorf("take away what is not granted to the pod: %s", httpapi.OneLine(err))) // the grant is none that is wrong
		return
	}
	answer.Failed = append(orphans, answer.Failed...)
	httpapi.Answer(w, http.StatusOK, answer)
}

func (d *Daemon) handleDeleteGrant(w http.ResponseWriter, r *http.Request) {
	uid := r.PathValue("uid")
	had := d.grants.Delete(uid)
	if !had && len(d.containersOf(uid)) == 0 && !d.podNotes.has(uid) {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	answer, err := d.follow(uid)
	if err == nil && len(answer.Failed) > 0 {
		err = fmt.Errorf("container %s: %s", answer.Failed[0].Container, answer.Failed[0].Reason)
	}
	if err != nil {
		httpapi.Refuse(w, fmt.Errorf("take away what the pod was given: %s", httpapi.OneLine(err)))
		return
	}
	httpapi.AnswerStatus(w, http.StatusNoContent)
}

func (d *Daemon) handlePods(w http.ResponseWriter, _ *http.Request) {
	pods := d.podNotes.pods()
	for uid, g := range d.grants.All() {
		knownPod(pods, uid, g.Namespace, g.Name).Grant = g
	}
	for _, m := range d.all() {
		if m.Pod == nil {
			continue
		}
		p := knownPod(pods, m.Pod.UID, m.Pod.Namespace, m.Pod.Name)
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
