package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// recordFile is the record of what was installed, in Prefix.
const recordFile = "installed.json"

// record is what was written on the node. Whoever removes it goes by this alone.
type record struct {
	Files []string `json:"files"` // in Prefix
	// Others are files elsewhere, with the digests of what was written to them.
	Others map[string][]string `json:"others"`
	// Containerd are the configurations of containerd that have had our runtimes, the latest one last.
	Containerd []string `json:"containerd"`
	// Runtimes are the names of those that the latest one has. There is none where it is left alone.
	Runtimes []string `json:"runtimes"`
	Socket   string   `json:"socket"` // containerd's
}

// check returns an error if a path of the record leads elsewhere.
func (r *record) check() error {
	for _, name := range r.Files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("file %q is not in the folder", name)
		}
	}
	for _, path := range slices.Concat(r.Containerd, slices.Collect(maps.Keys(r.Others))) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("file %q is no plain path", path)
		}
	}
	return nil
}

// firstContainerd is containerd's configuration of an installation whose record does not say.
const firstContainerd = "/etc/containerd/config.toml"

// parse reads the text of a record. Those of the first version have the digests of agentConfig alone.
func (r *record) parse(text []byte) error {
	var first struct {
		Configs []string `json:"configs"`
	}
	if err := errors.Join(json.Unmarshal(text, r), json.Unmarshal(text, &first)); err != nil {
		return err
	}
	if r.Others == nil {
		r.Others = map[string][]string{}
	}
	if len(first.Configs) > 0 {
		r.Others[agentConfig] = latest(r.Others[agentConfig], first.Configs...)
	}
	if r.Containerd == nil {
		r.Containerd = []string{firstContainerd}
	}
	return nil
}

func (o *Options) recordPath() string { return o.node(filepath.Join(Prefix, recordFile)) }

// readRecord reads the record. Without one, it is empty.
func (o *Options) readRecord() (r record, err error) {
	content, err := os.ReadFile(o.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		err = errors.Join(r.parse(content), r.check())
	}
	if r.Others == nil {
		r.Others = map[string][]string{}
	}
	if err != nil {
		return r, fmt.Errorf("read the record of an earlier installation, %s: %w", o.recordPath(), err)
	}
	return r, nil
}

func (r *record) text() ([]byte, error) {
	slices.Sort(r.Files)
	r.Files = slices.Compact(r.Files)
	if r.Containerd == nil { // nil is the first version's
		r.Containerd = []string{}
	}
	content, err := json.MarshalIndent(r, "", "\t")
	return append(content, '\n'), err
}

// writeRecord replaces the record. An equal one is not written.
func (o *Options) writeRecord(r record) error {
	content, err := r.text()
	if err != nil {
		return err
	}
	if now, err := os.ReadFile(o.recordPath()); err == nil && bytes.Equal(now, content) {
		return nil
	}
	list := []change{text(o.recordPath(), o.top(), content, 0o644)}
	if err := stage(list); err != nil {
		return err
	}
	return commit(list)
}

// and is the record of who comes after a crash in the middle: it has all that may have been written.
func (r *record) and(after record) record {
	both := after
	both.Files = slices.Concat(r.Files, after.Files)
	both.Containerd = latest(r.Containerd, after.Containerd...)
	both.Others = maps.Clone(r.Others)
	for path, digests := range after.Others {
		both.Others[path] = latest(r.Others[path], digests...)
	}
	return both
}

// latest adds strings to the end of a list, which has each once.
func latest(list []string, add ...string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(add, s) })
	return append(list, add...)
}

// Installed tells whether the node has an installation, or a part of one, that Uninstall removes.
func (o *Options) Installed() (bool, error) {
	for _, path := range []string{o.recordPath(), next(o.recordPath())} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// ContainerdSocket is containerd's, as it was installed. It is empty where the record does not say.
func (o *Options) ContainerdSocket() (string, error) {
	r, err := o.readRecord()
	return r.Socket, err
}
