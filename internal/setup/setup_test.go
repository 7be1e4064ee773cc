package setup

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
		"-", "version = 2\n", "# mine\nversion = 2\n\n[plugins]\n  # deep\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    x = 1 # kept", "version = 3\nimports = []\n", "version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/a.sock'\n",
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
		"version = 4\n": 1,
		"version = 4\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n":  1,
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

// kubeadm is what kubeadm's documents have in containerd's configuration, in versions 2 and 3. Version 4 has the
// runtimes of version 3.
const (
	kubeadm2 = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n" +
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n"
	kubeadm3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n" +
		"  base_runtime_spec = '/etc/spec.json'\n  cgroup_writable = true\n" +
		"  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n    BinaryName = '/usr/bin/crun'\n    NoPivotRoot = false\n    Root = '/run/r\\u'\n    SystemdCgroup = true\n"
)

var kubeadm4 = strings.Replace(kubeadm3, "version = 3", "version = 4", 1)

// tables returns the runtimes of containerd's configuration.
func tables(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	c, err := readContainerd([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c.runtimes
}

// Where systemd makes the cgroups of pods, it does so for those of our runtime, too. What an earlier
// setup has written is renewed.
func TestContainerdHasTheOptionsOfTheDefault(t *testing.T) {
	const nvidia = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"nvidia\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n  runtime_type = %s\n" +
		"  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n    ShimCgroup = \"/nv\"\n"
	for name, tt := range map[string]struct {
		text    string
		base    any // and whether its cgroup is writable
		options map[string]any
	}{
		"kubeadm":           {text: kubeadm2, options: map[string]any{"SystemdCgroup": true}},
		"version 3":         {text: kubeadm3, base: "/etc/spec.json", options: map[string]any{"SystemdCgroup": true, "Root": `/run/r\u`}},
		"version 4":         {text: kubeadm4, base: "/etc/spec.json", options: map[string]any{"SystemdCgroup": true, "Root": `/run/r\u`}},
		"another default":   {text: kubeadm2 + strings.Replace(nvidia, "%s", `"io.containerd.runc.v2"`, 1), options: map[string]any{"ShimCgroup": "/nv"}},
		"one of other kind": {text: kubeadm2 + strings.Replace(nvidia, "%s", `"io.containerd.kata.v2"`, 1), options: map[string]any{"SystemdCgroup": true}},
		"no runtime":        {text: "version = 2\n", options: map[string]any{}},
	} {
		c, err := readContainerd([]byte(tt.text))
		if err != nil {
			t.Fatal(err)
		}
		older := fmt.Sprintf("[plugins.%q.containerd.runtimes.tsugiki]\n  runtime_type = \"io.containerd.runc.v2\"\n"+
			"  [plugins.%q.containerd.runtimes.tsugiki.options]\n    BinaryName = %q\n", c.plugin, c.plugin, runtime)
		unmarked := tt.text + older + "[plugins.a]\n  b = 1\n"
		for _, before := range []string{tt.text, tt.text + "\n" + string(block(older)), unmarked} {
			e := at(t, "containerd", before)
			apply(t, func() (Change, error) { return e.Add(runtime) })
			got := tables(t, content(e))["tsugiki"]
			want := maps.Clone(tt.options)
			want["BinaryName"] = runtime
			if diff := cmp.Diff(want, got["options"]); diff != "" || got["base_runtime_spec"] != tt.base || (got["cgroup_writable"] == true) != (tt.base != nil) || got["pod_annotations"] == nil {
				t.Errorf("%s: %v (-want +got):\n%s\n%s", name, got, diff, content(e))
			}
			if c, err := e.Add(runtime); err != nil || !c.IsNone() {
				t.Errorf("%s, a second time: %v\n%s", name, err, c.Diff())
			}
			apply(t, e.Remove)
			if now := tables(t, content(e)); now["tsugiki"] != nil || !strings.HasPrefix(content(e), tt.text) {
				t.Errorf("%s: after that it is\n%s", name, content(e))
			}
		}
	}
}

// A tool that writes the file anew drops comments, and so our lines. The table is ours by its content.
func TestContainerdWithoutComments(t *testing.T) {
	for _, text := range []string{kubeadm2, kubeadm3, kubeadm4, "version = 2\n"} {
		e := at(t, "containerd", text)
		apply(t, func() (Change, error) { return e.Add(runtime) })
		var all map[string]any
		if err := toml.Unmarshal([]byte(content(e)), &all); err != nil {
			t.Fatal(err)
		}
		rewritten, err := toml.Marshal(all)
		if err != nil || strings.Contains(string(rewritten), "#") {
			t.Fatalf("%v\n%s", err, rewritten)
		}
		if err := os.WriteFile(e.File, rewritten, 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := e.Add(runtime); err != nil || !c.IsNone() {
			t.Errorf("%q: %v\n%s", text, err, c.Diff())
		}
		if _, err := e.Add("/opt/other"); !errors.Is(err, ErrForeign) {
			t.Errorf("%q: another program: %v", text, err)
		}
	}
}

// Options of runc that the administrator has added since need the table of runc, which the block has.
func TestContainerdKeepsTypes(t *testing.T) {
	e := at(t, "containerd", "version = 2\n")
	apply(t, func() (Change, error) { return e.Add(runtime) })
	added := content(e) + "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n"
	if err := os.WriteFile(e.File, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}
	apply(t, func() (Change, error) { return e.Add(runtime) })
	for name, r := range tables(t, content(e)) {
		if options, _ := r["options"].(map[string]any); r["runtime_type"] != runcType || options["SystemdCgroup"] != true {
			t.Errorf("%s is %v in\n%s", name, r, content(e))
		}
	}
	apply(t, e.Remove)
	if now := tables(t, content(e)); len(now) != 1 || now["runc"]["runtime_type"] != runcType {
		t.Errorf("after that it is\n%s", content(e))
	}
	// What is within the block goes with it. A runtime that would have no type then stops that.
	foreign := "version = 2\n\n" + string(block("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.x]\nruntime_type = \"y\"\n")) +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.x.options]\n"
	if c, err := at(t, "containerd", foreign).Remove(); err == nil || !strings.Contains(err.Error(), "runtime x would have no runtime_type") {
		t.Errorf("%v\n%s", err, c.Diff())
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ name, text, says string }{
		{"docker", "{", "no JSON"},
		{"docker", `{"runtimes": {"tsugiki": {"path": "/else"}}}`, "another runtime"},
		{"docker", `[]`, "no JSON object"},
		{"docker", `{"runtimes": 1}`, "no JSON object"},
		{"containerd", "version = 1\n", "version = 1"},
		{"containerd", "version = 5\n", "version = 5 of the configuration is not known; setup knows 2, 3 and 4"},
		{"containerd", "root = \"/x\"\n", "version = 0"},
		{"containerd", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki]\n", "another runtime"},
		{"containerd", "version = 2\nplugins = {}\n", "cannot be appended"},
		{"containerd", "version =", "toml"},
		{"containerd", blockBegins, "remove the lines by hand"},
		{"containerd", "\n# File generated by rke2. DO NOT EDIT. Use config-v3.toml.tmpl instead.\nversion = 3\n", "Use config-v3.toml.tmpl instead"},
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
