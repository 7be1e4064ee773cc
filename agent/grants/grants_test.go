package grants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

var (
	web   = &api.Pod{Namespace: "shop", Name: "web-1", UID: "u1", Container: "nginx"}
	given = api.Grant{Namespace: "shop", Name: "web-1", Containers: map[string]api.Rules{
		"nginx": {Endpoints: []string{"a type ipv4 addr 198.51.100.1 port 8080"}, Ingress: []string{"0.0.0.0:80=a"}},
	}}
)

// forever is longer than any test: a container that waits so long hangs.
const forever = time.Hour

func put(t *testing.T, table *Table, uid string, g api.Grant) {
	t.Helper()
	if err := table.Put(uid, g); err != nil {
		t.Fatal(err)
	}
}

func TestAwait(t *testing.T) {
	table := New(forever)
	put(t, table, "u1", given)
	got, err := table.Await(t.Context(), web)
	if diff := cmp.Diff(&given, got); err != nil || diff != "" {
		t.Errorf("Await: %v\n%s", err, diff)
	}
	if got != table.Get("u1") {
		t.Error("Get is not what Await returned, and nothing was put in between")
	}
	put(t, table, "u1", given)
	if got == table.Get("u1") {
		t.Error("Get is what Await returned, and another grant was put in between")
	}
	for name, tt := range map[string]struct {
		grant api.Grant
		pod   *api.Pod
		want  string
	}{
		"no pod":                  {given, nil, "does not say which pod"},
		"no UID":                  {given, &api.Pod{Namespace: "shop", Name: "web-1"}, "does not say which pod"},
		"the grant of another":    {api.Grant{Namespace: "shop", Name: "db"}, web, "is that of pod shop/db"},
		"of another namespace":    {api.Grant{Namespace: "bank", Name: "web-1"}, web, "is that of pod bank/web-1"},
		"a refusal":               {api.Grant{Namespace: "shop", Name: "web-1", Refused: "endpoint x is not for it"}, web, "endpoint x is not for it"},
		"a refusal of some other": {api.Grant{Namespace: "a", Name: "b", Refused: "secret"}, web, "is that of pod a/b"},
	} {
		put(t, table, "u1", tt.grant)
		if _, err := table.Await(t.Context(), tt.pod); !errors.Is(err, rules.ErrNotAllowed) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// A container waits for its own pod's grant, and tells that it waits.
func TestAwaitWaits(t *testing.T) {
	table := New(forever)
	s, err := table.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	came := make(chan error, 1)
	go func() {
		_, err := table.Await(context.Background(), web)
		came <- err
	}()
	for _, want := range []api.PodEvent{{Type: api.PodReady}, {Type: api.PodWaiting, Pod: *web}} {
		if got := <-s.Events; got != want {
			t.Fatalf("event %v, want %v", got, want)
		}
	}
	put(t, table, "u2", given) // of another pod
	select {
	case err := <-came:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	put(t, table, "u1", given)
	if err := <-came; err != nil {
		t.Error(err)
	}
}

func TestNoGrantComes(t *testing.T) {
	_, err := New(time.Millisecond).Await(t.Context(), web)
	if !errors.Is(err, rules.ErrNotAllowed) || !strings.Contains(err.Error(), "no grant for pod shop/web-1 has come within 1ms; see whether tsugiki-kube runs") {
		t.Errorf("no grant: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(forever).Await(gone, web); !errors.Is(err, rules.ErrNotAllowed) {
		t.Errorf("the caller has gone: %v", err)
	}
	table := New(forever)
	table.waiting = waitingMax
	if _, err := table.Await(t.Context(), web); err == nil || !strings.Contains(err.Error(), "96 containers wait") {
		t.Errorf("too many wait: %v", err)
	}
}

func TestGrantsAreBounded(t *testing.T) {
	many := api.Grant{Namespace: "a", Name: "b", Containers: map[string]api.Rules{}}
	for i := range containersMax + 1 {
		many.Containers[fmt.Sprint(i)] = api.Rules{}
	}
	for name, tt := range map[string]struct {
		uid   string
		grant api.Grant
	}{
		"no UID":                  {"", given},
		"a long UID":              {strings.Repeat("u", uidMax+1), given},
		"no namespace":            {"u", api.Grant{Name: "b"}},
		"no name":                 {"u", api.Grant{Namespace: "a"}},
		"many containers":         {"u", many},
		"an unknown charge":       {"u", api.Grant{Namespace: "a", Name: "b", Charge: "free"}},
		"a rule of nobody's":      {"u", api.Grant{Namespace: "a", Name: "b", Containers: map[string]api.Rules{"c": {Ingress: []string{"x"}}}}},
		"an unknown endpoint":     {"u", api.Grant{Namespace: "a", Name: "b", Containers: map[string]api.Rules{"c": {Egress: []string{"10.0.0.0/8=x"}}}}},
		"translated, to anywhere": {"u", api.Grant{Namespace: "a", Name: "b", Containers: map[string]api.Rules{"c": {Translate: &api.Translate{}}}}},
		"rules that contradict": {"u", api.Grant{Namespace: "a", Name: "b", Containers: map[string]api.Rules{
			"c": {Egress: []string{"10.0.0.0/8=198.51.100.1", "10.0.0.0/8=198.51.100.2"}},
		}}},
	} {
		table := New(forever)
		if err := table.Put(tt.uid, tt.grant); !errors.Is(err, rules.ErrRequest) || len(table.All()) > 0 {
			t.Errorf("%s: %v, %v", name, err, table.All())
		}
	}
	table := New(forever)
	for i := range podsMax {
		put(t, table, fmt.Sprint(i), given)
	}
	if err := table.Put("another", given); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	put(t, table, "0", given)
	if !table.Delete("0") || table.Delete("0") {
		t.Error("Delete does not tell whether there was one")
	}
	put(t, table, "another", given)
}

// A reader that is too slow loses its stream, and the others keep theirs.
func TestSlowReader(t *testing.T) {
	table := New(forever)
	var streams []*Stream
	for range streamsMax {
		s, err := table.Watch()
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	if _, err := table.Watch(); !errors.Is(err, ErrStreams) {
		t.Errorf("one too many: %v", err)
	}
	<-streams[0].Events // PodReady: this one has room for one more than the others
	for range eventsMax {
		table.Tell(api.PodEvent{Type: api.PodRegistered})
	}
	n := 0
	for range streams[1].Events {
		n++
	}
	if n != eventsMax {
		t.Errorf("a slow reader got %d events and the end, want %d", n, eventsMax)
	}
	for range eventsMax {
		if _, more := <-streams[0].Events; !more {
			t.Fatal("a reader that is not slow lost its stream")
		}
	}
	for _, s := range streams {
		s.Close() // also of those that are closed
	}
	if _, err := table.Watch(); err != nil {
		t.Errorf("after all were closed: %v", err)
	}
}
