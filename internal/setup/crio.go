package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// inheritedCRIO are the keys of a runtime of CRI-O that our runtime has from the default one; see
// crio.conf(5). CRI-O looks for conmon in PATH if monitor_path is missing, and does not start if it is not
// there: the packages of the CRI-O project have theirs in /usr/libexec/crio. Without the others, a pod of
// our runtime would have other rights or limits than one of the default runtime. container_min_memory is
// not among them: it is by the program, and ours calls runc before crun; CRI-O's default is runc's.
// default_annotations is no plain value, and setup refuses it: without them, pods would be other ones.
var inheritedCRIO = []string{
	"monitor_path", "monitor_cgroup", "monitor_env", "monitor_exec_cgroup", "privileged_without_host_devices", "allowed_annotations",
	"default_annotations", "container_create_timeout", "seccomp_profile", "no_sync_log", "exec_cpu_affinity",
}

// crio is what setup reads of a configuration.
type crio struct {
	fallback string // the name of the default runtime
	runtimes map[string]map[string]any
}

// readCRIO reads the files of a configuration other than ours: crio.conf, and those of crio.conf.d, in the
// order of their paths. A table of a runtime takes the place of an earlier one (Config.UpdateFromPath of
// CRI-O 1.36).
func readCRIO(ours string) (crio, error) {
	folder := filepath.Dir(ours)
	files := []string{filepath.Join(filepath.Dir(folder), "crio.conf")}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && path != ours {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return crio{}, err
	}
	c := crio{runtimes: map[string]map[string]any{}}
	for _, file := range files {
		if err := c.read(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return crio{}, fmt.Errorf("read the runtimes of CRI-O: %s: %w", file, err)
		}
	}
	return c, nil
}

// read reads one file.
func (c *crio) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var file struct {
		CRIO struct {
			Runtime struct {
				Default  string                    `toml:"default_runtime"`
				Runtimes map[string]map[string]any `toml:"runtimes"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if err := toml.Unmarshal(text, &file); err != nil {
		return err
	}
	if name := file.CRIO.Runtime.Default; name != "" {
		c.fallback = name
	}
	for name, table := range file.CRIO.Runtime.Runtimes {
		c.runtimes[name] = table
	}
	return nil
}

// like returns the table of the default runtime, which is crun, or runc before CRI-O 1.31, unless a file
// names another one. Keys of a runtime that is no program like runc (runtime_type vm) mean something else.
func (c crio) like() map[string]any {
	for _, name := range []string{c.fallback, "crun", "runc"} {
		table := c.runtimes[name]
		if kind := table["runtime_type"]; table != nil && name != "tsugiki" && (kind == nil || kind == "" || kind == "oci") {
			return table
		}
	}
	return nil
}

// crioText returns the entry of our runtime.
func crioText(file, runtime string) (string, error) {
	c, err := readCRIO(file)
	if err != nil {
		return "", err
	}
	if _, is := c.runtimes["tsugiki"]; is {
		return "", fmt.Errorf("%w %s, in another file of CRI-O's", ErrForeign, Name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[crio.runtime.runtimes.tsugiki]\nruntime_path = %q\nruntime_type = \"oci\"\n", runtime)
	like := c.like()
	for _, key := range inheritedCRIO {
		if list, is := like[key].([]any); is && len(list) == 0 {
			continue
		}
		if err := writeKey(&b, "", key, like[key]); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
