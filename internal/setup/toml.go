package setup

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/pelletier/go-toml/v2"
)

// The lines around what setup adds to a file that may have comments.
const (
	blockBegins = "# Begin: tsugiki setup. tsugiki setup --undo removes these lines.\n"
	blockEnds   = "# End: tsugiki setup.\n"
)

func block(text string) []byte { return []byte(blockBegins + text + blockEnds) }

// cutBlock returns a text without the block of setup.
func cutBlock(text []byte) ([]byte, error) {
	begin := bytes.Index(text, []byte(blockBegins))
	if begin < 0 {
		return text, nil
	}
	length := bytes.Index(text[begin:], []byte(blockEnds))
	if length < 0 {
		return nil, fmt.Errorf("the line %q is missing; remove the lines by hand", blockEnds[:len(blockEnds)-1])
	}
	before, after := text[:begin], text[begin+length+len(blockEnds):]
	// addContainerd puts a newline before its block, because a file need not end with one.
	before = bytes.TrimSuffix(before, []byte("\n"))
	return append(bytes.Clone(before), after...), nil
}

// ownFile returns the add function of an engine whose configuration may have several files: one of
// them is ours.
func ownFile(entry func(runtime string) string) func([]byte, string) ([]byte, error) {
	return func(text []byte, runtime string) ([]byte, error) {
		rest, err := cutBlock(text)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%w: setup has not written this file", ErrForeign)
		}
		return block(entry(runtime)), err
	}
}

func podmanText(runtime string) string {
	return fmt.Sprintf("[engine.runtimes]\ntsugiki = [%q]\n", runtime)
}

func crioText(runtime string) string {
	return fmt.Sprintf("[crio.runtime.runtimes.tsugiki]\nruntime_path = %q\nruntime_type = \"oci\"\n", runtime)
}

// The plugins of containerd that have runtimes, by the version of the configuration.
var containerdPlugins = map[int64]string{
	2: "io.containerd.grpc.v1.cri",
	3: "io.containerd.cri.v1.runtime",
}

// addContainerd appends a table. In TOML, a table may follow the top level's keys anywhere. Where the
// configuration names no runtime, containerd has one of its own, runc, which is its default. It forgets
// that as soon as the configuration names one (seen with 1.6.20: the CRI plugin fails to load). So runc is
// named, too.
func addContainerd(text []byte, runtime string) ([]byte, error) {
	rest, err := cutBlock(text)
	if err != nil {
		return nil, err
	}
	version := ""
	if len(rest) == 0 {
		version = "version = 2\n"
	}
	var c struct {
		Version int64 `toml:"version"`
		Plugins map[string]struct {
			Containerd struct {
				Runtimes map[string]any `toml:"runtimes"`
			} `toml:"containerd"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(append(bytes.Clone(rest), version...), &c); err != nil {
		return nil, err
	}
	plugin, known := containerdPlugins[c.Version]
	if !known {
		return nil, fmt.Errorf("version = %d of the configuration is not known; setup knows 2 and 3 (containerd config migrate)", c.Version)
	}
	if c.Plugins[plugin].Containerd.Runtimes["tsugiki"] != nil {
		return nil, ErrForeign
	}
	if len(rest) > 0 {
		rest = append(bytes.Clone(rest), '\n') // cutBlock removes this newline
	}
	table := ""
	if len(c.Plugins[plugin].Containerd.Runtimes) == 0 {
		table = fmt.Sprintf("[plugins.%q.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n", plugin)
	}
	table += fmt.Sprintf("[plugins.%q.containerd.runtimes.tsugiki]\n"+
		"  runtime_type = \"io.containerd.runc.v2\"\n"+
		"  pod_annotations = [\"tsugiki.dev/*\"]\n"+
		"  container_annotations = [\"tsugiki.dev/*\"]\n"+
		"  [plugins.%q.containerd.runtimes.tsugiki.options]\n"+
		"    BinaryName = %q\n", plugin, plugin, runtime)
	text = append(rest, block(version+table)...)
	if err := toml.Unmarshal(text, &c); err != nil {
		return nil, errors.Join(errors.New("the table cannot be appended"), err)
	}
	return text, nil
}
