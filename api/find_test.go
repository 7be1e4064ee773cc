package api

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// serveAt answers requests at a socket.
func serveAt(t *testing.T, path string, handle http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handle}
	go func() { _ = s.Serve(l) }() // until it is closed
	t.Cleanup(func() { s.Close() })
}

// Containers are found where the daemon has them, and where tsugiki run has one of its own.
func TestConnect(t *testing.T) {
	dir := t.TempDir()
	where := Where{RunDir: dir}
	if _, err := Connect(where, ""); err == nil || !strings.Contains(err.Error(), "no container is running") || !errors.Is(err, ErrNoAgent) {
		t.Errorf("none: %v", err)
	}
	if _, err := Connect(where, "a"); err == nil || !strings.Contains(err.Error(), "container a is not known: tsugiki agent is not running at "+SocketIn(dir)) {
		t.Errorf("none of that name: %v", err)
	}
	if _, err := Connect(where, "a/b"); !errors.Is(err, ErrName) {
		t.Errorf("a name that is none: %v", err)
	}
	for _, name := range []string{"dead.sock", "no socket.sock", "b.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var asked []string
	serveAt(t, ContainerSocket(dir, "alone"), func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.EscapedPath())
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(Failure{Error: "there is none"})
			return
		}
		_ = json.NewEncoder(w).Encode([]Endpoint{{Name: "x"}})
	})
	c, err := Connect(where, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(where, "web"); !errors.Is(err, ErrNoAgent) || !strings.HasSuffix(err.Error(), "; without the agent there is alone") {
		t.Errorf("the daemon's, which is away: %v", err)
	}
	list, err := c.Endpoints()
	if err != nil || len(list) != 1 || list[0].Name != "x" {
		t.Errorf("%v, %v", list, err)
	}
	if err := c.Add("y", Definition{Type: "unix", Path: "/y"}); err != nil {
		t.Error(err)
	}
	if err := c.Delete("y/z"); !errors.Is(err, ErrNotFound) || err.Error() != "container alone: there is none" {
		t.Error(err)
	}
	const path = "/v1/containers/alone/endpoints"
	if want := []string{"GET " + path, "PUT " + path + "/y", "DELETE " + path + "/y%2Fz"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	serveAt(t, SocketIn(dir), func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode([]Container{{Name: "web"}})
	})
	if _, err := Connect(where, ""); err == nil || !strings.Contains(err.Error(), "2 containers are running") || !strings.HasSuffix(err.Error(), ": alone, web") {
		t.Errorf("two: %v", err)
	}
	if _, err := Connect(where, "db"); err == nil || !strings.Contains(err.Error(), "container db is not running; there is alone, web") {
		t.Errorf("another: %v", err)
	}
	found, err := Running(where)
	if err != nil || len(found) != 2 || found["web"] != SocketIn(dir) || found["alone"] != ContainerSocket(dir, "alone") {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := Running(Where{RunDir: dir, Agent: filepath.Join(dir, "other.sock")}); !errors.Is(err, ErrNoAgent) {
		t.Errorf("a daemon that is named and not there: %v", err)
	}
}

func TestCheckName(t *testing.T) {
	for name, fine := range map[string]bool{
		"a": true, "web-1": true, "A.b_c-9": true, strings.Repeat("x", NameMax): true, "agents": true,
		"": false, "-a": false, ".a": false, "a b": false, "a/b": false, "a\n": false, "ä": false, strings.Repeat("x", NameMax+1): false,
		AgentName: false, "seccomp": false,
	} {
		if err := CheckName(name); (err == nil) != fine || err != nil && !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// An answer that the request itself is at fault (4xx) is told from one that may be another soon.
func TestErrInvalid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	code := 0
	serveAt(t, socket, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(Failure{Error: "no"})
	})
	for status, want := range map[int]bool{400: true, 409: true, 413: true, 404: false, 429: false, 500: false, 507: false} {
		code = status
		if _, err := Dial(socket).PutGrant("u", Grant{}); errors.Is(err, ErrInvalid) != want || !errors.Is(err, ErrRefused) || err.Error() != "no" {
			t.Errorf("%d: %v", status, err)
		}
	}
}
