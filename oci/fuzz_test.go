package oci

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
)

// FuzzSpec edits any spec of an engine. The result must be readable, and must refuse all calls that
// the original profile refused.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["A=B"]},"linux":{"namespaces":[{"type":"network"}],"seccomp":{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","socket"],"action":"SCMP_ACT_ALLOW"}]}}}`))
	f.Add([]byte(`{"annotations":{"tsugiki.dev/name":"x"},"mounts":[{"destination":"/dev","type":"tmpfs"}],"process":{},"linux":{"seccomp":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseSpec(data)
		if err != nil {
			return
		}
		before := s.seccomp
		_, _ = factsOf(s, "0123456789abcdef", "/nonexistent/bundle")
		_ = s.refuse()
		_, _, _ = s.ids()
		config, _, err := s.edit(grafted)
		if err != nil {
			return
		}
		after, err := parseSpec(config)
		if err != nil {
			t.Fatalf("%s: edited to %s, %v", data, config, err)
		}
		if after.seccomp == nil || after.seccomp.ListenerPath != grafted.Listener {
			t.Fatalf("%s: edited to %s", data, config)
		}
		if before != nil {
			checkNotWeaker(t, before, after.seccomp)
		}
	})
}

// checkNotWeaker compares the sets of allowed calls.
func checkNotWeaker(t *testing.T, before, after *specs.LinuxSeccomp) {
	t.Helper()
	if before.DefaultAction != after.DefaultAction {
		t.Fatalf("the default action was %s and is %s", before.DefaultAction, after.DefaultAction)
	}
	allowed := map[string]bool{}
	for _, s := range before.Syscalls {
		for _, name := range s.Names {
			allowed[name] = allowed[name] || s.Action == specs.ActAllow || s.Action == specs.ActLog
		}
	}
	defaults := before.DefaultAction == specs.ActAllow || before.DefaultAction == specs.ActLog
	for _, s := range after.Syscalls {
		for _, name := range s.Names {
			opens := s.Action == specs.ActAllow || s.Action == specs.ActLog || s.Action == specs.ActNotify
			if opens && !allowed[name] && !defaults {
				t.Fatalf("%s was not allowed: %+v became %+v", name, before, after)
			}
		}
	}
}

func FuzzDocker(f *testing.F) {
	f.Add([]byte(`{"ID":"id","Name":"/web","Config":{"Labels":{"a":"b"}}}`), []byte(`{"NetworkMode":"none"}`))
	f.Fuzz(func(t *testing.T, config, host []byte) {
		if c, ok := parseDocker(config, host, "id"); ok && c.ID != "id" {
			t.Errorf("another's: %+v", c)
		}
	})
}

// FuzzName checks names and annotations from an unknown engine, from containerd and from podman.
func FuzzName(f *testing.F) {
	const id = "0123456789abcdef"
	f.Add("ns.pod.container", "/")
	f.Add("/../ä"+strings.Repeat("x", 100), "/x/io.containerd.runtime.v2.task/y/"+id)
	f.Fuzz(func(t *testing.T, name, bundle string) {
		s := &spec{annotations: map[string]string{api.AnnotationPrefix + "name": name, api.AnnotationPrefix + name: name, name: name, "nerdctl/name": name}}
		got, err := factsOf(s, id, bundle)
		if err != nil {
			return
		}
		if len(got.name) == 0 || len(got.name) > api.NameMax || illegal.MatchString(got.name) || strings.ContainsRune("_.-", rune(got.name[0])) {
			t.Errorf("%q became %q", name, got.name)
		}
		for key := range got.annotations {
			if !strings.HasPrefix(key, api.AnnotationPrefix) {
				t.Errorf("%q is none of ours", key)
			}
			if got.engine == other && !slices.Contains(got.unknown, key) {
				t.Errorf("%q of an unknown engine is taken for known: %+v", key, got)
			}
		}
	})
}

// FuzzImage checks the parsers of images' files.
func FuzzImage(f *testing.F) {
	f.Add([]byte(`{"config":{"Labels":{"tsugiki.dev/mode":"auto"}},"annotations":{"a":"b"}}`))
	f.Add([]byte(`[{"id":"id","names":["a"],"image":"x"}]`))
	f.Add([]byte(`[{"id":"id","metadata":"{\"pod-id\":\"p\",\"metadata-name\":\"c\"}"},{"id":"p","metadata":"{\"pod-id\":\"p\",\"metadata-name\":\"n\",\"uid\":\"u\",\"namespace\":\"s\",\"pod\":true}"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseImageLabels(data)
		_, _ = parseManifest(data)
		all := parseStored(data)
		c, ok := inStorage(all, "id")
		if ok && c.ID != "id" {
			t.Errorf("another's: %+v", c)
		}
		if p := podIn(all, c).full(); p != nil {
			box, _ := inStorage(all, p.Sandbox)
			if m, is := box.crio(); !is || !m.Pod || m.UID != p.UID || p.Sandbox == c.ID {
				t.Errorf("container %+v of pod %+v has the sandbox %+v", c, p, box)
			}
		}
	})
}
