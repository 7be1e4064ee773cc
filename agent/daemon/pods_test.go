package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/grants"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
)

// ask makes a request at a daemon's routes, without a socket.
func ask(t *testing.T, d *Daemon, method, path string, body any) (int, string) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, handle := range d.routes() {
		mux.HandleFunc(pattern, handle)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(string(text))))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// beginGrants has a daemon take grants until the watch, or the test, ends.
func beginGrants(t *testing.T, d *Daemon) *grants.Stream {
	t.Helper()
	d.grants = grants.New(time.Hour)
	s, err := d.grants.Watch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	<-s.Events // that it has begun
	return s
}

func TestGrantRequests(t *testing.T) {
	d, _ := newDaemon(t)
	g := api.Grant{Namespace: "shop", Name: "web-1", Containers: map[string]api.Rules{"c": {Ingress: []string{"0.0.0.0:80=198.51.100.1:8080"}}}}
	if code, body := ask(t, d, "PUT", "/v1/pods/u1", g); code != http.StatusConflict || !strings.Contains(body, "write [kubernetes] grants = true") {
		t.Errorf("a daemon without grants: %d %s", code, body)
	}
	d.grants = grants.New(time.Hour)
	for _, tt := range []struct {
		method, path string
		body         any
		code         int
		want         string
	}{
		{"GET", "/v1/pods", nil, 200, "[]"},
		{"PUT", "/v1/pods/u1", g, 200, "{}"},
		{"GET", "/v1/pods", nil, 200, `"uid":"u1","namespace":"shop","name":"web-1","grant":{"namespace":"shop"`},
		{"PUT", "/v1/pods/u1", api.Grant{Namespace: "shop"}, 400, "namespace and name are missing"},
		{"PUT", "/v1/pods/u1", map[string]int{"rules": 1}, 400, "unknown field"},
		{"DELETE", "/v1/pods/u1", nil, 204, ""},
		{"DELETE", "/v1/pods/u1", nil, 404, "no container"},
	} {
		if code, body := ask(t, d, tt.method, tt.path, tt.body); code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %s, want %d %q", tt.method, tt.path, code, body, tt.code, tt.want)
		}
	}
}

// Of a container of a pod, nothing counts but its pod's grant: no annotation, and no [[container]].
func TestGrantFor(t *testing.T) {
	d, _ := newDaemon(t)
	cfg := &config.Config{RunDir: d.runDir, Containers: []config.Container{{Match: "*", Egress: []config.Text{{Text: "0.0.0.0/0=0.0.0.0"}}}}}
	d.config.Store(cfg)
	s := beginGrants(t, d)
	pod := func(container string) *api.Registration {
		return &api.Registration{
			ID: "1", Name: "shop.web.c", Engine: "cri", Annotations: map[string]string{api.AnnotationEgress: "0.0.0.0/0=127.0.0.1"},
			Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: container},
		}
	}
	given := api.Rules{Endpoints: []string{"x type ipv4 addr 198.51.100.1 port dynamic"}, Egress: []string{"10.0.0.0/8=x"}}
	if err := d.grants.Put("u1", api.Grant{Namespace: "shop", Name: "web", Containers: map[string]api.Rules{"c": given}}); err != nil {
		t.Fatal(err)
	}
	r := pod("c")
	if g, err := d.grantFor(t.Context(), r); err != nil || g == nil {
		t.Fatalf("%v, %v", g, err)
	}
	if diff := cmp.Diff(&given, r.Rules); diff != "" {
		t.Errorf("rules of the registration (-grant +got):\n%s", diff)
	}
	if m, err := d.register(t.Context(), *pod("sidecar")); m != nil || err != nil {
		t.Errorf("a container that the grant does not name: %v, %v; want none, and no rules of the configuration", m, err)
	}
	if e := <-s.Events; e.Type != api.PodRegistered || e.Pod.Container != "sidecar" {
		t.Errorf("event %+v", e)
	}
	if err := d.grants.Put("u1", api.Grant{Namespace: "shop", Name: "web", Refused: "x is not for it"}); err != nil {
		t.Fatal(err)
	}
	if m, err := d.register(t.Context(), *pod("c")); m != nil || !errors.Is(err, rules.ErrNotAllowed) {
		t.Errorf("a pod that is refused: %v, %v", m, err)
	}
	if e := <-s.Events; e.Type != api.PodRefused || e.Reason != "not allowed: x is not for it" {
		t.Errorf("event %+v", e)
	}
	other := pod("c")
	other.Engine = "docker"
	if g, err := d.grantFor(t.Context(), other); g != nil || err != nil || other.Rules != nil {
		t.Errorf("a container of docker: %v, %v", g, err)
	}
}

// turning is a context that changes something when it is asked whether it has ended.
type turning struct {
	context.Context
	turn func()
}

func (t turning) Err() error {
	t.turn()
	return t.Context.Err()
}

// A grant may be replaced while a container is made. A container that cannot follow the new one is
// not started with rules of the old one: nothing of it is left, and whoever gives grants hears why.
func TestRegisterCannotCatchUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	first := api.Rules{Endpoints: []string{"x type ipv4 addr 127.0.0.1 port 20080"}, Ingress: []string{"0.0.0.0:80=x"}}
	for name, tt := range map[string]struct {
		then api.Rules
		says string
	}{
		"the host has not the address": {api.Rules{Endpoints: []string{"x type ipv4 addr 203.0.113.77 port dynamic"}, Ingress: []string{"0.0.0.0:80=x"}}, "203.0.113.77"},
		"another translation": {
			api.Rules{Endpoints: append([]string{"six type ipv6 addr :: port dynamic"}, first.Endpoints...), Egress: []string{"2001:db8::/32=six"}, Translate: &api.Translate{DNS: []string{"198.51.100.53:53"}}},
			"the translation cannot change",
		},
		"the filter is another one": {api.Rules{Endpoints: first.Endpoints, Ingress: []string{"0.0.0.0:80+own=x"}}, "needs accept(2) to be trapped"},
	} {
		t.Run(name, func(t *testing.T) { testCannotCatchUp(t, first, tt.then, tt.says) })
	}
}

func testCannotCatchUp(t *testing.T, first, then api.Rules, says string) {
	d, _ := newDaemon(t)
	s := beginGrants(t, d)
	put := func(r api.Rules) {
		if err := d.grants.Put("u1", api.Grant{Namespace: "shop", Name: "web", Containers: map[string]api.Rules{"c": r}}); err != nil {
			t.Error(err)
		}
	}
	put(first)
	there := false // once the container has its name
	late := turning{t.Context(), func() {
		if list, err := d.store.all(); err != nil || len(list) > 0 {
			there = true
			put(then)
		}
	}}
	m, err := d.register(late, api.Registration{
		ID: "1", Name: fmt.Sprintf("shop.web.c%d", os.Getpid()), Engine: engineOfPods,
		Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"},
	})
	if m != nil || err == nil || !strings.Contains(err.Error(), "follow the new grant of the container's pod: ") || !there {
		t.Errorf("%v, %v; the grant was replaced: %v", m, err, there)
	}
	if left, err := d.store.all(); err != nil || len(left) != 0 || len(d.all()) != 0 {
		t.Errorf("%d records and %d containers are left, %v", len(left), len(d.all()), err)
	}
	if e := <-s.Events; e.Type != api.PodRefused || !strings.Contains(e.Reason, says) {
		t.Errorf("event %+v", e)
	}
}

// A runtime that has to answer its engine in time says for how long a container waits.
func TestGrantWithin(t *testing.T) {
	d, _ := newDaemon(t)
	r := &api.Registration{
		ID: "1", Name: "shop.web.c", Engine: "cri", GrantWithin: 1,
		Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"},
	}
	if _, err := d.grantFor(t.Context(), r); !errors.Is(err, rules.ErrNotAllowed) || !strings.Contains(err.Error(), "write [kubernetes] grants = true") {
		t.Errorf("by a daemon without grants: %v", err)
	}
	beginGrants(t, d) // which are waited for longer than any test
	if _, err := d.grantFor(t.Context(), r); !errors.Is(err, rules.ErrNotAllowed) || !strings.Contains(err.Error(), "in the time that its runtime has") {
		t.Errorf("without a grant: %v", err)
	}
}
