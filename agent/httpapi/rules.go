package httpapi

import (
	"net/http"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// rulesMax is the largest body with rules, in bytes.
const rulesMax = 1 << 20

// Ruled is the part of package container's Container that shows and replaces its rules.
type Ruled interface {
	Rules() api.Rules
	ReadRules(t api.Rules) (rules.Rules, error)
	SetRules(want *rules.Rules) (container.Changed, error)
}

// RulesRoutes returns the requests for the rules of the containers that find returns. find returns nil
// if there is no such container.
func RulesRoutes(find func(name string) Ruled) Routes {
	return Routes{
		"GET /v1/containers/{container}/rules": func(w http.ResponseWriter, r *http.Request) {
			c := find(r.PathValue("container"))
			if c == nil {
				Refuse(w, ErrNoContainer)
				return
			}
			Answer(w, http.StatusOK, c.Rules())
		},
		"PUT /v1/containers/{container}/rules": func(w http.ResponseWriter, r *http.Request) {
			changed, err := putRules(find(r.PathValue("container")), w, r)
			if err != nil {
				Refuse(w, err)
				return
			}
			Answer(w, http.StatusOK, changed)
		},
	}
}

func putRules(c Ruled, w http.ResponseWriter, r *http.Request) (api.RulesChanged, error) {
	if c == nil {
		return api.RulesChanged{}, ErrNoContainer
	}
	var t api.Rules
	if err := ReadObject(http.MaxBytesReader(w, r.Body, rulesMax), &t); err != nil {
		return api.RulesChanged{}, err
	}
	want, err := c.ReadRules(t)
	if err != nil {
		return api.RulesChanged{}, err
	}
	is, err := c.SetRules(&want)
	return api.RulesChanged{Withdrawn: is.Withdrawn, Restored: is.Restored, Added: is.Added, Moved: is.Moved, Changed: is.Sources}, err
}
