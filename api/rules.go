package api

import "net/http"

// RulesChanged says what other rules have changed for a container that runs. Values are rules with their
// flags.
//
//	GET /v1/containers/NAME/rules  Rules
//	PUT /v1/containers/NAME/rules  RulesChanged
type RulesChanged struct {
	Withdrawn []string `json:"withdrawn,omitempty"` // are no longer in force
	Restored  []string `json:"restored,omitempty"`  // are in force again
	Added     []string `json:"added,omitempty"`     // are in force, and never were before
	// Moved are in force at another address or port of the host, or at the container's own address too, or
	// not any more. Servers have to bind again.
	Moved   []string `json:"moved,omitempty"`
	Changed []string `json:"changed,omitempty"` // have other sources
}

// Rules returns the rules of the container that are in force.
func (c *ContainerClient) Rules() (Rules, error) {
	var r Rules
	return r, c.do(http.MethodGet, "/rules", nil, &r)
}

// SetRules replaces the endpoints and the rules of the container. After an error nothing has changed.
func (c *ContainerClient) SetRules(r Rules) (changed RulesChanged, err error) {
	return changed, c.do(http.MethodPut, "/rules", r, &changed)
}
