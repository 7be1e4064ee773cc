package agent

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/shim"
)

// registrationMax is the largest registration, in bytes: annotations may be many.
const registrationMax = 1 << 20

// serveAPI serves the messages of package api, and those of endpoints; and metrics,
// if the configuration says where.
func (d *Daemon) serveAPI() (*server, error) {
	if addr := d.config.Load().Metrics.Listen; addr != "" {
		var err error
		if d.metrics, err = d.serveMetrics(addr); err != nil {
			return nil, err
		}
	}
	s, err := newServer(api.SocketIn(d.runDir), newAPI(d.routes(), d.log))
	if err != nil {
		return nil, err
	}
	s.listener = d.guard(s.listener)
	s.start()
	return s, nil
}

// routes are those of docs/API.md.
func (d *Daemon) routes() []route {
	endpoints := endpointRoutes(func(name string) *Container {
		if m := d.find(name); m != nil {
			return m.Container
		}
		return nil
	})
	return append(append(endpoints, d.chargeRoutes()...),
		route{"POST /v1/containers", d.handleRegister},
		route{"GET /v1/containers", d.handleList},
		route{"GET /v1/containers/{container}", d.handleShow},
		route{"DELETE /v1/containers/{container}", d.handleRemove},
		route{"GET /v1/containers/{container}/trace", d.handleTrace},
		route{"GET /v1/stats", d.handleStats},
		route{"GET /metrics", d.metricsHandler().ServeHTTP},
	)
}

// What a container can be.
const (
	stateCreated = "created"
	stateRunning = "running"
)

func (d *Daemon) handleRegister(w http.ResponseWriter, r *http.Request) {
	var reg api.Registration
	if err := readObject(http.MaxBytesReader(w, r.Body, registrationMax), &reg); err != nil {
		refuse(w, err)
		return
	}
	m, err := d.register(r.Context(), reg)
	if err != nil {
		refuse(w, err)
		return
	}
	if m == nil {
		answer(w, http.StatusOK, api.Registered{Name: reg.Name})
		return
	}
	result, err := m.registered()
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusCreated, result)
}

func (m *managed) registered() (api.Registered, error) {
	o := m.FilterOptions()
	r := api.Registered{
		Graft: true, Name: m.Name, Token: m.Token,
		Listener: filepath.Join(m.d.runDir, api.ListenerSocket),
		Filter:   api.Filter{Mode: o.Mode.String(), Datagrams: o.Datagrams, AFGraft: o.AFGraft},
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
	answer(w, http.StatusOK, list)
}

func (d *Daemon) handleShow(w http.ResponseWriter, r *http.Request) {
	m := d.find(r.PathValue("container"))
	if m == nil {
		refuse(w, errNoContainer)
		return
	}
	answer(w, http.StatusOK, m.show())
}

func (d *Daemon) handleRemove(w http.ResponseWriter, r *http.Request) {
	name, id := r.PathValue("container"), r.URL.Query().Get("id")
	// The name may be another's by now.
	err := errNoContainer
	if m := d.find(name); m != nil && (id == "" || id == m.ID) {
		err = d.remove(m, "container is removed")
	}
	// Somebody else may be removing it: who asks for that wants to know when it is gone.
	if l := d.leavingIs(name); l != nil && (id == "" || id == l.id) {
		select {
		case <-l.done:
		case <-r.Context().Done():
		}
	}
	cause := d.causeOf(id)
	switch {
	case err != nil && (cause == "" || !errors.Is(err, errNoContainer)):
		refuse(w, err)
	case cause != "":
		answer(w, http.StatusOK, api.Removed{Cause: cause})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
