package install

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// translating is a node whose pods may have their IPv4 translated. Its folder of plugins is not the default
// one.
func translating(t *testing.T) Options {
	t.Helper()
	o := node(t)
	o.Translate, o.PluginDir = true, "/usr/lib/cni"
	tree(t, o.Root, map[string]string{o.Containerd: containerdText + "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni/\"\n"})
	return o
}

const plugin = "/usr/lib/cni/tsugiki-cni"

func TestTranslate(t *testing.T) {
	o := translating(t)
	o.Translate = false
	install(t, o)
	if now := read(t, o.Root); now[plugin] != "" || now[setup.NetworkFile] != "" || strings.Contains(now[o.Containerd], setup.TranslateName) {
		t.Errorf("nobody has asked for it: %v", now)
	}
	o.Translate = true
	install(t, o)
	now := read(t, o.Root)
	if now[plugin] != "cni 1" || now[setup.NetworkFile] != setup.Network {
		t.Errorf("the plugin is %q, the network\n%s", now[plugin], now[setup.NetworkFile])
	}
	told, err := setup.ReadContainerd([]byte(now[o.Containerd]), Runtime)
	if err != nil || told.Runtimes[setup.TranslateName]["cni_conf_dir"] != filepath.Dir(setup.NetworkFile) || told.Runtimes[setup.Name] == nil {
		t.Errorf("containerd is told %v, %v", told.Runtimes, err)
	}
	if st, err := os.Stat(o.node(plugin)); err != nil || st.Mode() != 0o755 {
		t.Errorf("the plugin is %v, %v", st, err)
	}

	// A newer image has a newer plugin. Pods that run need it, also when nobody asks for new ones.
	tree(t, o.Image, map[string]string{Prefix + "/bin/tsugiki-cni": "cni 2"})
	install(t, o)
	o.Translate = false
	install(t, o)
	before := now
	now = read(t, o.Root)
	if now[plugin] != "cni 2" || now[setup.NetworkFile] == "" || now[o.Containerd] != before[o.Containerd] {
		t.Errorf("taken back, and the node has %v", now)
	}
	if s := state(t, o); s.Runtimes[setup.TranslateName] == nil || len(s.Missing) > 0 {
		t.Errorf("taken back, and containerd shall know %+v", s)
	}
	folder, err := os.Stat(o.node(filepath.Dir(setup.NetworkFile)))
	if err != nil {
		t.Fatal(err)
	}
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	bare(t, o, "translate")
	// containerd watches the folder.
	if left, err := os.Stat(o.node(filepath.Dir(setup.NetworkFile))); err != nil || !os.SameFile(folder, left) {
		t.Errorf("the folder of the network: %v", err)
	}
}

// Where somebody else configures containerd, our runtime of translated pods may go from its configuration.
func TestTranslateElsewhere(t *testing.T) {
	o := translating(t)
	o.Containerd = ""
	install(t, o)
	o.Translate = false
	install(t, o)
	if s := state(t, o); len(s.Runtimes) != 1 {
		t.Errorf("containerd shall know %+v", s)
	}
}

// A plugin, or a network, that somebody else has installed or changed stays, also where it is equal, or a link that
// leads nowhere here.
func TestForeignPlugin(t *testing.T) {
	for name, foreign := range map[string]func(Options){
		"a link":        func(o Options) { tree(t, o.Root, map[string]string{plugin: "->/usr/bin/tsugiki-cni"}) },
		"a link, since": func(o Options) { install(t, o); tree(t, o.Root, map[string]string{plugin: "->/usr/bin/tsugiki-cni"}) },
		"the same network": func(o Options) {
			tree(t, o.Root, map[string]string{plugin: "cni 1", setup.NetworkFile: setup.Network})
		},
		"before":         func(o Options) { tree(t, o.Root, map[string]string{plugin: "of a package"}) },
		"the same":       func(o Options) { tree(t, o.Root, map[string]string{plugin: "cni 1"}) },
		"changed since":  func(o Options) { install(t, o); tree(t, o.Root, map[string]string{plugin: "of a package"}) },
		"network, since": func(o Options) { install(t, o); tree(t, o.Root, map[string]string{setup.NetworkFile: "{}"}) },
	} {
		o := translating(t)
		var said strings.Builder
		o.Log = slog.New(slog.NewTextHandler(&said, nil))
		foreign(o)
		before := read(t, o.Root)
		r, err := o.readRecord()
		if err != nil {
			t.Fatal(err)
		}
		install(t, o)
		paths, equal := []string{plugin, setup.NetworkFile}, map[string]string{plugin: "cni 1", setup.NetworkFile: setup.Network}
		for _, path := range paths {
			foreign := before[path] != "" && before[path] != equal[path]
			if foreign && !strings.Contains(said.String(), path+": this file is not of an earlier installation") {
				t.Errorf("%s: the log is %s", name, said.String())
			}
		}
		if err := Uninstall(o); err != nil {
			t.Fatal(err)
		}
		now := read(t, o.Root)
		for _, path := range paths {
			want := before[path]
			if want == equal[path] && len(r.Others[path]) > 0 {
				want = "" // it is of the first installation
			}
			if now[path] != want {
				t.Errorf("%s: %s was %q and is %q", name, path, before[path], now[path])
			}
		}
	}
}

// The folder of plugins is that of containerd's configuration, or the installation says which one that is.
func TestPluginDir(t *testing.T) {
	o := translating(t)
	o.PluginDir = "/opt/cni/bin"
	before := read(t, o.Root)
	if err := Install(o); err == nil || !strings.Contains(err.Error(), `"/usr/lib/cni"`) || !strings.Contains(err.Error(), "translate.pluginDir=") {
		t.Errorf("another folder: %v", err)
	}
	if diff := cmp.Diff(before, read(t, o.Root)); diff != "" {
		t.Errorf("the node has changed:\n%s", diff)
	}
	o.Containerd = "" // somebody else's
	install(t, o)
	if now := read(t, o.Root); now["/opt/cni/bin/tsugiki-cni"] != "cni 1" {
		t.Errorf("the node has %v", now)
	}
	o.Containerd = "/etc/containerd/config.toml"
	if err := Uninstall(o); err != nil {
		t.Fatal(err)
	}
	bare(t, o, "elsewhere")
}

// The removal goes by the record, wherever containerd's configuration is and has been.
func TestUninstallByRecord(t *testing.T) {
	o := node(t)
	files := []string{o.Containerd, "/var/lib/rancher/agent/c.toml"}
	tree(t, o.Root, map[string]string{files[1]: containerdText})
	for _, f := range files {
		o.Containerd, o.Socket = f, "/run/elsewhere.sock"
		install(t, o)
	}
	var r record
	text, err := os.ReadFile(o.recordPath())
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || !slices.Equal(r.Containerd, files) {
		t.Errorf("the record: %v\n%s", err, text)
	}
	by := Options{Root: o.Root, Log: o.Log} // as the container uninstall has it
	if socket, err := by.ContainerdSocket(); err != nil || socket != o.Socket {
		t.Errorf("containerd's socket is %q, %v", socket, err)
	}
	if err := Uninstall(by); err != nil {
		t.Fatal(err)
	}
	want(t, o, map[string]string{files[0]: containerdText, files[1]: containerdText})
}
