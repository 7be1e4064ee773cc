package httpapi

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// # How long a request may take
//
// net/http begins both of its limits when a request begins: an answer that takes longer than its
// limit is lost, and the context of a request that takes longer than its own ends. Here a request
// has Patience to come in and its answer has Patience to be read; what is done between takes as
// long as it takes. A handler gets the server's own http.ResponseWriter, and the server keeps its own
// request: they have who sends too much read the answer before the connection is reset.

// untimed returns a handler that calls another one, which may take as long as it takes.
func untimed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := http.NewResponseController(w)
		whole := func() { _ = out.SetReadDeadline(time.Time{}) }
		if r.Body == http.NoBody {
			whole()
		} else {
			r = r.WithContext(r.Context()) // the server looks at its own one's body in the end
			r.Body = &body{r.Body, whole}
		}
		h.ServeHTTP(w, r)
	})
}

// body tells when it has been read to its end.
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

// AnswerStatus begins an answer, which then has Patience to be read.
func AnswerStatus(w http.ResponseWriter, status int) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(Patience))
	w.WriteHeader(status)
}
