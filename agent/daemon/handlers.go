package daemon

import (
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/shim"
)

// registrationMax is the largest registration, in bytes: annotations may be many.
const registrationMax = 1 << 20

// serveAPI serves the requests of package api and those for endpoints. It serves metrics if the
// configuration has an address for them.
func (d *Daemon) serveAPI() (*httpapi.Server, error) {
	if addr := d.config.Load().Metrics.Listen; addr != "" {
		var err error
		if d.metrics, err = d.serveMetrics(addr); err != nil {
			return nil, err
		}
	}
	s, err := httpapi.Listen(api.SocketIn(d.runDir), httpapi.New(d.routes(), d.log))
	if err != nil {
		return nil, err
	}
	s.Guard(d.files, d.log, d.fail)
	s.Start()
	return s, nil
}

// routes returns the routes of docs/API.md.
func (d *Daemon) routes() httpapi.Routes {
	endpoints := httpapi.EndpointRoutes(func(name string) httpapi.Container {
		if m := d.find(name); m != nil {
			return m
		}
		return nil // and not a *managed that is nil
	})
	routes := httpapi.Routes{
		"POST /v1/containers":                    d.handleRegister,
		"GET /v1/containers":                     d.handleList,
		"GET /v1/containers/{container}":         d.handleShow,
		"DELETE /v1/containers/{container}":      d.handleRemove,
		"GET /v1/containers/{container}/trace":   d.handleTrace,
		"GET /v1/containers/{container}/denials": d.handleDenials,
		"GET /v1/stats":                          d.handleStats,
		"GET /metrics":                           d.metricsHandler().ServeHTTP,
	}
	maps.Copy(routes, endpoints)
	maps.Copy(routes, httpapi.RulesRoutes(func(name string) httpapi.Ruled {
		if m := d.find(name); m != nil {
			return m
		}
		return nil
	}))
	maps.Copy(routes, httpapi.TranslationRoutes(func(name string) httpapi.Translating {
		if m := d.find(name); m != nil {
			return m
		}
		return nil
	}))
	maps.Copy(routes, d.chargeRoutes())
	maps.Copy(routes, d.podRoutes())
	maps.Copy(routes, d.guestRoutes())
	return routes
}

// The states of a container.
const (
	stateCreated = "created"
	stateRunning = "running"
)

func (d *Daemon) handleRegister(w http.ResponseWriter, r *http.Request) {
	var reg api.Registration
	if err := httpapi.ReadObject(http.MaxBytesReader(w, r.Body, registrationMax), &reg); err != nil {
		httpapi.Refuse(w, err)
		return
	}
	m, err := d.register(r.Context(), reg)
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	if m == nil {
		httpapi.Answer(w, http.StatusOK, api.Registered{Name: reg.Name})
		return
	}
	result, err := m.registered()
	if err != nil {
		httpapi.Refuse(w, err)
		return
	}
	httpapi.Answer(w, http.StatusCreated, result)
}

func (m *managed) registered() (api.Registered, error) {
	o := m.FilterOptions()
	r := api.Registered{
		Graft: true, Name: m.Name, Token: m.Token,
		Listener: filepath.Join(m.d.runDir, api.ListenerSocket),
		Filter: api.Filter{
			Mode: o.Mode.String(), Datagrams: o.Datagrams, AFGraft: o.AFGraft, Untrapped: o.Untrapped, Accepts: o.Accepts,
			Translated: o.Translated,
		},
	}
	r.Cgroup = m.ProgramsGroup()
	if m.Preloads() {
		library, err := programs.Find(shim.LibraryFile)
		if err != nil {
			return r, err
		}
		r.Library = strings.TrimSuffix(library, "/"+shim.LibraryFile)
	}
	return r, nil
}

func (d *Daemon) handleList(w http.ResponseWriter, _ *http.Request) {
	list := []api.Container{}
	for _, m := range d.all() {
		list = append(list, m.show())
	}
	httpapi.Answer(w, http.StatusOK, list)
}

func (d *Daemon) handleShow(w http.ResponseWriter, r *http.Request) {
	m := d.find(r.PathValue("container"))
	if m == nil {
		httpapi.Refuse(w, httpapi.ErrNoContainer)
		return
	}
	httpapi.Answer(w, http.StatusOK, m.show())
}

func (d *Daemon) handleRemove(w http.ResponseWriter, r *http.Request) {
	name, id := r.PathValue("container"), r.URL.Query().Get("id")
	if was, err := d.removePending(name, id); was {
		if err != nil {
			httpapi.Refuse(w, err)
			return
		}
		httpapi.AnswerStatus(w, http.StatusNoContent)
		return
	}
	// Another container may have the name by now.
	err := httpapi.ErrNoContainer
	if m := d.find(name); m != nil && (id == "" || id == m.ID) && (m.isGuest() || !isAbout(r)) {
		if m.Configured {
			httpapi.Refuse(w, errConfigured)
			return
		}
		err = d.remove(m, "container is removed")
	}
	// Another caller may be removing it. This caller too wants to know when it is gone.
	if l := d.leavingIs(name); l != nil && (id == "" || id == l.id) {
		select {
		case <-l.done:
		case <-r.Context().Done():
		}
	}
	cause := d.causeOf(id)
	switch {
	case err != nil && (cause == "" || !errors.Is(err, httpapi.ErrNoContainer)):
		httpapi.Refuse(w, err)
	case cause != "":
		httpapi.Answer(w, http.StatusOK, api.Removed{Cause: cause})
	default:
		httpapi.AnswerStatus(w, http.StatusNoContent)
	}
}
