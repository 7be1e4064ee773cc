package setup

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

// The runtime of pods whose IPv4 is translated has the options of the default one, and a network of its own.
func TestTranslate(t *testing.T) {
	for _, text := range []string{"-", "version = 2\n", kubeadm2, kubeadm3, kubeadm4} {
		e := at(t, "containerd", text)
		add := func() (Change, error) { return e.Add(runtime) }
		apply(t, add)
		without := content(e)
		e.Translate = true
		apply(t, add)
		got := tables(t, content(e))
		ours, translate := got[Name], got[TranslateName]
		want := maps.Clone(ours)
		want["cni_conf_dir"], want["cni_max_conf_num"] = "/etc/cni/tsugiki-translate.d", int64(1)
		if diff := cmp.Diff(want, translate); diff != "" || len(ours) == 0 {
			t.Errorf("%q: the tables differ in more than the network (-want +got):\n%s\n%s", text, diff, content(e))
		}
		if c, err := add(); err != nil || !c.IsNone() {
			t.Errorf("%q, twice: %v\n%s", text, err, c.Diff())
		}
		told, err := ReadContainerd([]byte(content(e)), runtime)
		if err != nil || len(told.Runtimes) != 2 {
			t.Errorf("%q: %v, %v", text, told, err)
		}

		// A tool has dropped the comments: both tables are ours nevertheless.
		with := content(e)
		var all map[string]any
		if err := toml.Unmarshal([]byte(with), &all); err != nil {
			t.Fatal(err)
		}
		rewritten, err := toml.Marshal(all)
		if err == nil {
			err = os.WriteFile(e.File, rewritten, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, err := add(); err != nil || !c.IsNone() {
			t.Errorf("%q without comments: %v\n%s", text, err, c.Diff())
		}
		bare, err := RemoveTables(rewritten, runtime)
		if now := tables(t, string(bare)); err != nil || now[Name] != nil || now[TranslateName] != nil || len(now) != len(got)-2 {
			t.Errorf("%q without comments, removed: %v\n%s", text, err, bare)
		}
		if same, err := RemoveTables(rewritten, "/opt/other"); err != nil || !bytes.Equal(same, rewritten) {
			t.Errorf("%q without comments, of another program: %v\n%s", text, err, same)
		}
		if err := os.WriteFile(e.File, []byte(with), 0o600); err != nil {
			t.Fatal(err)
		}

		e.Translate = false
		apply(t, add)
		if content(e) != without {
			t.Errorf("%q, taken back: %s", text, cmp.Diff(without, content(e)))
		}
		e.Translate = true
		apply(t, add)
		apply(t, e.Remove)
		if content(e) != text {
			t.Errorf("%q, removed: %s", text, cmp.Diff(text, content(e)))
		}
	}
}

// A table that somebody has written by hand, as RUNTIME.md said once: of our program it is ours.
func TestTranslateByHand(t *testing.T) {
	const table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki-translate]\n  runtime_type = \"io.containerd.runc.v2\"\n" +
		"  cni_conf_dir = \"/etc/mine.d\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tsugiki-translate.options]\n    BinaryName = \"PROGRAM\"\n"
	for program, want := range map[string]error{runtime: nil, "/opt/other": ErrForeign} {
		text := kubeadm2 + strings.Replace(table, "PROGRAM", program, 1)
		e := at(t, "containerd", text)
		apply(t, func() (Change, error) { return e.Add(runtime) })
		if now := tables(t, content(e))[TranslateName]; now["cni_conf_dir"] != "/etc/mine.d" {
			t.Errorf("nobody has asked for it, and it is %v", now)
		}
		e.Translate = true
		c, err := e.Add(runtime)
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "of the name tsugiki-translate") {
			t.Errorf("%s: %v", program, err)
		}
		if want == nil && tables(t, string(c.After))[TranslateName]["cni_conf_dir"] != filepath.Dir(NetworkFile) {
			t.Errorf("%s: %s", program, c.After)
		}
	}
}

func TestPluginDirs(t *testing.T) {
	for text, want := range map[string][]string{
		"":              {"/opt/cni/bin"},
		"version = 3\n": {"/opt/cni/bin"},
		"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni/\"\n":                         {"/usr/lib/cni"},
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/a'\n":                                     {"/a"},
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = ''\nbin_dirs = ['/a', '/b']\n":              {"/a", "/b"},
		"version = 4\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = ''\nbin_dirs = ['/a', '/b']\n":              {"/a", "/b"},
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/old'\nbin_dirs = ['/a']\n":                {"/a"},
		"version = 2\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/of another version, which is not read'\n": {"/opt/cni/bin"},
	} {
		told, err := ReadContainerd([]byte(text), runtime)
		if err != nil || !cmp.Equal(told.PluginDirs, want) {
			t.Errorf("%q: %q, %v, want %q", text, told.PluginDirs, err, want)
		}
	}
}

// The text that is written on nodes is that of the examples.
func TestNetworkIsTheExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/cni-loopback.conflist")
	if err != nil || string(text) != Network {
		t.Errorf("%v: %s", err, cmp.Diff(string(text), Network))
	}
}

// A process that was killed leaves an unfinished file.
func TestSweep(t *testing.T) {
	e := at(t, "containerd", "version = 2\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(e.File), ".tsugiki-setup-12"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Sweep(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(e.File)); err != nil || len(left) != 1 || left[0].Name() != filepath.Base(e.File) {
		t.Errorf("left are %v, %v", left, err)
	}
	e.File = filepath.Join(t.TempDir(), "none", "config.toml")
	if err := e.Sweep(); err != nil {
		t.Error(err)
	}
}

func TestNetworkFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d", "n.conflist")
	add, remove := func() (Change, error) { return AddNetwork(file) }, func() (Change, error) { return RemoveNetwork(file) }
	for range 2 {
		apply(t, add)
		if text, err := os.ReadFile(file); err != nil || string(text) != Network {
			t.Errorf("%v: %s", err, text)
		}
	}
	apply(t, remove)
	apply(t, remove)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := add(); err == nil {
		t.Errorf("another network would be replaced: %s", c.Diff())
	}
	if c, err := remove(); err != nil || !c.IsNone() {
		t.Errorf("another network would be removed: %v", err)
	}
}

// A link to something else, or a file, is not ours.
func TestLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", Plugin)
	add, undo := Link{Path: path, Target: "/ours"}, Link{Path: path, Target: "/ours", Undo: true}
	if add.IsNone() || !undo.IsNone() {
		t.Error("there is no link")
	}
	if err := add.Apply(); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Readlink(path); err != nil || now != "/ours" || !add.IsNone() || undo.IsNone() {
		t.Errorf("the link is %s, %v", now, err)
	}
	if other := (Link{Path: path, Target: "/theirs", Undo: true}); !other.IsNone() {
		t.Error("a link to something else would be removed")
	}
	if err := undo.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !add.IsNone() || !undo.IsNone() {
		t.Error("a file of somebody else would change")
	}
	there := filepath.Join(t.TempDir(), Plugin)
	if err := os.WriteFile(there, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{there: "", "/gone/" + Plugin: "/gone/" + Plugin, "/gone/other": ""} {
		if err := errors.Join(os.Remove(path), os.Symlink(target, path)); err != nil {
			t.Fatal(err)
		}
		if got := Dangling(path); got != want {
			t.Errorf("a link to %s: %q", target, got)
		}
	}
}
