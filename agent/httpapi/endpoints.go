package httpapi

import (
	"net/http"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// The API by which others change running containers: HTTP with JSON on a unix
// socket, RUN_DIR/NAME.sock.
//
//	GET    /v1/containers/NAME/endpoints            [Endpoint...]
//	PUT    /v1/containers/NAME/endpoints/ENDPOINT   api.Definition; 201, 409 if there is one or it does not fit
//	DELETE /v1/containers/NAME/endpoints/ENDPOINT   204
//
// An error is {"error": "..."}, with the HTTP status for it.
//
// The file system does not keep the container's own programs from the socket, because they use the
// host's file system. checkPeer keeps them out.

// Container is the part of package container's Container that this package needs.
type Container interface {
	ListEndpoints() []api.Endpoint
	AddEndpoint(ep *endpoint.Endpoint) error
	DeleteEndpoint(name string) error
}

// EndpointRoutes returns the requests for endpoints of the containers that find returns. find
// returns nil if there is no such container.
func EndpointRoutes(find func(name string) Container) Routes {
	e := &endpointHandlers{find}
	return Routes{
		"GET /v1/containers/{container}/endpoints":               e.list,
		"PUT /v1/containers/{container}/endpoints/{endpoint}":    e.add,
		"DELETE /v1/containers/{container}/endpoints/{endpoint}": e.delete,
	}
}

type endpointHandlers struct {
	find func(name string) Container
}

func (a *endpointHandlers) container(w http.ResponseWriter, r *http.Request) Container {
	c := a.find(r.PathValue("container"))
	if c == nil {
		Refuse(w, ErrNoContainer)
	}
	return c
}

func (a *endpointHandlers) list(w http.ResponseWriter, r *http.Request) {
	if c := a.container(w, r); c != nil {
		Answer(w, http.StatusOK, c.ListEndpoints())
	}
}

func (a *endpointHandlers) add(w http.ResponseWriter, r *http.Request) {
	c := a.container(w, r)
	if c == nil {
		return
	}
	var d api.Definition
	if err := ReadObject(http.MaxBytesReader(w, r.Body, bodyMax), &d); err != nil {
		Refuse(w, err)
		return
	}
	ep, err := rules.ParseDefinition(r.PathValue("endpoint"), d)
	if err == nil {
		err = c.AddEndpoint(ep)
	}
	if err != nil {
		Refuse(w, err)
		return
	}
	Answer(w, http.StatusCreated, rules.DefinitionOf(ep))
}

func (a *endpointHandlers) delete(w http.ResponseWriter, r *http.Request) {
	c := a.container(w, r)
	if c == nil {
		return
	}
	if err := c.DeleteEndpoint(r.PathValue("endpoint")); err != nil {
		Refuse(w, err)
		return
	}
	AnswerStatus(w, http.StatusNoContent)
}
