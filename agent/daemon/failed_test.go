package daemon

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/forward"
)

// When the host cannot have one rule, all others of the pod are in force, and the answer says which is not and what has
// changed. Once nothing is in the way any more, the same grant puts it in force.
func TestGrantFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const (
		a        = "a type ipv4 addr 127.0.0.1 port 20080"
		b        = "b type ipv4 addr 0.0.0.0 port dynamic"
		taken    = "t type ipv4 addr 127.0.0.1 port 20082"
		reserved = "r type ipv4 addr 127.0.0.1 port 20083"
	)
	d, _ := newDaemon(t)
	beginGrants(t, d)
	first := map[string]api.Rules{
		"c":     {Endpoints: []string{a, b}, Ingress: []string{"0.0.0.0:80=a"}, Egress: []string{"10.0.0.0/8=b"}},
		"other": {Endpoints: []string{b}, Egress: []string{"10.0.0.0/8=b"}},
	}
	grantedNow(t, d, first)
	registered := func(r api.Registration) *managed {
		t.Helper()
		m, err := d.register(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.end(m) })
		return m
	}
	c := registered(ofPod("c", "1"))
	registered(ofPod("other", "2"))
	holder := ofPod("holder", "3")
	holder.Pod, holder.Engine, holder.Rules = nil, "docker", &api.Rules{Endpoints: []string{reserved}, Ingress: []string{"0.0.0.0:80=r"}}
	rival := registered(holder)
	server, err := net.Listen("tcp4", "127.0.0.1:20082")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()

	then := map[string]api.Rules{
		"c": {
			Endpoints: []string{b, taken, reserved, "g type ipv4 addr 127.0.0.1 port 20084"},
			Ingress:   []string{"0.0.0.0:82=t", "0.0.0.0:83=r", "0.0.0.0:84=g"}, Egress: []string{"10.0.0.0/8=b", "11.0.0.0/8=b"},
		},
		"other": {Endpoints: []string{b}, Egress: []string{"12.0.0.0/8=b"}},
	}
	answer := grantedNow(t, d, then)
	reasons := map[string]string{}
	for _, f := range answer.Failed {
		reasons[f.Container+" "+f.Rule] = f.Reason
	}
	if len(reasons) != 2 || !strings.Contains(reasons["c -i 0.0.0.0:82=t"], "20082") || !strings.Contains(reasons["c -i 0.0.0.0:83=r"], "is reserved for container") {
		t.Errorf("failed: %q", answer.Failed)
	}
	answer.Failed = nil
	for _, list := range answer.Added {
		slices.Sort(list)
	}
	want := api.Granted{
		Withdrawn: map[string][]string{"c": {"-i 0.0.0.0:80=a"}, "other": {"-e 10.0.0.0/8=b"}},
		Added:     map[string][]string{"c": {"-e 11.0.0.0/8=b", "-i 0.0.0.0:84=g"}, "other": {"-e 12.0.0.0/8=b"}},
	}
	if diff := cmp.Diff(want, answer); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if has := c.Rules(); !slices.Equal(has.Ingress, []string{"0.0.0.0:84=g"}) {
		t.Errorf("in force: %q", has.Ingress)
	}

	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	d.end(rival)
	answer = grantedNow(t, d, then)
	slices.Sort(answer.Added["c"])
	if diff := cmp.Diff(api.Granted{Added: map[string][]string{"c": {"-i 0.0.0.0:82=t", "-i 0.0.0.0:83=r"}}}, answer); diff != "" {
		t.Errorf("nothing is in the way (-want +got):\n%s", diff)
	}
}

// What cannot be written down is no reason to leave rules in force that are not granted any more, nor to say nothing.
func TestGrantIsNotSaved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const a, b = "a type ipv4 addr 127.0.0.1 port 20080", "b type ipv4 addr 0.0.0.0 port dynamic"
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, map[string]api.Rules{"c": {Endpoints: []string{a}, Ingress: []string{"0.0.0.0:80=a"}}})
	m, err := d.register(t.Context(), ofPod("c", "1"))
	if err != nil {
		t.Fatal(err)
	}
	notes, err := openStore(t.TempDir(), d.boot)
	if err == nil {
		d.podNotes.store = notes // which go on being kept
		err = d.store.close()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer := grantedNow(t, d, map[string]api.Rules{"c": {Endpoints: []string{b}, Egress: []string{"10.0.0.0/8/tcp=b"}}})
	if diff := cmp.Diff(map[string][]string{"c": {"-i 0.0.0.0:80=a"}}, answer.Withdrawn); diff != "" {
		t.Errorf("withdrawn (-want +got):\n%s", diff)
	}
	if has := m.Rules(); len(has.Ingress) != 0 || len(has.Egress) != 0 || len(answer.Added) != 0 {
		t.Errorf("in force: %+v; answer: %+v", has, answer)
	}
	var rules []string
	for _, f := range answer.Failed {
		if rules = append(rules, f.Rule); f.Container != "c" || !strings.Contains(f.Reason, "state cannot be kept") {
			t.Errorf("failed: %+v", f)
		}
	}
	if !slices.Contains(rules, "") || !slices.Contains(rules, "-e 10.0.0.0/8/tcp=b") {
		t.Errorf("failed: %q", answer.Failed)
	}
	if code, body := ask(t, d, "DELETE", "/v1/pods/u1", nil); code == 204 {
		t.Errorf("the grant is deleted, and nothing is written down: %d %s", code, body)
	}
	if !d.podNotes.has("u1") {
		t.Error("the pod is forgotten, and something of it fails")
	}
	if d.store, err = openStore(d.config.Load().StateDir, d.boot); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(t, d, "DELETE", "/v1/pods/u1", nil); code != 204 {
		t.Errorf("delete: %d %s", code, body)
	}
	if list, err := d.store.all(); err != nil || len(list) != 1 || !slices.Equal(list[0].Gone, []int{1}) {
		t.Errorf("records: %+v, %v", list, err)
	}
	if err := notes.close(); err != nil || d.podNotes.has("u1") {
		t.Errorf("the pod is noted: %v; %v", d.podNotes.has("u1"), err)
	}
	d.end(m)
}

// If the rest of the rules cannot be put in force, all go, and those that are granted come back. If they cannot go, the
// request fails.
func TestAllRulesGo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const b = "b type ipv4 addr 0.0.0.0 port dynamic"
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, map[string]api.Rules{"c": {Endpoints: []string{b}, Egress: []string{"10.0.0.0/8=b", "11.0.0.0/8=b"}}})
	m, err := d.register(t.Context(), ofPod("c", "1"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.end(m)
	noRoom := errors.New("no room")
	set := func(want *rules.Rules) (container.Changed, error) {
		if len(m.Rules().Egress) == 2 && len(want.Egress) > 0 {
			return container.Changed{}, noRoom
		}
		return m.SetRules(want)
	}
	less := api.Rules{Endpoints: []string{b}, Egress: []string{"10.0.0.0/8=b"}}
	f := m.followBy(less, func(*rules.Rules) (container.Changed, error) { return container.Changed{}, noRoom })
	if !errors.Is(f.stays, noRoom) || len(f.Withdrawn)+len(f.failed) > 0 || len(m.Rules().Egress) != 2 {
		t.Errorf("nothing goes: %+v; in force %q", f, m.Rules().Egress)
	}
	want := followed{Changed: container.Changed{Withdrawn: []string{"-e 11.0.0.0/8=b"}}}
	if diff := cmp.Diff(want, m.followBy(less, set), cmp.AllowUnexported(followed{}), cmpopts.EquateEmpty()); diff != "" || len(m.Rules().Egress) != 1 {
		t.Errorf("in force %q (-want +got):\n%s", m.Rules().Egress, diff)
	}
}

// What may be in force that is not granted is an error of the request, which is tried again at once, and not a part of
// the answer.
func TestStays(t *testing.T) {
	host, _ := podLinks(t, podLink{"s1", "sandbox1", true})
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, nil)
	slow := api.Grant{Namespace: "shop", Name: "web", Slow: true}
	r := ofPod("c", "1")
	r.Pod.Sandbox = "sandbox1"
	if err := host.Do(func() error { _, err := d.register(t.Context(), r); return err }); err != nil {
		t.Fatal(err)
	}
	folder := forward.Folder
	forward.Folder = "/proc/self/status/none"
	if code, body := ask(t, d, "PUT", "/v1/pods/u1", slow); code != 500 || !strings.Contains(body, "direct forward of the pod") {
		t.Errorf("a link that may be direct: %d %s", code, body)
	}
	forward.Folder = folder
	err := host.Do(func() error {
		code, body := ask(t, d, "PUT", "/v1/pods/u1", slow)
		if code != 200 || strings.Contains(body, "failed") {
			t.Errorf("again: %d %s", code, body)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
