package setup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// The plugins of containerd that have runtimes, by the version of the configuration.
var containerdPlugins = map[int64]string{
	2: "io.containerd.grpc.v1.cri",
	3: "io.containerd.cri.v1.runtime",
}

// runcType is containerd's name of the shim that calls runc, or another program in its place.
const runcType = "io.containerd.runc.v2"

// inherited are the keys of a runtime that our runtime has from the default one, beside its options.
// Without them, a pod of our runtime would have other rights, another network or another root
// filesystem than one of the default runtime.
var inherited = []string{
	"base_runtime_spec", "privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed",
	"cni_conf_dir", "cni_max_conf_num", "snapshotter",
}

// containerd is what setup reads of a configuration.
type containerd struct {
	plugin   string
	fallback string // the name of the default runtime, or runc if that is ours
	runtimes map[string]map[string]any
}

func readContainerd(text []byte) (containerd, error) {
	var file struct {
		Version int64 `toml:"version"`
		Plugins map[string]struct {
			Containerd struct {
				Default  string                    `toml:"default_runtime_name"`
				Runtimes map[string]map[string]any `toml:"runtimes"`
			} `toml:"containerd"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(text, &file); err != nil {
		return containerd{}, err
	}
	plugin, known := containerdPlugins[file.Version]
	if !known {
		return containerd{}, fmt.Errorf("version = %d of the configuration is not known; setup knows 2 and 3 (containerd config migrate)", file.Version)
	}
	c := file.Plugins[plugin].Containerd
	if c.Default == "" || c.Default == "tsugiki" {
		c.Default = "runc"
	}
	return containerd{plugin, c.Default, c.Runtimes}, nil
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

// tsugiki returns the table of our runtime. It has the options of the default runtime: where the kubelet
// has systemd make cgroups, runc would take the name of a slice for a path, and a pod would be outside of
// the kubelet's cgroups.
func (c containerd) tsugiki(runtime string) (string, error) {
	like := c.runtimes[c.fallback]
	if like["runtime_type"] != runcType { // options of another shim mean something else
		like = c.runtimes["runc"]
	}
	if kind := like["runtime_type"]; kind != nil && kind != runcType {
		like = nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[plugins.%q.containerd.runtimes.tsugiki]\n"+
		"  runtime_type = %q\n"+
		"  pod_annotations = [\"tsugiki.dev/*\"]\n"+
		"  container_annotations = [\"tsugiki.dev/*\"]\n", c.plugin, runcType)
	for _, key := range inherited {
		if err := writeKey(&b, "  ", key, like[key]); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(&b, "  [plugins.%q.containerd.runtimes.tsugiki.options]\n    BinaryName = %q\n", c.plugin, runtime)
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

// writeKey writes a key with its value, unless that is zero, which means the same as no key.
func writeKey(b *strings.Builder, indent, key string, value any) error {
	if value == nil || reflect.ValueOf(value).IsZero() {
		return nil
	}
	text, err := toml.Marshal(map[string]any{key: value})
	if err == nil && bytes.Count(text, []byte("\n")) != 1 {
		err = errors.New("it is no plain value")
	}
	if err != nil {
		return fmt.Errorf("copy %s of the default runtime: %w", key, err)
	}
	b.WriteString(indent)
	b.Write(text)
	return nil
}

// addContainerd appends a table. In TOML, a table may follow the top level's keys anywhere. A table
// without our lines around it is ours nevertheless if it is for the runtime: tools that write the file anew
// drop comments.
func addContainerd(text []byte, runtime string) ([]byte, error) {
	rest, err := cutBlock(text)
	if err != nil {
		return nil, err
	}
	version := ""
	if len(rest) == 0 {
		version = "version = 2\n"
	}
	c, err := readContainerd(append(bytes.Clone(rest), version...))
	if err != nil {
		return nil, err
	}
	ours, err := c.tsugiki(runtime)
	if err != nil {
		return nil, err
	}
	if now, is := c.runtimes["tsugiki"]; is {
		options, _ := now["options"].(map[string]any)
		if now["runtime_type"] != runcType || options["BinaryName"] != runtime {
			return nil, ErrForeign
		}
		if len(rest) == len(text) && has(now, ours, c) {
			return text, nil
		}
		if rest, err = cutTable(rest, c); err != nil {
			return nil, err
		}
		delete(c.runtimes, "tsugiki")
	}
	if len(rest) > 0 {
		rest = append(bytes.Clone(rest), '\n') // cutBlock removes this newline
	}
	after := append(rest, block(version+c.runc()+ours)...)
	if _, err := readContainerd(after); err != nil {
		return nil, errors.Join(errors.New("the table cannot be appended"), err)
	}
	return after, keepsTypes(text, after)
}

// has tells whether a table has all of our text.
func has(now map[string]any, ours string, c containerd) bool {
	want, err := readContainerd([]byte("version = 2\n" + strings.ReplaceAll(ours, c.plugin, containerdPlugins[2])))
	if err != nil {
		return false
	}
	return covers(now, want.runtimes["tsugiki"])
}

// covers tells whether a table has all of another one. A table without keys is as none.
func covers(all, some map[string]any) bool {
	for key, want := range some {
		sub, is := want.(map[string]any)
		got, also := all[key].(map[string]any)
		if is && (also || all[key] == nil) && covers(got, sub) {
			continue
		}
		if is || !reflect.DeepEqual(all[key], want) {
			return false
		}
	}
	return true
}

// cutTable returns a text without the tables of our runtime. It fails if anything else would change.
func cutTable(text []byte, c containerd) ([]byte, error) {
	var after []byte
	in := false
	for line := range bytes.Lines(text) {
		if head := bytes.TrimSpace(line); len(head) > 0 && head[0] == '[' {
			var table map[string]any
			if toml.Unmarshal(head, &table) == nil {
				in = below(table, "plugins", c.plugin, "containerd", "runtimes")["tsugiki"] != nil
			}
		}
		if !in {
			after = append(after, line...)
		}
	}
	var want, got map[string]any
	if err := toml.Unmarshal(text, &want); err != nil {
		return nil, err
	}
	delete(below(want, "plugins", c.plugin, "containerd", "runtimes"), "tsugiki")
	if err := toml.Unmarshal(after, &got); err != nil || !covers(got, want) || !covers(want, got) {
		return nil, errors.New("the table of the runtime tsugiki is of an earlier setup, and cannot be replaced: remove it by hand")
	}
	return after, nil
}

// below returns the table at a path, or nil.
func below(table map[string]any, path ...string) map[string]any {
	for _, key := range path {
		table, _ = table[key].(map[string]any)
	}
	return table
}

// removeContainerd removes the block. If the file has more about runc by now, the table that names runc
// stays: without it, containerd's CRI plugin would not load.
func removeContainerd(text []byte) ([]byte, error) {
	after, err := cutBlock(text)
	if err != nil || len(after) == 0 {
		return after, err
	}
	c, err := readContainerd(after)
	if err != nil {
		return after, nil //nolint:nilerr // a file that containerd does not read cannot become worse
	}
	if len(after) < len(text) && c.runtimes["runc"] != nil && !c.typed("runc") {
		after = append(append(bytes.Clone(after), '\n'), c.runc()...)
	}
	return after, keepsTypes(text, after)
}

// keepsTypes returns an error if a runtime loses its type with a change.
func keepsTypes(before, after []byte) error {
	old, err := readContainerd(before)
	if err != nil {
		return nil //nolint:nilerr // containerd has not read it either
	}
	c, err := readContainerd(after)
	if err != nil {
		return err
	}
	for name := range c.runtimes {
		if old.typed(name) && !c.typed(name) {
			return fmt.Errorf("runtime %s would have no runtime_type, and containerd would not start its pods: add it by hand outside of the lines of setup", name)
		}
	}
	return nil
}
