package setup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

// packaged is what the packages of the CRI-O project have.
const packaged = `[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/conmon"
`

// Our runtime has what the default one has but for its program. Files count in the order that CRI-O reads
// them in.
func TestCRIOInherits(t *testing.T) {
	plain := map[string]any{"runtime_path": runtime, "runtime_type": "oci"}
	with := func(pairs ...any) map[string]any {
		m := map[string]any{"runtime_path": runtime, "runtime_type": "oci"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  map[string]any
	}{
		"no other file": {nil, plain},
		"packaged": {
			map[string]string{"crio.conf.d/10-crio.conf": packaged},
			with("monitor_path", "/usr/libexec/crio/conmon", "allowed_annotations", []any{"io.containers.trace-syscall"}),
		},
		"a later file replaces a table": {
			map[string]string{"crio.conf.d/10-crio.conf": packaged, "crio.conf.d/20-mine": "[crio.runtime.runtimes.crun]\nmonitor_path = \"/x\"\nprivileged_without_host_devices = true\n"},
			with("monitor_path", "/x", "privileged_without_host_devices", true),
		},
		"another default runtime": {
			map[string]string{"crio.conf": packaged, "crio.conf.d/sub/20.conf": "[crio.runtime]\ndefault_runtime = \"runc\"\n"},
			with("monitor_path", "/usr/libexec/crio/conmon"),
		},
		"a default runtime of virtual machines": {
			map[string]string{"crio.conf": packaged + "[crio.runtime.runtimes.kata]\nruntime_type = \"vm\"\nmonitor_path = \"/y\"\n", "crio.conf.d/1": "crio.runtime.default_runtime = \"kata\"\n"},
			with("monitor_path", "/usr/libexec/crio/conmon", "allowed_annotations", []any{"io.containers.trace-syscall"}),
		},
		"ours is the default": {
			map[string]string{"crio.conf": packaged, "crio.conf.d/99": "crio.runtime.default_runtime = \"tsugiki\"\n"},
			with("monitor_path", "/usr/libexec/crio/conmon", "allowed_annotations", []any{"io.containers.trace-syscall"}),
		},
		"the monitor": {
			map[string]string{"crio.conf": "[crio.runtime.runtimes.crun]\nmonitor_exec_cgroup = \"container\"\ncontainer_min_memory = \"500KiB\"\n"},
			with("monitor_exec_cgroup", "container"),
		},
		"zero values": {map[string]string{"crio.conf": "[crio.runtime.runtimes.crun]\nmonitor_path = \"\"\nallowed_annotations = []\n"}, plain},
	} {
		e := crioAt(t, tt.files)
		apply(t, func() (Change, error) { return e.Add(runtime) })
		var got struct {
			CRIO struct {
				Runtime struct{ Runtimes map[string]map[string]any }
			}
		}
		if err := toml.Unmarshal([]byte(content(e)), &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, content(e))
		}
		if diff := cmp.Diff(tt.want, got.CRIO.Runtime.Runtimes["tsugiki"]); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if c, err := e.Add(runtime); err != nil || !c.IsNone() {
			t.Errorf("%s: twice: %v\n%s", name, err, c.Diff())
		}
		apply(t, e.Remove)
		if got := content(e); got != "-" {
			t.Errorf("%s: after that it is %q", name, got)
		}
	}
}

// crioAt returns the engine with a configuration of other files.
func crioAt(t *testing.T, files map[string]string) Engine {
	t.Helper()
	e, _ := Find("crio")
	etc := t.TempDir()
	e.File = filepath.Join(etc, "crio.conf.d", filepath.Base(e.File))
	for name, text := range files {
		path := filepath.Join(etc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// A configuration that CRI-O would not read either, or that has our runtime already, is left as it is.
func TestCRIORefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no TOML":      "[crio",
		"another's":    "[crio.runtime.runtimes.tsugiki]\nruntime_path = \"/x\"\n",
		"another type": "[crio.runtime]\nruntimes = 1\n",
	} {
		e := crioAt(t, map[string]string{"crio.conf.d/10": text})
		if c, err := e.Add(runtime); err == nil || errors.Is(err, ErrForeign) != (name == "another's") {
			t.Errorf("%s: %v\n%s", name, err, c.Diff())
		}
	}
	e := crioAt(t, map[string]string{"crio.conf": strings.ReplaceAll(packaged, `["io.containers.trace-syscall"]`, "{a = 1,\n b = 2}")})
	if c, err := e.Add(runtime); err == nil {
		t.Errorf("a value that is none is copied:\n%s", c.Diff())
	}
	e = crioAt(t, map[string]string{"crio.conf": packaged, "crio.conf.d/1": "[crio.runtime.runtimes.crun]\n[crio.runtime.runtimes.crun.default_annotations]\n\"a/b\" = \"c\"\n"})
	if c, err := e.Add(runtime); err == nil || !strings.Contains(err.Error(), "default_annotations") {
		t.Errorf("annotations of the default runtime: %v\n%s", err, c.Diff())
	}
}
