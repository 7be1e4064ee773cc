package httpapi

import (
	"net/http"

	"github.com/tsugiki/tsugiki/api"
)

// Translating is the part of package container's Container that shows and changes how IPv4 is
// translated.
type Translating interface {
	Translation() (api.Translation, error)
	FlushTranslation() (api.Flushed, error)
}

// TranslationRoutes returns the requests for the translation of the containers that find returns.
// find returns nil if there is no such container.
func TranslationRoutes(find func(name string) Translating) Routes {
	return Routes{
		"GET /v1/containers/{container}/translation": func(w http.ResponseWriter, r *http.Request) {
			answerOf(w, r, find, Translating.Translation)
		},
		"DELETE /v1/containers/{container}/translation/mappings": func(w http.ResponseWriter, r *http.Request) {
			answerOf(w, r, find, Translating.FlushTranslation)
		},
	}
}

func answerOf[T any](w http.ResponseWriter, r *http.Request, find func(name string) Translating, of func(Translating) (T, error)) {
	c := find(r.PathValue("container"))
	if c == nil {
		Refuse(w, ErrNoContainer)
		return
	}
	answer, err := of(c)
	if err != nil {
		Refuse(w, err)
		return
	}
	Answer(w, http.StatusOK, answer)
}
