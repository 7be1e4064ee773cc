package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// A pod that has a network is not translated: its container is not started at all.
func TestTranslatedPodWithNetwork(t *testing.T) {
	d, _ := newDaemon(t)
	s := beginGrants(t, d)
	r := api.Rules{
		Endpoints: []string{"x type ipv6 addr :: port dynamic"}, Egress: []string{"2001:db8::/32=x"}, Translate: &api.Translate{DNS: []string{"198.51.100.53:53"}},
	}
	if err := d.grants.Put("u1", api.Grant{Namespace: "shop", Name: "web", Containers: map[string]api.Rules{"c": r}}); err != nil {
		t.Fatal(err)
	}
	m, err := d.register(t.Context(), api.Registration{
		ID: "1", Name: "shop.web.c", Engine: engineOfPods, Pod: &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"},
	})
	if m != nil || !errors.Is(err, rules.ErrNotAllowed) {
		t.Errorf("%v, %v", m, err)
	}
	if e := <-s.Events; e.Type != api.PodRefused || !strings.Contains(e.Reason, "give the pod the RuntimeClass of such pods") {
		t.Errorf("event %+v", e)
	}
}

// A container needs a new one if its IPv4 is to be translated otherwise.
func TestRetranslates(t *testing.T) {
	of := func(translate *api.Translate) api.Rules {
		return api.Rules{Endpoints: []string{"b type ipv6 addr :: port dynamic"}, Egress: []string{"2001:db8::/32=b"}, Translate: translate}
	}
	registered := func(r api.Rules) *api.Translate {
		parsed, err := rules.Parse(r)
		if err == nil {
			err = haveResolvers(parsed.Translation)
		}
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Texts().Translate
	}
	one, two := of(&api.Translate{DNS: []string{"198.51.100.53:53"}}), of(&api.Translate{DNS: []string{"198.51.100.54:53"}})
	pool := of(&api.Translate{DNS: []string{"198.51.100.53:53"}, Pool: "10.18.0.0/15"})
	for name, tt := range map[string]struct {
		had  *api.Translate
		want api.Rules
		is   bool
	}{
		"as before":               {registered(one), one, false},
		"other resolvers":         {registered(one), two, false},
		"another pool":            {registered(one), pool, true},
		"from now on":             {nil, one, true},
		"not at all":              {nil, of(nil), false},
		"no longer":               {registered(one), of(nil), false},
		"with nothing, no longer": {registered(one), api.Rules{}, false},
	} {
		if is := retranslates(tt.had, tt.want); is != tt.is {
			t.Errorf("%s: %v, want %v", name, is, tt.is)
		}
	}
}
