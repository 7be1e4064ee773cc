package agent

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tsugiki/tsugiki/endpoint"
)

func TestReadDefinition(t *testing.T) {
	const good = `{"type":"ipv4","addr":"192.0.2.1","port":"80"}`
	var d Definition
	err := readObject(strings.NewReader(good+"\n"), &d)
	if want := (Definition{Type: "ipv4", Addr: "192.0.2.1", Port: "80"}); err != nil || d != want {
		t.Errorf("%s: %+v, %v", good, d, err)
	}
	for name, body := range map[string]string{
		"empty": "", "no JSON": "out type ipv4", "cut": good[:len(good)-1], "twice": good + good, "more": good + "]",
		"unknown field": `{"type":"ipv4","address":"192.0.2.1"}`, "a name": `{"name":"x","type":"ipv4"}`,
		"number": `{"type":"ipv4","port":80}`, "array": "[" + good + "]", "text": `"ipv4"`, "deep": strings.Repeat("[", 1<<20),
	} {
		if err := readObject(strings.NewReader(body), new(Definition)); !errors.Is(err, errRequest) {
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
		var d Definition
		if readObject(strings.NewReader(body), &d) != nil {
			return
		}
		ep, err := d.parse(name)
		if err != nil {
			if !errors.Is(err, endpoint.ErrGrammar) {
				t.Fatal(err)
			}
			return
		}
		shown, err := json.Marshal(Endpoint{Name: name, Definition: definitionOf(ep)})
		if err != nil {
			t.Fatal(err)
		}
		var e Endpoint
		if err := json.Unmarshal(shown, &e); err != nil {
			t.Fatal(err)
		}
		line, err := e.Line()
		if err != nil || strings.ContainsAny(line, "\n\x00") {
			t.Fatalf("%q: %q, %v", body, line, err)
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
