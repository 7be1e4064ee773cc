package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/tsugiki/tsugiki/api"
)

// PodAgent is the part of an agent that tsugiki-kube calls: an Agent, or an api.Client.
type PodAgent interface {
	PutGrant(uid string, g api.Grant) (api.Granted, error)
	DeleteGrant(uid string) error
	Pods() ([]api.PodState, error)
	PodEvents(ctx context.Context, each func(api.PodEvent)) error
	Containers() ([]api.Container, error)
}

// grantMax is more than the longest grant, in bytes.
const grantMax = 1 << 20

// Handler answers requests of the agent's API about pods, as docs/API.md has them.
func Handler(p PodAgent) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("PUT /v1/pods/{uid}", func(w http.ResponseWriter, r *http.Request) {
		var g api.Grant
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, grantMax)).Decode(&g)
		var answer api.Granted
		if err == nil {
			answer, err = p.PutGrant(r.PathValue("uid"), g)
		}
		reply(w, answer, err)
	})
	m.HandleFunc("DELETE /v1/pods/{uid}", func(w http.ResponseWriter, r *http.Request) {
		if err := p.DeleteGrant(r.PathValue("uid")); err != nil {
			reply(w, nil, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	m.HandleFunc("GET /v1/pods", func(w http.ResponseWriter, _ *http.Request) {
		list, err := p.Pods()
		reply(w, list, err)
	})
	m.HandleFunc("GET /v1/containers", func(w http.ResponseWriter, _ *http.Request) {
		list, err := p.Containers()
		reply(w, list, err)
	})
	m.HandleFunc("GET /v1/pods/events", func(w http.ResponseWriter, r *http.Request) {
		lines, out := json.NewEncoder(w), http.NewResponseController(w)
		// The caller sees that the stream has ended, and not why.
		_ = p.PodEvents(r.Context(), func(e api.PodEvent) { _ = errors.Join(lines.Encode(e), out.Flush()) })
	})
	return m
}

// reply answers with an object, or with an error.
func reply(w http.ResponseWriter, answer any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		answer = api.Failure{Error: err.Error()}
		if errors.Is(err, api.ErrNotFound) {
			w.WriteHeader(http.StatusNotFound)
		} else {
			w.WriteHeader(http.StatusBadRequest)
		}
	}
	_ = json.NewEncoder(w).Encode(answer) // the caller may be gone
}
