package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
)

// restarted has a daemon forget what it does not keep.
func restarted(t *testing.T, d *Daemon) {
	t.Helper()
	d.podNotes = podNotes{}
	d.podNotes.load(d.store, d.log)
	beginGrants(t, d)
}

// grantedNow puts a grant, and returns the answer.
func grantedNow(t *testing.T, d *Daemon, containers map[string]api.Rules) (answer api.Granted) {
	t.Helper()
	code, body := ask(t, d, "PUT", "/v1/pods/u1", api.Grant{Namespace: "shop", Name: "web", Containers: containers})
	if code != 200 {
		t.Fatalf("put: %d %s", code, body)
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// ofPod is a container of the pod u1.
func ofPod(container, id string) api.Registration {
	return api.Registration{
		ID: id, Name: fmt.Sprintf("shop.web.%s%d", container, os.Getpid()), Engine: engineOfPods,
		Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: container},
	}
}

// Whoever gives a container rules that began without any hears that it needs a new one, from the next daemon too.
func TestBare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const a, b, six = "a type ipv4 addr 127.0.0.1 port 20080", "b type ipv4 addr 0.0.0.0 port dynamic", "six type ipv6 addr :: port dynamic"
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, nil)
	for i, name := range []string{"c", "sidecar"} {
		if m, err := d.register(t.Context(), ofPod(name, fmt.Sprint(i))); m != nil || err != nil {
			t.Fatalf("%v, %v", m, err)
		}
	}
	some := api.Rules{Endpoints: []string{a, b}, Ingress: []string{"0.0.0.0:80+from:10.0.0.0/8=a"}, Egress: []string{"10.0.0.0/8=b"}}
	needs := api.Granted{
		Restart: map[string][]string{"c": {"-i 0.0.0.0:80=a", "-e 10.0.0.0/8=b"}},
		Because: map[string]string{"c": errBare.Error()},
	}
	for _, tt := range []struct {
		what  string
		given map[string]api.Rules
		want  api.Granted
		again bool // the daemon starts anew before
	}{
		{"nothing", nil, api.Granted{}, false},
		{"rules", map[string]api.Rules{"c": some}, needs, false},
		{"the same", map[string]api.Rules{"c": some}, needs, false},
		{"the same of the next daemon", map[string]api.Rules{"c": some}, needs, true},
		{"no rules", map[string]api.Rules{"c": {}, "sidecar": {}}, api.Granted{}, false},
		{
			"translation",
			map[string]api.Rules{"c": {Endpoints: []string{six}, Egress: []string{"2001:db8::/32=six"}, Translate: &api.Translate{DNS: []string{"198.51.100.53:53"}}}},
			api.Granted{Restart: map[string][]string{"c": {"-e 2001:db8::/32=six", restartTranslate}}, Because: needs.Because},
			false,
		},
		{"an endpoint alone", map[string]api.Rules{"c": {Endpoints: []string{a}}}, api.Granted{Restart: map[string][]string{"c": {"endpoint a"}}, Because: needs.Because}, false},
	} {
		if tt.again {
			restarted(t, d)
		}
		if diff := cmp.Diff(tt.want, grantedNow(t, d, tt.given)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
	}
	if _, body := ask(t, d, "PUT", "/v1/pods/u1", api.Grant{Namespace: "shop", Name: "web", Refused: "no"}); body != "{}" {
		t.Errorf("a refusal: %s", body)
	}
	// A new container has the rules.
	grantedNow(t, d, map[string]api.Rules{"c": some})
	m, err := d.register(t.Context(), ofPod("c", "3"))
	if err != nil || m == nil {
		t.Fatalf("%v, %v", m, err)
	}
	defer d.end(m)
	if answer := grantedNow(t, d, map[string]api.Rules{"c": some}); cmp.Diff(api.Granted{}, answer) != "" {
		t.Errorf("a new container: %+v", answer)
	}
	// One without rules comes before the daemon has noticed the end of the one before.
	grantedNow(t, d, nil)
	if m, err := d.register(t.Context(), ofPod("c", "4")); m != nil || err != nil {
		t.Fatalf("%v, %v", m, err)
	}
	if answer := grantedNow(t, d, map[string]api.Rules{"c": some}); !slices.Equal(answer.Restart["c"], needs.Restart["c"]) {
		t.Errorf("a container without rules whose former one is still there: %+v", answer)
	}
}

// The next daemon lists pods whose containers have no rules, so that whoever gives grants can say that a pod has gone.
func TestBareGoes(t *testing.T) {
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, nil)
	if _, err := d.register(t.Context(), ofPod("c", "1")); err != nil {
		t.Fatal(err)
	}
	restarted(t, d)
	if code, body := ask(t, d, "GET", "/v1/pods", nil); code != 200 || body != `[{"uid":"u1","namespace":"shop","name":"web"}]` {
		t.Errorf("pods: %d %s", code, body)
	}
	for _, want := range []int{204, 404} {
		if code, body := ask(t, d, "DELETE", "/v1/pods/u1", nil); code != want {
			t.Errorf("delete: %d %s, want %d", code, body, want)
		}
	}
	if notes, err := d.store.pods(); err != nil || len(notes) > 0 || len(d.podNotes.byUID) > 0 {
		t.Errorf("notes are left: %v, %v, %v", notes, d.podNotes.byUID, err)
	}
}

// A container is not started without rules that it has been given meanwhile, nor if nobody could be told later.
func TestBareIsNotStarted(t *testing.T) {
	d, _ := newDaemon(t)
	s := beginGrants(t, d)
	grantedNow(t, d, nil)
	used := d.grants.Get("u1")
	r := ofPod("c", "1")
	if err := d.podNotes.note(r.Pod, r.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := d.catchUp(nil, r.Pod, used); err != nil {
		t.Errorf("the same grant: %v", err)
	}
	grantedNow(t, d, map[string]api.Rules{"c": {Endpoints: []string{"b type ipv4 addr 0.0.0.0 port dynamic"}, Egress: []string{"10.0.0.0/8=b"}}})
	if err := d.catchUp(nil, r.Pod, used); !errors.Is(err, errBare) {
		t.Errorf("another grant: %v", err)
	}
	if err := errors.Join(d.podNotes.drop(r.Pod, "2"), d.podNotes.drop(&api.Pod{UID: "u2"}, "1")); err != nil || !slices.Equal(d.podNotes.bareOf("u1"), []string{"c"}) {
		t.Errorf("another container is dropped: %v, %v", err, d.podNotes.bareOf("u1"))
	}
	if err := d.podNotes.drop(r.Pod, r.ID); err != nil || len(d.podNotes.bareOf("u1")) > 0 {
		t.Errorf("dropped: %v, %v", err, d.podNotes.bareOf("u1"))
	}
	grantedNow(t, d, nil)
	if err := d.store.close(); err != nil {
		t.Fatal(err)
	}
	if m, err := d.register(t.Context(), r); m != nil || err == nil || !strings.Contains(err.Error(), "write down pod shop/web") {
		t.Errorf("the store is closed: %v, %v", m, err)
	}
	if e := <-s.Events; e.Type != api.PodRefused {
		t.Errorf("event %+v", e)
	}
}
