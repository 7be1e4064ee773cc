package httpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

func TestReadDefinition(t *testing.T) {
	const good = `{"type":"ipv4","addr":"192.0.2.1","port":"80"}`
	var d api.Definition
	err := ReadObject(strings.NewReader(good+"\n"), &d)
	if want := (api.Definition{Type: "ipv4", Addr: "192.0.2.1", Port: "80"}); err != nil || d != want {
		t.Errorf("%s: %+v, %v", good, d, err)
	}
	for name, body := range map[string]string{
		"empty": "", "no JSON": "out type ipv4", "cut": good[:len(good)-1], "twice": good + good, "more": good + "]",
		"unknown field": `{"type":"ipv4","address":"192.0.2.1"}`, "a name": `{"name":"x","type":"ipv4"}`,
		"number": `{"type":"ipv4","port":80}`, "array": "[" + good + "]", "text": `"ipv4"`, "deep": strings.Repeat("[", 1<<20),
	} {
		if err := ReadObject(strings.NewReader(body), new(api.Definition)); !errors.Is(err, rules.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDefinition checks that a definition that is taken makes an endpoint that is
// the same when it is shown and added again.
func FuzzDefinition(f *testing.F) {
	for _, body := range []string{
		`{"type":"ipv4","addr":"192.0.2.1","port":"80"}`, `{"type":"ipv6","addr":"::","port":"8000-8009","netns":"x"}`,
		`{"type":"unix","path":"/run/x y"}`, `{"type":"ipv4 addr 0.0.0.0 port 1","addr":"","port":""}`, `{}`, `null`,
		`{"type":"ipv4","addr":"::ffff:1.2.3.4","port":"any"}`, `{"type":"unix","path":"/x","netns":"a\nb"}`,
	} {
		f.Add("out", body)
	}
	f.Fuzz(func(t *testing.T, name, body string) {
		var d api.Definition
		if ReadObject(strings.NewReader(body), &d) != nil {
			return
		}
		ep, err := rules.ParseDefinition(name, d)
		if err != nil {
			if !errors.Is(err, endpoint.ErrGrammar) {
				t.Fatal(err)
			}
			return
		}
		shown, err := json.Marshal(api.Endpoint{Name: name, Definition: rules.DefinitionOf(ep)})
		if err != nil {
			t.Fatal(err)
		}
		var e api.Endpoint
		if err := json.Unmarshal(shown, &e); err != nil {
			t.Fatal(err)
		}
		back, err := rules.ParseDefinition(e.Name, e.Definition)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		line := back.String()
		if strings.ContainsAny(line, "\n\x00") {
			t.Fatalf("%q: %q", body, line)
		}
		again, err := endpoint.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ep, again, cmpopts.EquateComparable(ep.Addr)); diff != "" {
			t.Errorf("%q is shown as %q:\n%s", body, line, diff)
		}
	})
}
