package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/grants"
	"github.com/tsugiki/tsugiki/api"
)

// TestFollow gives a container of a pod one grant after the other. What it can have is in force, what it
// cannot have is told, and what is not granted goes in any case.
func TestFollow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const (
		a      = "a type ipv4 addr 127.0.0.1 port 20080"
		a2     = "a type ipv4 addr 127.0.0.2 port 20080"
		b      = "b type ipv4 addr 0.0.0.0 port dynamic"
		nobody = "n type ipv4 addr 203.0.113.77 port 20080"
	)
	list := func(texts ...string) []string { return texts }
	of := func(endpoints, ingress, egress []string) api.Rules {
		return api.Rules{Endpoints: endpoints, Ingress: ingress, Egress: egress}
	}
	translated := func(mode string) api.Rules {
		return api.Rules{
			Mode: mode, Endpoints: list("six type ipv6 addr :: port dynamic", b), Ingress: list("0.0.0.0:80=six"),
			Egress: list("2001:db8::/32=six", "10.0.0.0/8=b"), Translate: &api.Translate{DNS: list("198.51.100.53:53")},
		}
	}
	in, out := list("0.0.0.0:80=a"), list("10.0.0.0/8=b")
	d, _ := newDaemon(t)
	d.grants = grants.New(time.Hour)
	first := of(list(a, b), in, out)
	if err := d.grants.Put("u1", api.Grant{Namespace: "shop", Name: "web", Containers: map[string]api.Rules{"c": first}}); err != nil {
		t.Fatal(err)
	}
	m, err := d.register(t.Context(), api.Registration{
		ID: "1", Name: fmt.Sprintf("shop.web.f%d", os.Getpid()), Engine: engineOfPods,
		Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.end(m)
	for _, tt := range []struct {
		what    string
		want    api.Rules
		changes followed
		now     []string // rules in force
		fails   string
	}{
		{"the same", first, followed{}, list("0.0.0.0:80=a", "10.0.0.0/8=b"), ""},
		{"one less", of(list(a), in, nil), followed{Changed: container.Changed{Withdrawn: list("-e 10.0.0.0/8=b")}}, in, ""},
		{"it comes back", first, followed{Changed: container.Changed{Restored: list("-e 10.0.0.0/8=b")}}, list("0.0.0.0:80=a", "10.0.0.0/8=b"), ""},
		{"another address", of(list(a2, b), in, out), followed{Changed: container.Changed{Moved: list("-i 0.0.0.0:80=a")}}, list("0.0.0.0:80=a", "10.0.0.0/8=b"), ""},
		{
			"another destination", of(list(a, b), in, list("11.0.0.0/8=b")),
			followed{Changed: container.Changed{Withdrawn: list("-e 10.0.0.0/8=b"), Added: list("-e 11.0.0.0/8=b"), Moved: list("-i 0.0.0.0:80=a")}},
			list("0.0.0.0:80=a", "11.0.0.0/8=b"), "",
		},
		{
			"one that needs traps", of(list(a, b), list("0.0.0.0:80+own=a"), list("10.0.0.0/8=b", "11.0.0.0/8=b")),
			followed{
				Changed: container.Changed{Withdrawn: list("-i 0.0.0.0:80=a"), Restored: list("-e 10.0.0.0/8=b")},
				restart: list("-i 0.0.0.0:80+own=a"), because: "the rule -i 0.0.0.0:80+own=a needs accept(2) to be trapped",
			},
			list("10.0.0.0/8=b", "11.0.0.0/8=b"), "",
		},
		{
			"one that the host cannot have", of(list(nobody, b), list("0.0.0.0:80=n"), list("10.0.0.0/8=b", "12.0.0.0/8=b")),
			followed{Changed: container.Changed{Withdrawn: list("-e 11.0.0.0/8=b"), Added: list("-e 12.0.0.0/8=b")}},
			list("10.0.0.0/8=b", "12.0.0.0/8=b"), "-i 0.0.0.0:80=n: endpoint n: the host has no address 203.0.113.77",
		},
		{
			"from now on translated", translated(""),
			followed{
				Changed: container.Changed{Withdrawn: list("-e 12.0.0.0/8=b")},
				restart: list("-i 0.0.0.0:80=six", "-e 2001:db8::/32=six"), because: "rules of a running container: the translation cannot change",
			},
			list("10.0.0.0/8=b"), "",
		},
		{
			"in another mode",
			api.Rules{Mode: "seccomp", Endpoints: list(a, b), Ingress: in, Egress: out},
			followed{restart: list("-i 0.0.0.0:80=a"), because: "rules of a running container: the mode cannot change"},
			list("10.0.0.0/8=b"), "",
		},
		{"as before", of(list(a, b), in, list("10.0.0.0/8=b", "12.0.0.0/8=b")), followed{Changed: container.Changed{Restored: list("-i 0.0.0.0:80=a"), Added: list("-e 12.0.0.0/8=b")}}, list("0.0.0.0:80=a", "10.0.0.0/8=b", "12.0.0.0/8=b"), ""},
		{"nothing any more", api.Rules{}, followed{Changed: container.Changed{Withdrawn: list("-e 10.0.0.0/8=b", "-e 12.0.0.0/8=b", "-i 0.0.0.0:80=a")}}, nil, ""},
	} {
		f := m.follow(tt.want)
		if (len(f.failed) != 0) != (tt.fails != "") || len(f.failed) > 0 && !strings.HasPrefix(f.failed[0].Rule+": "+f.failed[0].Reason, tt.fails) {
			t.Errorf("%s: %q, want %q", tt.what, f.failed, tt.fails)
		}
		f.failed = nil
		if f.because, _, _ = strings.Cut(strings.TrimPrefix(f.because, container.ErrUntrapped.Error()+": "), ";"); f.because != tt.changes.because {
			t.Errorf("%s: because %q, want %q", tt.what, f.because, tt.changes.because)
		}
		if diff := cmp.Diff(tt.changes, f, cmp.AllowUnexported(followed{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
		r := m.Rules()
		slices.Sort(r.Egress) // they are in the order in which they came
		if diff := cmp.Diff(tt.now, append(r.Ingress, r.Egress...)); diff != "" {
			t.Errorf("%s: in force (-want +got):\n%s", tt.what, diff)
		}
	}
}

// Other resolvers are asked, or none, as the grant says, and the record has them for the next daemon.
func TestFollowResolvers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	of := func(dns ...string) api.Rules {
		r := api.Rules{Endpoints: []string{"six type ipv6 addr :: port dynamic"}, Egress: []string{"2001:db8::/32=six"}}
		if len(dns) > 0 {
			r.Translate = &api.Translate{DNS: dns}
		}
		return r
	}
	d, _ := newDaemon(t)
	beginGrants(t, d)
	grantedNow(t, d, map[string]api.Rules{"c": of("198.51.100.53:53")})
	r := ofPod("c", "1")
	r.LoopbackOnly = true
	m, err := d.register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer d.end(m)
	const first = "198.51.100.53:53"
	for _, dns := range [][]string{{"198.51.100.54:53", "198.51.100.55:53"}, nil, {"198.51.100.54:53"}, {first}} {
		if answer := grantedNow(t, d, map[string]api.Rules{"c": of(dns...)}); cmp.Diff(api.Granted{}, answer) != "" {
			t.Errorf("%v: %+v", dns, answer)
		}
		var asked []string
		for _, r := range m.Resolvers() {
			asked = append(asked, r.String())
		}
		if !slices.Equal(asked, dns) {
			t.Errorf("%v are asked, want %v", asked, dns)
		}
		kept, err := d.store.get(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		others := slices.DeleteFunc(slices.Clone(dns), func(r string) bool { return r == first }) // than those of its start
		if kept.NoNames != (len(dns) == 0) || !slices.Equal(kept.Resolvers, others) {
			t.Errorf("%v: the record has %v, none: %v", dns, kept.Resolvers, kept.NoNames)
		}
	}
	pool := of("198.51.100.54:53")
	pool.Translate.Pool = "10.18.0.0/15"
	answer := grantedNow(t, d, map[string]api.Rules{"c": pool})
	if !slices.Equal(answer.Restart["c"], []string{restartTranslate}) || m.Resolvers()[0].String() != "198.51.100.54:53" {
		t.Errorf("another pool: %+v; %v are asked", answer, m.Resolvers())
	}
	// Those of the grant before are not asked if nobody knows those of the host.
	defer func(was string) { resolvConf = was }(resolvConf)
	resolvConf = "/nothing/here"
	own := of(first)
	own.Translate.DNS = nil
	answer = grantedNow(t, d, map[string]api.Rules{"c": own})
	if len(answer.Failed) != 1 || answer.Failed[0].Rule != restartTranslate || len(m.Resolvers()) != 0 {
		t.Errorf("unknown resolvers: %+v; %v are asked", answer, m.Resolvers())
	}
}

// Whose rules a grant says, nobody else changes them; and a port that the engine publishes stays where it is.
func TestRequestedRules(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d, _ := newDaemon(t)
	name := fmt.Sprintf("asked%d", os.Getpid())
	first := api.Rules{Ingress: []string{"0.0.0.0:80+own=127.0.0.1:20080"}}
	m, err := d.register(t.Context(), api.Registration{ID: "1", Name: name, Engine: "docker", Published: []string{"80/tcp", "81/tcp"}, Rules: &first})
	if err != nil {
		t.Fatal(err)
	}
	defer d.end(m)
	path := "/v1/containers/" + name + "/rules"
	for _, tt := range []struct {
		method, path string
		body         any
		code         int
		want         string
	}{
		{"GET", path, nil, 200, `"ingress":["0.0.0.0:80+own=i-1"]`},
		{"PUT", path, api.Rules{Ingress: []string{"0.0.0.0:81=127.0.0.1"}}, 409, "publishes port 81/tcp of the container (-p)"},
		{"PUT", path, api.Rules{Ingress: []string{"0.0.0.0:82=127.0.0.1:20082"}}, 200, `{"withdrawn":["-i 0.0.0.0:80+own=i-1"],"added":["-i 0.0.0.0:82=i-1"]}`},
		{"GET", path, nil, 200, `"ingress":["0.0.0.0:82=i-1"]`},
		{"PUT", path, api.Rules{Mode: "seccomp"}, 409, "the mode cannot change"},
		{"PUT", path, map[string]int{"rules": 1}, 400, "unknown field"},
		{"PUT", "/v1/containers/nobody/rules", api.Rules{}, 404, "no container"},
	} {
		if code, body := ask(t, d, tt.method, tt.path, tt.body); code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %s, want %d %q", tt.method, tt.path, code, body, tt.code, tt.want)
		}
	}
	m.identity.Pod, d.grants = &api.Pod{UID: "u1"}, grants.New(time.Hour)
	if _, err := m.ReadRules(api.Rules{}); !errors.Is(err, container.ErrNew) || !strings.Contains(err.Error(), "grant of its pod") {
		t.Errorf("a container with a grant: %v", err)
	}
	m.identity.Pod, m.identity.VSock = nil, "/vm"
	if code, body := ask(t, d, "PUT", path, api.Rules{}); code != http.StatusConflict || !strings.Contains(body, "detach the virtual machine") {
		t.Errorf("a virtual machine: %d %s", code, body)
	}
	m.identity.VSock = ""
}
