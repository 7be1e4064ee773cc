package setup

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/tsugiki/tsugiki/api"
)

const runtime = "/usr/bin/tsugiki-runtime"

// at returns an engine whose configuration is a file of the test with a text. "-" means that there
// is no file.
func at(t *testing.T, name, text string) Engine {
	t.Helper()
	e, known := Find(name)
	if !known {
		t.Fatalf("no engine %s", name)
	}
	e.File = filepath.Join(t.TempDir(), "etc", filepath.Base(e.File))
	if text == "-" {
		return e
	}
	if err := os.Mkdir(filepath.Dir(e.File), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.File, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return e
}

// content returns the content of a file, or "-" if there is none.
func content(e Engine) string {
	data, err := os.ReadFile(e.File)
	if err != nil {
		return "-"
	}
	return string(data)
}

func apply(t *testing.T, change func() (Change, error)) {
	t.Helper()
	c, err := change()
	if err == nil && !c.IsNone() {
		err = c.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
}

var configurations = map[string][]string{
	"docker": {
		"-", "{}", "{\"runtimes\": {\n\n}, \"x\": 0}", "{ }\n", `{"debug": true}`, "{\n  \"debug\": true,\n  \"x\": {\"runtimes\": 1}\n}\n",
		"{\n\t\"runtimes\": {\n\t\t\"kata\": {\"path\": \"/k\"}\n\t},\n\t\"debug\": true\n}\n", `{"runtimes":{}}`, `{"a\"b":1,"runtimes":{"x":{"path":"y"}}}`,
	},
	"containerd": {
		"-", "version = 2\n", "# mine\nversion = 2\n\n[plugins]\n  # deep\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    x = 1 # kept", "version = 3\nimports = []\n",
	},
	"podman": {"-"},
	"crio":   {"-"},
}

// Remove removes the text of Add, and nothing else changes. A second Add changes nothing.
func TestAddAndRemove(t *testing.T) {
	for name, texts := range configurations {
		for _, text := range texts {
			e := at(t, name, text)
			add := func() (Change, error) { return e.Add(runtime) }
			apply(t, add)
			added := content(e)
			if !strings.Contains(added, runtime) {
				t.Errorf("%s %q: added is %q", name, text, added)
			}
			if text != "-" && !keeps(added, text) {
				t.Errorf("%s %q: something else has changed: %q", name, text, added)
			}
			if c, err := add(); err != nil || !c.IsNone() {
				t.Errorf("%s %q: twice: %v\n%s", name, text, err, c.Diff())
			}
			apply(t, e.Remove)
			if got := content(e); got != text {
				t.Errorf("%s %q: after that it is %q", name, text, got)
			}
			if c, err := e.Remove(); err != nil || !c.IsNone() {
				t.Errorf("%s %q: nothing to remove: %v\n%s", name, text, err, c.Diff())
			}
		}
	}
}

// keeps tells whether a text contains all of another one, in order.
func keeps(all, text string) bool {
	for _, r := range text {
		at := strings.IndexRune(all, r)
		if at < 0 {
			return false
		}
		all = all[at+1:]
	}
	return true
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y map[string]any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	for _, m := range []map[string]any{x, y} { // a list of no runtimes says nothing
		if runtimes, is := m["runtimes"].(map[string]any); is && len(runtimes) == 0 {
			delete(m, "runtimes")
		}
	}
	return cmp.Equal(x, y)
}

// Each engine's text is in its format and names the runtime where the engine looks for it.
func TestTexts(t *testing.T) {
	for name, path := range map[string][]string{
		"docker":     {"runtimes", "tsugiki", "path"},
		"containerd": {"plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "tsugiki", "options", "BinaryName"},
		"podman":     {"engine", "runtimes", "tsugiki"},
		"crio":       {"crio", "runtime", "runtimes", "tsugiki", "runtime_path"},
	} {
		e := at(t, name, "-")
		c, err := e.Add(runtime)
		if err != nil {
			t.Fatal(err)
		}
		var got any
		unmarshal := toml.Unmarshal
		if name == "docker" {
			unmarshal = json.Unmarshal
		}
		if err := unmarshal(c.After, &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, c.After)
		}
		for _, key := range path {
			m, _ := got.(map[string]any)
			got = m[key]
		}
		if list, is := got.([]any); is && len(list) == 1 {
			got = list[0]
		}
		if got != runtime {
			t.Errorf("%s has %v at %v:\n%s", name, got, path, c.After)
		}
	}
}

// The package cannot import api, so its text repeats the prefix of annotations.
func TestContainerdPassesAnnotations(t *testing.T) {
	c, err := at(t, "containerd", "-").Add(runtime)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		if line := key + ` = ["` + api.AnnotationPrefix + `*"]`; !strings.Contains(string(c.After), line) {
			t.Errorf("there is no %s:\n%s", line, c.After)
		}
	}
}

// With a runtime in its configuration, containerd has none that is not there: runc is its default.
func TestContainerdKeepsRunc(t *testing.T) {
	for text, want := range map[string]int{
		"-":             1,
		"version = 3\n": 1,
		"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/x\"\n":                                              1,
		"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n": 1,
		"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\nruntime_type = \"io.containerd.runc.v2\"\n": 0,
	} {
		c, err := at(t, "containerd", text).Add(runtime)
		if got := strings.Count(string(c.After), ".containerd.runtimes.runc]"); err != nil || got != want {
			t.Errorf("%q: runc is there %d times, want %d: %v\n%s", text, got, want, err, c.After)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ name, text, says string }{
		{"docker", "{", "no JSON"},
		{"docker", `{"runtimes": {"tsugiki": {"path": "/else"}}}`, "another runtime"},
		{"docker", `[]`, "no JSON object"},
		{"docker", `{"runtimes": 1}`, "no JSON object"},
		{"containerd", "version = 1\n", "version = 1"},
		{"containerd", "root = \"/x\"\n", "version = 0"},
		{"containerd", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki]\n", "another runtime"},
		{"containerd", "version = 2\nplugins = {}\n", "cannot be appended"},
		{"containerd", "version =", "toml"},
		{"containerd", blockBegins, "remove the lines by hand"},
		{"podman", "[engine]\n", "another runtime"},
	} {
		e := at(t, tt.name, tt.text)
		if c, err := e.Add(runtime); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), e.File) {
			t.Errorf("%s %q: %v\n%s", tt.name, tt.text, err, c.After)
		}
		if got := content(e); got != tt.text {
			t.Errorf("%s has become %q", tt.name, got)
		}
	}
}

// A file keeps its mode and is written where a symbolic link points; one that changed meanwhile
// is not written.
func TestApply(t *testing.T) {
	e := at(t, "docker", "{}")
	file := e.File
	e.File = filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file, e.File); err != nil {
		t.Fatal(err)
	}
	c, err := e.Add(runtime)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"debug": true}`), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(); err == nil || !strings.Contains(err.Error(), "has changed meanwhile") {
		t.Errorf("changed meanwhile: %v", err)
	}
	apply(t, func() (Change, error) { return e.Add(runtime) })
	st, err := os.Lstat(file)
	if err != nil || st.Mode() != 0o640 || !strings.Contains(content(e), `"debug": true`) {
		t.Errorf("%v %v %s", st, err, content(e))
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestDiff(t *testing.T) {
	c := Change{File: "/f", Before: []byte("1\n2\n3\n4\n5\n6\n7\n8\n"), After: []byte("1\n2\n3\n4\nx\n5\n6\n7\n8\n")}
	if want := "--- /f\n+++ /f\n@@ -2,6 +2,7 @@\n 2\n 3\n 4\n+x\n 5\n 6\n 7\n"; c.Diff() != want {
		t.Errorf("%s", cmp.Diff(want, c.Diff()))
	}
	c = Change{File: "/f", After: []byte("1\n")}
	if want := "--- /dev/null\n+++ /f\n@@ -1,0 +1,1 @@\n+1\n"; c.Diff() != want {
		t.Errorf("%s", cmp.Diff(want, c.Diff()))
	}
}

// The other keys of daemon.json stay. A file with an empty object may be removed.
func FuzzDocker(f *testing.F) {
	for _, text := range configurations["docker"] {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		added, err := addDocker([]byte(text), runtime)
		if err != nil {
			return
		}
		if !json.Valid(added) {
			t.Fatalf("%q became %q", text, added)
		}
		removed, err := removeDocker(added)
		if errors.Is(err, ErrForeign) || strings.Contains(text, "tsugiki") {
			return
		}
		if len(removed) == 0 && len(strings.TrimSpace(text)) > 0 && !sameJSON(t, text, "{}") {
			t.Errorf("%q became %q, and then nothing", text, added)
		}
		if err != nil || len(removed) > 0 && !sameJSON(t, string(removed), text) {
			t.Errorf("%q became %q, and then %q, %v", text, added, removed, err)
		}
	})
}
