package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/grants"
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Errors with an HTTP status of their own, beside those of other packages; see Refuse.
var (
	ErrNoContainer = errors.New("no container of that name is here")
	// ErrState says that a daemon cannot save its state.
	ErrState = errors.New("state cannot be kept")
	// ErrTraces says that the number of traces is at its limit.
	ErrTraces = errors.New("too many traces")
)

// Answer sends a body as JSON.
func Answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	AnswerStatus(w, status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // arrows of rules stay readable
	_ = e.Encode(body)     // a caller that is gone misses it
}

// Refuse answers with an error and the HTTP status for it.
func Refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var tooLarge *http.MaxBytesError
	var host container.HostError
	var reserved *ports.ReservedError
	switch {
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, rules.ErrRequest), errors.Is(err, endpoint.ErrGrammar):
		status = http.StatusBadRequest
	case errors.Is(err, rules.ErrNotAllowed):
		status = http.StatusForbidden
	case errors.Is(err, ErrNoContainer), errors.Is(err, container.ErrUntranslated), errors.Is(err, endpoint.ErrUnknown):
		status = http.StatusNotFound
	case errors.Is(err, container.ErrExists), errors.Is(err, container.ErrUntrapped), errors.Is(err, container.ErrNew), errors.Is(err, policy.ErrRule), errors.As(err, &host), errors.As(err, &reserved):
		status = http.StatusConflict
	case errors.Is(err, ErrTraces), errors.Is(err, grants.ErrStreams):
		status = http.StatusTooManyRequests
	case errors.Is(err, ErrState), errors.Is(err, grants.ErrFull):
		status = http.StatusInsufficientStorage
	case errors.Is(err, os.ErrClosed):
		status = http.StatusServiceUnavailable
	}
	Answer(w, status, api.Failure{Error: OneLine(err)})
}

// OneLine returns the text of an error in one line.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// ReadObject reads one JSON object and nothing else.
func ReadObject(body io.Reader, into any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	switch _, err := decoder.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	return fmt.Errorf("%w: something follows the object", rules.ErrRequest)
}
