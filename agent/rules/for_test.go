package rules

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// The rules of a registration go before those of its annotations, and these before those of the
// configuration, which has them by the name that the engine gives.
func TestFor(t *testing.T) {
	cfg := loaded(t, entry(hearAll, anywhere, anyHost)+"[[container]]\nmatch = \"web\"\negress = [\"192.0.2.0/24=0.0.0.0\"]\n[[container]]\nmatch = \"db\"\n")
	annotated := func(name string, annotations ...string) *api.Registration {
		r := registration(strings.Join(annotations, " | "))
		r.Name = name
		return r
	}
	own := &api.Registration{Name: "web", Engine: "no engine", Rules: &api.Rules{Egress: []string{"198.51.100.0/24=0.0.0.0"}}}
	for _, tt := range []struct {
		name   string
		r      *api.Registration
		found  bool
		egress string
		as     string
		annot  bool
	}{
		{"its own rules", own, true, "198.51.100.0/24=e-1", "web", false},
		{"its own, none", &api.Registration{Name: "cache", Rules: &api.Rules{}}, true, "", "cache", false},
		{"annotations", annotated("web", "egress=203.0.113.0/24=0.0.0.0"), true, "203.0.113.0/24=e-1", "web", true},
		{"a mode alone", annotated("web", "mode=seccomp"), true, "", "web", true},
		{"a name alone", annotated("web", "name=web-2"), true, "192.0.2.0/24=e-1", "web-2", false},
		{"another's name", annotated("web1", "name=web"), false, "", "web", false},
		{"the configuration", &api.Registration{Name: "web", Engine: "docker"}, true, "192.0.2.0/24=e-1", "web", false},
		{"an entry without rules", &api.Registration{Name: "db", Engine: "docker"}, true, "", "db", false},
		{"nothing", &api.Registration{Name: "cache", Engine: "docker"}, false, "", "cache", false},
	} {
		g, err := For(cfg, tt.r)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		egress := strings.Join(g.Rules.Texts().Egress, ", ")
		if g.Found != tt.found || egress != tt.egress || g.Name != tt.as || g.Annotated != tt.annot {
			t.Errorf("%s: %v %q %q %v", tt.name, g.Found, egress, g.Name, g.Annotated)
		}
	}
}

func TestForRefuses(t *testing.T) {
	cfg := loaded(t, entry(hearAll, anywhere, `types = ["unix"]`, `paths = ["/nowhere/*"]`))
	for name, tt := range map[string]struct {
		r    *api.Registration
		want error
	}{
		"a rule that is none":        {&api.Registration{Name: "web", Rules: &api.Rules{Egress: []string{"x"}}}, ErrRequest},
		"a mode that is none":        {&api.Registration{Name: "web", Rules: &api.Rules{Mode: "x"}}, ErrRequest},
		"an annotation that is none": {registration("colour=red"), ErrRequest},
		"an engine that is none":     {&api.Registration{Name: "web", Engine: "x"}, ErrRequest},
		"what is not allowed":        {registration("ingress=0.0.0.0:80=198.51.100.1"), ErrNotAllowed},
		"a folder that is not there": {registration("endpoints=u type unix path /nowhere/socket"), ErrNotAllowed},
	} {
		if g, err := For(cfg, tt.r); !errors.Is(err, tt.want) || g.Found {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

// A definition is read as the endpoint that it was made of.
func TestDefinition(t *testing.T) {
	for line, want := range map[string]api.Definition{
		"a type ipv4 addr 198.51.100.1 port 80":               {Type: "ipv4", Addr: "198.51.100.1", Port: "80"},
		"a type ipv6 addr :: port dynamic nameable":           {Type: "ipv6", Addr: "::", Port: "dynamic", Nameable: true},
		"a type ipv4 addr 0.0.0.0 port 8000-8009 netns blue":  {Type: "ipv4", Addr: "0.0.0.0", Port: "8000-8009", Netns: "blue"},
		"a type unix path /run/x.sock netns /run/netns/other": {Type: "unix", Path: "/run/x.sock", Netns: "/run/netns/other"},
	} {
		ep, err := endpoint.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		got := DefinitionOf(ep)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
		if again, err := ParseDefinition("a", got); err != nil || again.String() != ep.String() {
			t.Errorf("%s is read as %v, %v", line, again, err)
		}
	}
	for _, d := range []api.Definition{{}, {Type: "ipv4"}, {Type: "unix", Path: "/x", Addr: "198.51.100.1"}, {Type: "ipx", Addr: "1"}} {
		if _, err := ParseDefinition("a", d); !errors.Is(err, endpoint.ErrGrammar) {
			t.Errorf("%+v: %v", d, err)
		}
	}
}
