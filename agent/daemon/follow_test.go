package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

func TestPlan(t *testing.T) {
	const (
		a  = "a type ipv4 addr 198.51.100.1 port 8080"
		a2 = "a type ipv4 addr 198.51.100.1 port 8081"
		b  = "b type ipv4 addr 0.0.0.0 port dynamic"
	)
	of := func(endpoints, ingress, egress []string) api.Rules {
		return api.Rules{Endpoints: endpoints, Ingress: ingress, Egress: egress}
	}
	list := func(texts ...string) []string { return texts }
	in, out, wide := list("0.0.0.0:80=a"), list("10.0.0.0/8=b"), list("10.0.0.0/8=b", "0.0.0.0/0=b")
	both := of(list(a, b), in, out)
	for name, tt := range map[string]struct {
		had, want api.Rules
		now       []string
		steps     []string
		changes   followed
	}{
		"the same":            {both, both, list(a, b), nil, followed{}},
		"nothing any more":    {both, api.Rules{}, list(a, b), list("-a", "-b"), followed{withdrawn: list("-i 0.0.0.0:80=a", "-e 10.0.0.0/8=b")}},
		"one less":            {both, of(list(a), in, nil), list(a, b), list("-b"), followed{withdrawn: list("-e 10.0.0.0/8=b")}},
		"it is gone already":  {both, of(list(a), in, nil), list(a), nil, followed{}},
		"it comes back":       {both, both, list(a), list("+" + b), followed{restored: list("-e 10.0.0.0/8=b")}},
		"another port":        {both, of(list(a2, b), in, out), list(a, b), list("-a", "+"+a2), followed{}},
		"somebody added one":  {both, both, list(a, b, "c type unix path /c"), list("-c"), followed{}},
		"somebody changed it": {both, both, list(a2, b), list("-a", "+"+a), followed{}},
		"another destination": {
			both, of(list(a, b), in, list("10.0.0.0/9=b")), list(a, b), list("-b"),
			followed{withdrawn: list("-e 10.0.0.0/8=b"), restart: list("-e 10.0.0.0/9=b")},
		},
		"one of two rules of an endpoint": {
			of(list(b), nil, wide), of(list(b), nil, out), list(b), list("-b"),
			followed{withdrawn: list("-e 10.0.0.0/8=b", "-e 0.0.0.0/0=b")},
		},
		"other sources": {both, of(list(a, b), list("0.0.0.0:80+from:10.0.0.0/8=a"), out), list(a, b), nil, followed{}},
		"a new one":     {of(list(a), in, nil), both, list(a), nil, followed{restart: list("-e 10.0.0.0/8=b")}},
	} {
		parse := func(r api.Rules) rules.Rules {
			parsed, err := rules.Parse(r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return parsed
		}
		had, want, now := parse(tt.had), parse(tt.want), parse(api.Rules{Endpoints: tt.now})
		steps, changes := plan(&had, &want, &now.Endpoints)
		var got []string
		for _, s := range steps {
			if s.remove != "" {
				got = append(got, "-"+s.remove)
			}
			if s.add != nil {
				got = append(got, "+"+s.add.String())
			}
		}
		if diff := cmp.Diff(tt.steps, got); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.changes, changes, cmp.AllowUnexported(followed{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Sources change without a new container: of rules that are wanted, and of no others.
func TestPlanSources(t *testing.T) {
	const endpoints = "a type ipv4 addr 198.51.100.1 port 8080"
	parse := func(ingress ...string) []policy.Ingress {
		t.Helper()
		r, err := rules.Parse(api.Rules{Endpoints: []string{endpoints, "b type ipv4 addr 198.51.100.1 port 8081"}, Ingress: ingress})
		if err != nil {
			t.Fatal(err)
		}
		return r.Ingress
	}
	for name, tt := range map[string]struct {
		had, wanted  []string
		now          []string
		want, change []string
	}{
		"the same":      {[]string{"0.0.0.0:80+from:10.0.0.0/8=a"}, []string{"0.0.0.0:80+from:10.0.0.0/8=a"}, []string{"+from:10.0.0.0/8"}, []string{"+from:10.0.0.0/8"}, nil},
		"changed":       {[]string{"0.0.0.0:80+from:10.0.0.0/8=a"}, []string{"0.0.0.0:80+from:11.0.0.0/8=a"}, []string{"+from:10.0.0.0/8"}, []string{"+from:11.0.0.0/8"}, []string{"-i 0.0.0.0:80+from:11.0.0.0/8=a"}},
		"changed back":  {[]string{"0.0.0.0:80=a"}, []string{"0.0.0.0:80=a"}, []string{"+from:10.0.0.0/8"}, []string{""}, []string{"-i 0.0.0.0:80=a"}},
		"not wanted":    {[]string{"0.0.0.0:80=a"}, nil, []string{"+from:10.0.0.0/8"}, []string{"+from:10.0.0.0/8"}, nil},
		"one of two":    {[]string{"0.0.0.0:80=a", "0.0.0.0:81=b"}, []string{"0.0.0.0:81+from:pod:x=b"}, []string{"+from:10.0.0.0/8", ""}, []string{"+from:10.0.0.0/8", "+from:pod:x"}, []string{"-i 0.0.0.0:81+from:pod:x=b"}},
		"another rule":  {[]string{"0.0.0.0:80=a"}, []string{"0.0.0.0:80/tcp+from:10.0.0.0/8=a"}, []string{""}, []string{""}, nil},
		"own is a rule": {[]string{"0.0.0.0:80=a"}, []string{"0.0.0.0:80+own+from:10.0.0.0/8=a"}, []string{""}, []string{""}, nil},
	} {
		var now []policy.From
		for _, text := range tt.now {
			f, err := policy.ParseFrom(text)
			if err != nil {
				t.Fatal(err)
			}
			now = append(now, f)
		}
		sources, changed := planSources(parse(tt.had...), parse(tt.wanted...), now)
		var got []string
		for _, f := range sources {
			got = append(got, f.String())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: sources (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.change, changed); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
	}
}
