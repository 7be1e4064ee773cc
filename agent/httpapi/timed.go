package httpapi

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// # How long a request may take
//
// net/http starts both of its limits when a request begins. An answer that takes longer than the
// write limit is lost. The context of a request that takes longer than the read limit ends. Here a
// request has Patience to come in and its answer has Patience to be read. The work between has no
// limit. A handler gets the server's own http.ResponseWriter, and the server keeps its own request:
// so a client that sends too much can read the answer before the connection is reset.

// untimed returns a handler that calls another one, without a limit of time.
func untimed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := http.NewResponseController(w)
		whole := func() { _ = out.SetReadDeadline(time.Time{}) }
		if r.Body == http.NoBody {
			whole()
		} else {
			r = r.WithContext(r.Context()) // a copy: the server looks at its own request's body in the end
			r.Body = &body{r.Body, whole}
		}
		h.ServeHTTP(w, r)
	})
}

// body is a request's body that reports when it has been read to its end.
type body struct {
	io.ReadCloser
	whole func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.whole()
	}
	return n, err
}

// AnswerStatus begins an answer. The caller then has Patience to read it.
func AnswerStatus(w http.ResponseWriter, status int) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(Patience))
	w.WriteHeader(status)
}
