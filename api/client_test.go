package api

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// TestLetGo compares the request that LetGo sends: the path of a cgroup is one part of the URL.
func TestLetGo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan string, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a part of it is a wrong request
		requests <- r.Method + " " + r.URL.EscapedPath() + " " + string(body)
		w.WriteHeader(http.StatusNoContent)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // it returns at Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	if err := Dial(socket).LetGo("/docker/8a4f1c", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	const want = `POST /v1/charge/%2Fdocker%2F8a4f1c/let-go {"for":"2s"}`
	if got := <-requests; got != want {
		t.Errorf("the agent was asked %s, want %s", got, want)
	}
}
