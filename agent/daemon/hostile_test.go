package daemon

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// What is taken for a container's state names a listener and a process.
func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.0.2","fds":["seccompFd"],"pid":1,"metadata":"x","state":{"ociVersion":"1.0.2","id":"a","status":"creating","bundle":"/"}}`))
	f.Add([]byte(`{"fds":["pidFd","seccompFd"],"pid":-1}`))
	f.Add([]byte(`{"fds":{},"pid":"1"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		state, at, err := parseState(data)
		if err == nil && (state.Pid <= 0 || at < 0 || at >= len(state.Fds) || state.Fds[at] != specs.SeccompFdName) {
			t.Errorf("%q is taken for %+v, %d", data, state, at)
		}
	})
}

// A registration that is taken says the same when it is written again, and its rules
// can be read or are refused.
func FuzzRegistration(f *testing.F) {
	f.Add([]byte(`{"id":"a","name":"b","annotations":{"tsugiki.dev/ingress":"0.0.0.0:80=198.51.100.1:8080"},"uid":1,"gid":2}`))
	f.Add([]byte(`{"id":"a","name":"b","rules":{"mode":"auto","endpoints":["e type unix path /x"],"egress":["0.0.0.0/0=::"]}}`))
	f.Add([]byte(`{"rules":{}}`))
	f.Add([]byte(`{}{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r api.Registration
		if httpapi.ReadObject(bytes.NewReader(data), &r) != nil {
			return
		}
		written, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again api.Registration
		if err := httpapi.ReadObject(bytes.NewReader(written), &again); err != nil {
			t.Fatalf("%q is written as %q: %v", data, written, err)
		}
		texts, _, err := rules.OfAnnotations(r.Annotations)
		if r.Rules != nil {
			texts, err = *r.Rules, nil
		}
		if err != nil {
			return
		}
		given, err := rules.Parse(texts)
		if err != nil {
			return
		}
		for _, ep := range given.Endpoints.All() {
			if ep.Name == "" {
				t.Errorf("%q has an endpoint without a name", data)
			}
		}
	})
}
