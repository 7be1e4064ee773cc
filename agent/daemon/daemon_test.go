package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
)

// newDaemon is a daemon that serves nobody and has started nothing, and what it logs.
func newDaemon(t *testing.T) (*Daemon, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	d := &Daemon{
		runDir: t.TempDir(), log: slog.New(slog.NewTextHandler(&log, withoutTime(slog.LevelInfo))), boot: "this boot",
		byName: map[string]*managed{}, byToken: map[string]*managed{}, leaving: map[string]*removal{},
		closing: make(chan struct{}), failed: make(chan error, 1), ports: ports.New(), memory: newMemory(),
	}
	d.config.Store(&config.Config{RunDir: d.runDir, StateDir: t.TempDir()})
	var err error
	if d.store, err = openStore(d.config.Load().StateDir, d.boot); err != nil {
		t.Fatal(err)
	}
	d.podNotes.load(d.store, d.log)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, &log
}

func someRecord(name string) *record {
	return &record{
		identity{
			ID: "id of " + name, Name: name, Token: "0123456789abcdef" + name, Boot: "this boot", Created: time.Unix(1, 0).UTC(),
			Mode: "auto", Endpoints: []string{"a type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"198.51.100.0/24=a"},
		},
		container.State{Cgroup: "/sys/fs/cgroup/nothing/tsugiki-" + name, Endpoints: []string{"a type ipv4 addr 0.0.0.0 port dynamic"}, Numbered: []string{"a"}},
	}
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := openStore(dir, "this boot")
	if err != nil {
		t.Fatal(err)
	}
	a, b := someRecord("a"), someRecord("b")
	for _, r := range []*record{b, a, a} {
		if err := s.put(r); err != nil {
			t.Fatal(err)
		}
	}
	a.PID, a.Annotated = 7, true
	if err := errors.Join(s.put(a), s.delete("nobody"), s.close()); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(dir, "this boot"); err != nil {
		t.Fatal(err)
	}
	got, err := s.all()
	if diff := cmp.Diff([]*record{a, b}, got, cmp.AllowUnexported(record{})); err != nil || diff != "" {
		t.Errorf("after a restart: %v (-want +got)\n%s", err, diff)
	}
	if _, err := openStore(dir, "this boot"); !errors.Is(err, httpapi.ErrState) || !strings.Contains(err.Error(), "another agent has") {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.delete("a"); err != nil {
		t.Error(err)
	}
	if got, err = s.all(); err != nil || len(got) != 1 || got[0].Name != "b" {
		t.Errorf("after one was deleted: %v, %v", got, err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if err := s.put(b); !errors.Is(err, httpapi.ErrState) {
		t.Errorf("put into a store that is closed: %v", err)
	}
}

// The state of another boot, which the machine may have written half of when it lost power, is
// gone. That of a version which did not note the boot is read.
func TestStateOfAnotherBoot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(dir string) error
		kept   bool
	}{
		{"this boot", func(string) error { return nil }, true},
		{"no boot was noted", func(dir string) error { return os.Remove(dir + "/boot") }, true},
		{"another boot", func(dir string) error { return os.WriteFile(dir+"/boot", []byte("that boot"), 0o600) }, false},
		{"half of a note", func(dir string) error { return os.WriteFile(dir+"/boot", nil, 0o600) }, false},
		{"another boot, half of a state", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/boot", []byte("that boot"), 0o600), os.WriteFile(dir+"/state.db", []byte("half"), 0o600))
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := openStore(dir, "this boot")
			if err == nil {
				err = errors.Join(s.put(someRecord("a")), s.close(), tt.change(dir))
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if s, err = openStore(dir, "this boot"); err != nil {
					t.Fatal(err)
				}
				if got, err := s.all(); err != nil || (len(got) == 1) != tt.kept {
					t.Errorf("records: %v, %v", got, err)
				}
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The names in a record are those that earlier daemons have written.
func TestRecordOfAnEarlierDaemon(t *testing.T) {
	const written = `{"id":"i","name":"n","token":"t","boot":"b","created":"2026-01-02T03:04:05Z","uid":1,"gid":2,"loopbackOnly":true,"programs":true,` +
		`"pid":3,"started":"4","cgroup":"/g","mode":"seccomp","annotated":true,"given":["e"],"ingress":["i"],"egress":["o"],"endpoints":["p"],"numbered":["q"]}`
	d, _ := newDaemon(t)
	raw(t, d.store, "n", written)
	got, err := d.store.all()
	want := &record{identity{
		ID: "i", Name: "n", Token: "t", Boot: "b", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), UID: 1, GID: 2, LoopbackOnly: true,
		Programs: true, Mode: "seccomp", Annotated: true, Endpoints: []string{"e"}, Ingress: []string{"i"}, Egress: []string{"o"},
	}, container.State{PID: 3, Started: "4", Cgroup: "/g", Endpoints: []string{"p"}, Numbered: []string{"q"}}}
	if diff := cmp.Diff([]*record{want}, got, cmp.AllowUnexported(record{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// raw writes what no daemon of this version would.
func raw(t *testing.T, s *store, name, data string) {
	t.Helper()
	if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketContainers).Put([]byte(name), []byte(data)) }); err != nil {
		t.Fatal(err)
	}
}

func TestStoreRefuses(t *testing.T) {
	d, _ := newDaemon(t)
	raw(t, d.store, "a", "{")
	if _, err := d.store.all(); !errors.Is(err, httpapi.ErrState) || !strings.Contains(err.Error(), "container a") {
		t.Errorf("half a record: %v", err)
	}
	if err := d.adoptAll(); !errors.Is(err, httpapi.ErrState) {
		t.Errorf("a start with half a record: %v", err)
	}
	for name, tt := range map[string]struct{ version, says string }{
		"a newer format": {"2", "was written by a newer tsugiki (format 2, this one knows 1)"}, "no version": {"x", "invalid syntax"},
	} {
		dir := t.TempDir()
		s, err := openStore(dir, "this boot")
		if err == nil {
			err = errors.Join(s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, []byte(tt.version)) }), s.close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(dir, "this boot"); !errors.Is(err, httpapi.ErrState) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.db"), bytes.Repeat([]byte("no database "), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"another file": dir, "a folder that is a file": filepath.Join(dir, "state.db")} {
		if _, err := openStore(dir, "this boot"); !errors.Is(err, httpapi.ErrState) || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What an earlier daemon has written down is adopted, or removed, or left alone and said so.
func TestAdopt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, tt := range map[string]struct {
		change func(*record)
		left   bool
		log    string
	}{
		"of another boot":              {func(r *record) { r.Boot = "the last boot" }, false, `level=INFO msg="container ended with the machine" container=a`},
		"without a cgroup":             {func(*record) {}, false, `level=INFO msg="container ended" container=a`},
		"with a first program, gone":   {func(r *record) { r.PID, r.Started = os.Getpid(), "0" }, false, `msg="container ended"`},
		"with rules of another format": {func(r *record) { r.Egress = []string{"from here"} }, true, "level=ERROR msg=\"container not taken over; it runs on without an agent\" container=a"},
		"with an unknown mode":         {func(r *record) { r.Mode = "ptrace" }, true, "unknown mode"},
		"with another's endpoints":     {func(r *record) { r.State.Endpoints = []string{"x"} }, false, `msg="container ended"`},
	} {
		t.Run(name, func(t *testing.T) {
			d, log := newDaemon(t)
			r := someRecord("a")
			tt.change(r)
			if err := d.store.put(r); err != nil {
				t.Fatal(err)
			}
			if err := d.adoptAll(); err != nil {
				t.Fatal(err)
			}
			left, err := d.store.all()
			if err != nil || (len(left) == 1) != tt.left || !strings.Contains(log.String(), tt.log) || len(d.all()) != 0 {
				t.Errorf("%d are left, %d found, %v: %s", len(left), len(d.all()), err, log)
			}
		})
	}
}

// there makes a container that was registered and has nothing.
func there(d *Daemon, name, id string) *managed {
	m := d.newManaged(identity{ID: id, Name: name, Token: "0123456789" + name}, rules.Rules{})
	d.insert(m)
	return m
}

// A registration is refused for what it says before anything is made.
func TestRegisterRefuses(t *testing.T) {
	own := func(egress string) *api.Rules { return &api.Rules{Egress: []string{egress}} }
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		r    api.Registration
		want error
		says string
	}{
		"no container's name":          {context.Background(), api.Registration{Name: "..", Rules: &api.Rules{}}, rules.ErrRequest, "bad container name"},
		"the agent's name":             {context.Background(), api.Registration{Name: "agent", Rules: &api.Rules{}}, rules.ErrRequest, "one of the agent's own"},
		"the listeners' name":          {context.Background(), api.Registration{Name: "seccomp", Rules: &api.Rules{}}, rules.ErrRequest, "one of the agent's own"},
		"a rule that is none":          {context.Background(), api.Registration{Name: "x", Rules: own("x")}, rules.ErrRequest, ""},
		"annotations without a rule":   {context.Background(), api.Registration{Name: "x", Engine: "docker", Annotations: map[string]string{"tsugiki.dev/mode": "auto"}}, rules.ErrNotAllowed, "no [[allow]]"},
		"an unknown engine":            {context.Background(), api.Registration{Name: "x", Engine: "x"}, rules.ErrRequest, "unknown engine"},
		"another's name":               {context.Background(), api.Registration{ID: "2", Name: "there", Rules: &api.Rules{}}, container.ErrExists, "with the id 1; choose another name"},
		"nobody asks any more":         {gone, api.Registration{Name: "x", Rules: &api.Rules{}}, errAbandoned, ""},
		"nobody asks for another's":    {gone, api.Registration{Name: "there", Rules: &api.Rules{}}, errAbandoned, ""},
		"a daemon that is being ended": {context.Background(), api.Registration{Name: "x", Rules: &api.Rules{}}, os.ErrClosed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDaemon(t)
			m := there(d, "there", "1")
			defer d.drop(m)
			d.closed = errors.Is(tt.want, os.ErrClosed)
			got, err := d.register(tt.ctx, tt.r)
			if got != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, %v", got, err)
			}
			if left, err := d.store.all(); err != nil || len(left) != 0 || len(d.all()) != 1 {
				t.Errorf("%v is written down, %d are found, %v", left, len(d.all()), err)
			}
		})
	}
}

// Where no rule says anything of a container, nothing is made, whatever its name is.
func TestRegisterWithoutRules(t *testing.T) {
	d, log := newDaemon(t)
	m, err := d.register(context.Background(), api.Registration{Name: "a name/that is none", Engine: "docker", Image: []string{"tsugiki.dev/egress"}})
	if m != nil || err != nil || !strings.Contains(log.String(), "annotations of the image are not heard") {
		t.Errorf("%v, %v, %s", m, err, log)
	}
}

// What a container is given is in its identity as it can be read again.
func TestIdentity(t *testing.T) {
	d, _ := newDaemon(t)
	texts := api.Rules{Mode: "seccomp", Endpoints: []string{"a type ipv4 addr 0.0.0.0 port dynamic"}, Ingress: []string{"0.0.0.0:80=a"}, Egress: []string{"198.51.100.0/24=a"}}
	given, err := rules.Parse(texts)
	if err != nil {
		t.Fatal(err)
	}
	r := api.Registration{ID: "i", Name: "n", UID: 1, GID: 2, LoopbackOnly: true, Programs: true}
	one := d.newIdentity(r, &rules.Given{Rules: given, Annotated: true})
	two := d.newIdentity(r, &rules.Given{Rules: given})
	if one.Token == two.Token || len(one.Token) != 32 || !one.Annotated || two.Annotated || one.Boot != d.boot || one.UID != 1 || one.GID != 2 || !one.LoopbackOnly || !one.Programs {
		t.Errorf("%+v\n%+v", one, two)
	}
	again, err := rules.Parse(one.rules())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(given.Texts(), again.Texts()); diff != "" {
		t.Errorf("(-given +read again)\n%s", diff)
	}
}

// A container that is removed is forgotten: its name, its record, its ports.
func TestRemove(t *testing.T) {
	d, log := newDaemon(t)
	m := there(d, "a", "1")
	port := []ports.Reservation{{Netns: 1, At: netip.MustParseAddrPort("198.51.100.1:80")}}
	if err := errors.Join(d.store.put(&record{identity: m.identity}), m.Reserve(port)); err != nil {
		t.Fatal(err)
	}
	var reserved *ports.ReservedError
	if err := d.ports.Reserve("b", port); !errors.As(err, &reserved) {
		t.Errorf("a port of another: %v", err)
	}
	ask := func(query string) int {
		r := httptest.NewRequest("DELETE", "/"+query, nil)
		r.SetPathValue("container", "a")
		w := httptest.NewRecorder()
		d.handleRemove(w, r)
		return w.Code
	}
	if code := ask("?id=2"); code != 404 || d.find("a") != m || d.findToken(m.Token) != m {
		t.Errorf("with another's id: %d, %v", code, d.find("a"))
	}
	if code := ask("?id=1"); code != 204 || d.find("a") != nil || d.findToken(m.Token) != nil || d.leavingIs("a") != nil {
		t.Errorf("with its id: %d, %v", code, d.find("a"))
	}
	left, err := d.store.all()
	if err := errors.Join(err, d.ports.Reserve("b", port)); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v: %s", left, err, log)
	}
	if err := d.remove(m, "again"); !errors.Is(err, httpapi.ErrNoContainer) {
		t.Errorf("removed twice: %v", err)
	}
	if !d.hasEnded(m.Token) || d.hasEnded("x") {
		t.Error("it is not known to have ended")
	}
	d.ended = []*ended{{"1", m.Token, "a cause"}}
	if code := ask("?id=1"); code != 200 {
		t.Errorf("ended by the daemon before: %d", code)
	}
}

// The same container registered again takes the place of the one that never had a program.
func TestLockName(t *testing.T) {
	d, _ := newDaemon(t)
	there(d, "a", "1")
	if err := d.lockName(context.Background(), "a", "1"); err != nil || d.find("a") != nil {
		t.Fatalf("%v, %v", err, d.find("a"))
	}
	d.changes.Unlock()
	d.leaving["b"] = &removal{ended: &ended{id: "1"}, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	locked := make(chan error)
	go func() { locked <- d.lockName(ctx, "b", "1") }()
	cancel() // one that is still ending is waited for
	if err := <-locked; !errors.Is(err, errAbandoned) {
		t.Error(err)
	}
	for _, m := range []*managed{nil, d.newManaged(identity{ID: "7", Name: "b", Token: "0123456789"}, rules.Rules{})} {
		if err := taken("b", m, d.leaving["b"]); !errors.Is(err, container.ErrExists) || !strings.Contains(err.Error(), "with the id") {
			t.Error(err)
		}
	}
}

// Handlers that need a container say which there is not, or show what there is.
func TestHandlers(t *testing.T) {
	d, _ := newDaemon(t)
	routes := d.routes()
	for _, tt := range []struct {
		pattern, name, body string
		status              int
		says                string
	}{
		{"GET /v1/containers", "", "", 200, "[]"},
		{"GET /v1/containers/{container}", "x", "", 404, "no container of that name"},
		{"DELETE /v1/containers/{container}", "x", "", 404, "no container of that name"},
		{"GET /v1/containers/{container}/trace", "x", "", 404, "no container of that name"},
		{"GET /v1/containers/{container}/endpoints", "x", "", 404, "no container of that name"},
		{"GET /v1/stats", "", "", 200, `"containers":[]`},
		{"GET /metrics", "", "", 200, "tsugiki_containers{state=\"running\"} 0"},
		{"POST /v1/containers", "", "{", 400, "bad request: unexpected EOF"},
		{"POST /v1/containers", "", `{"colour":"red"}`, 400, "unknown field"},
		{"POST /v1/containers", "", `{"name":"` + strings.Repeat("x", registrationMax) + `"}`, 413, "too large"},
		{"POST /v1/containers", "", `{"name":"x","engine":"docker"}`, 200, `"graft":false,"name":"x"`},
		{"POST /v1/containers", "", `{"name":"x","engine":"docker","annotations":{"tsugiki.dev/mode":"auto"}}`, 403, "not allowed"},
		{"POST /v1/charge", "", "{}", 503, "does not charge CPU time"},
		{"GET /v1/charge", "", "", 503, "does not charge CPU time"},
		{"POST /v1/charge/helpers", "", "{}", 503, "does not charge CPU time"},
		{"DELETE /v1/charge/helpers/{helper}", "", "", 503, "does not charge CPU time"},
		{"POST /v1/charge/{account}/let-go", "", "{}", 503, "does not charge CPU time"},
	} {
		method, _, _ := strings.Cut(tt.pattern, " ")
		r := httptest.NewRequest(method, "/", strings.NewReader(tt.body))
		r.SetPathValue("container", tt.name)
		w := httptest.NewRecorder()
		routes[tt.pattern](w, r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s: %d %s; want %d %s", tt.pattern, tt.body, w.Code, w.Body, tt.status, tt.says)
		}
	}
}
