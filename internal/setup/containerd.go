package setup

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// # containerd
//
// Our runtimes are tables in a block with marks around it. It is no file of its own: imports of
// containerd before 2 replace the whole table of a plugin.

// The names of our runtimes. Pods of TranslateName have nothing but a loopback.
const (
	Name          = "tsugiki"
	TranslateName = "tsugiki-translate"
)

// The plugins of containerd that have runtimes, by the version of the configuration. containerd 2.0 came with
// version 3, and 2.3 with version 4, which moved the daemon's sockets alone. Each reads older files, too.
var containerdPlugins = map[int64]string{
	2: "io.containerd.grpc.v1.cri",
	3: "io.containerd.cri.v1.runtime",
	4: "io.containerd.cri.v1.runtime",
}

// runcType is containerd's name of the shim that calls runc, or another program in its place.
const runcType = "io.containerd.runc.v2"

// Key is a key of a runtime in containerd's configuration.
type Key struct {
	Name string
	// Answer is the key's name in containerd's answer to the CRI's Status: the tag of Runtime in containerd's
	// pkg/cri/config, later internal/cri/config.
	Answer string
}

// Inherited are the keys of a runtime that our runtime has from the default one, beside its options.
// Without them, a pod of our runtime would have other rights, another network or another root
// filesystem than one of the default runtime.
var Inherited = []Key{
	{"base_runtime_spec", "baseRuntimeSpec"},
	{"privileged_without_host_devices", "privileged_without_host_devices"},
	{"privileged_without_host_devices_all_devices_allowed", "privileged_without_host_devices_all_devices_allowed"},
	{"cgroup_writable", "cgroupWritable"}, // from containerd 2.1 on
	{"cni_conf_dir", "cniConfDir"},
	{"cni_max_conf_num", "cniMaxConfNum"},
	{"snapshotter", "snapshotter"},
}

// OfOurs are the other keys of our runtimes, with their options.
var OfOurs = []Key{
	{"runtime_type", "runtimeType"},
	{"pod_annotations", "PodAnnotations"},
	{"container_annotations", "ContainerAnnotations"},
	{"options", "options"},
}

// containerd is what setup reads of a configuration.
type containerd struct {
	plugin   string
	fallback string // the name of the default runtime, or runc if that is ours
	runtimes map[string]map[string]any
	plugins  []string // the folders of network plugins
}

func readContainerd(text []byte) (containerd, error) {
	var file struct {
		Version int64 `toml:"version"`
		Plugins map[string]struct {
			Containerd struct {
				Default  string                    `toml:"default_runtime_name"`
				Runtimes map[string]map[string]any `toml:"runtimes"`
			} `toml:"containerd"`
			CNI struct {
				Dir  string   `toml:"bin_dir"`
				Dirs []string `toml:"bin_dirs"`
			} `toml:"cni"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(text, &file); err != nil {
		return containerd{}, err
	}
	plugin, known := containerdPlugins[file.Version]
	if !known {
		return containerd{}, fmt.Errorf("version = %d of the configuration is not known; setup knows 2, 3 and 4 (containerd config migrate)", file.Version)
	}
	c, cni := file.Plugins[plugin].Containerd, file.Plugins[plugin].CNI
	if c.Default == "" || c.Default == Name || c.Default == TranslateName {
		c.Default = "runc"
	}
	if len(cni.Dirs) == 0 && cni.Dir != "" { // containerd reads bin_dir where there is no bin_dirs
		cni.Dirs = []string{cni.Dir}
	}
	if len(cni.Dirs) == 0 {
		cni.Dirs = []string{"/opt/cni/bin"}
	}
	for i := range cni.Dirs {
		cni.Dirs[i] = filepath.Clean(cni.Dirs[i])
	}
	return containerd{plugin, c.Default, c.Runtimes, cni.Dirs}, nil
}

// Told is what a configuration of containerd says of our runtimes.
type Told struct {
	// Runtimes are the tables of our runtimes whose program is ours, by name. Keys are those of the file.
	Runtimes map[string]map[string]any
	// PluginDirs are the folders in which containerd looks for network plugins.
	PluginDirs []string
}

// ReadContainerd reads a configuration of containerd. An empty one is that of a containerd without a file.
func ReadContainerd(text []byte, program string) (Told, error) {
	if len(text) == 0 {
		text = []byte("version = 2\n")
	}
	c, err := readContainerd(text)
	if err != nil {
		return Told{}, err
	}
	t := Told{map[string]map[string]any{}, c.plugins}
	for _, name := range []string{Name, TranslateName} {
		if c.isOurs(name, program) {
			t.Runtimes[name] = c.runtimes[name]
		}
	}
	return t, nil
}

// EndsTranslation tells whether a change of containerd's configuration takes the runtime TranslateName away,
// whatever its program is. Nobody needs its network then.
func EndsTranslation(c Change) bool {
	before, err := readContainerd(c.Before)
	if err != nil || before.runtimes[TranslateName] == nil {
		return false
	}
	after, err := readContainerd(c.After)
	return len(c.After) == 0 || err == nil && after.runtimes[TranslateName] == nil
}

// isOurs tells whether the configuration has a runtime of a name whose program is ours.
func (c containerd) isOurs(name, program string) bool {
	options, _ := c.runtimes[name]["options"].(map[string]any)
	return c.runtimes[name]["runtime_type"] == runcType && options["BinaryName"] == program
}

// typed tells whether a runtime of a name has a type. containerd can use no other one.
func (c containerd) typed(name string) bool { return c.runtimes[name]["runtime_type"] != nil }

// runc returns the table that names runc, if the configuration has to and does not. Where it names no
// runtime, containerd has one of its own, runc, which is its default. It forgets that as soon as the
// configuration names one (seen with 1.6.20: the CRI plugin fails to load). A table of runc's options alone
// names it, too.
func (c containerd) runc() string {
	if len(c.runtimes) > 0 && (c.runtimes["runc"] == nil || c.typed("runc")) {
		return ""
	}
	return fmt.Sprintf("[plugins.%q.containerd.runtimes.runc]\n  runtime_type = %q\n", c.plugin, runcType)
}

// ours returns the table of one of our runtimes. It has the options of the default runtime: where the kubelet
// has systemd make cgroups, runc would take the name of a slice for a path, and a pod would be outside of
// the kubelet's cgroups.
func (c containerd) ours(name, program string) (string, error) {
	like := c.runtimes[c.fallback]
	if like["runtime_type"] != runcType { // options of another shim mean something else
		like = c.runtimes["runc"]
	}
	if kind := like["runtime_type"]; kind != nil && kind != runcType {
		like = nil
	}
	if name == TranslateName {
		like = maps.Clone(like)
		if like == nil {
			like = map[string]any{}
		}
		like["cni_conf_dir"], like["cni_max_conf_num"] = filepath.Dir(NetworkFile), int64(1)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[plugins.%[1]q.containerd.runtimes.%[2]s]\n"+
		"  runtime_type = %[3]q\n"+
		"  pod_annotations = [\"tsugiki.dev/*\"]\n"+
		"  container_annotations = [\"tsugiki.dev/*\"]\n", c.plugin, name, runcType)
	for _, key := range Inherited {
		if err := writeKey(&b, "  ", key.Name, like[key.Name]); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(&b, "  [plugins.%q.containerd.runtimes.%s.options]\n    BinaryName = %q\n", c.plugin, name, program)
	options, _ := like["options"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if key == "BinaryName" {
			continue
		}
		if err := writeKey(&b, "    ", key, options[key]); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
