package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
)

// Pod says which container of which pod of Kubernetes a container is. The engine says it, and no
// author of a pod can change it.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Container string `json:"container"`
	// Sandbox is the id of the pod's sandbox, by which network plugins know the pod; empty: the
	// engine does not say it.
	Sandbox string `json:"sandbox,omitempty"`
}

// Grant says what the containers of a pod are given.
//
//	PUT /v1/pods/UID  Granted
type Grant struct {
	// Namespace and Name are the pod's. A container that says otherwise is refused.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Containers are the rules by the name of the container. A container without an entry has no
	// rules, and is left as it is.
	Containers map[string]Rules `json:"containers,omitempty"`
	// Slow has all packets of the pod, and to it, go through the bridge or the switch, as tsugiki
	// forward off has it. It is for pods that tsugiki-cni has attached.
	Slow bool `json:"slow,omitempty"`
	// Charge is ChargeCount, or empty: as the agent's configuration says.
	Charge string `json:"charge,omitempty"`
	// Refused says in one line why no container of the pod may start; empty: they may.
	Refused string `json:"refused,omitempty"`
}

// ChargeCount has CPU time that others spend for a pod's containers be counted, and not taken.
const ChargeCount = "count"

// Granted says what became of a grant in containers of the pod that run. Keys are the names of
// containers in the pod, values are rules with their flags.
type Granted struct {
	Withdrawn map[string][]string `json:"withdrawn,omitempty"` // are no longer in force
	Restored  map[string][]string `json:"restored,omitempty"`  // are in force again
	Added     map[string][]string `json:"added,omitempty"`     // are in force, and never were before
	Moved     map[string][]string `json:"moved,omitempty"`     // see RulesChanged
	Changed   map[string][]string `json:"changed,omitempty"`   // have other sources
	// Restart are rules that need a new container. "directForward: false" is among them if the grant
	// says Slow and no container of the pod has told which sandbox the pod has.
	Restart map[string][]string `json:"restart,omitempty"`
	// Because has the reason for the first of Restart, in one line.
	Because map[string]string `json:"because,omitempty"`
	// Failed is what could not be put in force, and may be another time. Nothing of it is in force.
	Failed []GrantFailure `json:"failed,omitempty"`
}

// GrantFailure is a part of a grant that could not be put in force.
type GrantFailure struct {
	Container string `json:"container,omitempty"` // empty: the pod as a whole
	// Rule is the rule with its flag, or what else of the grant it is. If it is empty, rules may be in force that are not
	// granted any more, or are not written down: Reason says which.
	Rule   string `json:"rule,omitempty"`
	Reason string `json:"reason"` // one line
}

// PodState is a pod that has a grant or containers.
//
//	GET /v1/pods  [PodState...], by UID
type PodState struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Grant is missing if there is none.
	Grant *Grant `json:"grant,omitempty"`
	// Running are the rules that containers of the pod have, by their names, with the endpoints of ingress
	// rules that they have had, too, the first of them first.
	Running map[string]Rules `json:"running,omitempty"`
}

// What a PodEvent tells.
const (
	PodWaiting    = "waiting"    // a container of a pod without a grant is about to start
	PodRefused    = "refused"    // a container of a pod was not registered
	PodRegistered = "registered" // a container of a pod was registered
	PodReady      = "ready"      // the stream has begun: later events will be in it
)

// PodEvent tells what happens to a container of a pod.
//
//	GET /v1/pods/events  a line of JSON for each
type PodEvent struct {
	Type   string `json:"type"`
	Pod    Pod    `json:"pod"`
	Reason string `json:"reason,omitempty"` // of PodRefused: one line
}

// PutGrant says what the containers of a pod are given.
func (c *Client) PutGrant(uid string, g Grant) (answer Granted, err error) {
	return answer, c.Do(http.MethodPut, "/v1/pods/"+url.PathEscape(uid), g, &answer)
}

// DeleteGrant takes away all that a pod was given. It returns ErrNotFound if there was nothing.
func (c *Client) DeleteGrant(uid string) error {
	return c.Do(http.MethodDelete, "/v1/pods/"+url.PathEscape(uid), nil, nil)
}

// Pods returns the pods that have a grant or containers.
func (c *Client) Pods() ([]PodState, error) {
	var list []PodState
	return list, c.Do(http.MethodGet, "/v1/pods", nil, &list)
}

// PodEvents calls a function with each event of pods from now on, first with a PodReady. It returns
// when ctx ends, or with an error when the daemon ends or gives up on a slow reader.
func (c *Client) PodEvents(ctx context.Context, each func(PodEvent)) error {
	body, err := c.open(ctx, "/v1/pods/events")
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var e PodEvent
		if err := lines.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		each(e)
	}
}
