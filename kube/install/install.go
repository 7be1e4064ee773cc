// Package install owns what a pod writes on its node: the programs below one folder, the agent's
// configuration, and the entry in containerd's. It writes them, and removes them again.
//
// It starts no program, and tells containerd nothing. It needs no privilege but to write in the
// folders, and runs on any kernel. A file is the old one or the new one at any time, so programs that
// run, and containers that have the library, go on. A record of what was written lies beside the
// programs: nothing else is changed or removed.
package install

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// Prefix is the folder of the programs, in the image and on the node.
const Prefix = "/opt/tsugiki"

// Runtime is the program that containerd calls, on the node.
const Runtime = Prefix + "/bin/tsugiki-runtime"

// agentConfig is the agent's configuration on the node, which tsugiki-runtime reads, too.
const agentConfig = "/etc/tsugiki/agent.toml"

// ErrForeign says that the node has a file that no pod of ours has written.
var ErrForeign = errors.New("this file is not of an earlier installation by tsugiki-kube")

// Options say what is installed, and where.
type Options struct {
	Image      string // the folder whose Prefix has the programs; "": /
	Root       string // the folder that has the node's; "": /
	Config     string // the file with the agent's configuration; "": the node's own stays
	Containerd string // containerd's configuration on the node; "": it is left alone
	Log        *slog.Logger
}

// node returns the place of a path of the node.
func (o *Options) node(path string) string { return filepath.Join("/", o.Root, path) }

// remove removes a file of the programs.
func (o *Options) remove(name string) error {
	top := o.node(Prefix)
	return remove(filepath.Join(top, name), top)
}

// Install writes what the options say. What is there already stays untouched, so that a second call
// changes nothing. Files of an earlier installation that are no more in the image are removed. If
// containerd's configuration cannot be changed, the first call fails; a later one says so in the log alone.
func Install(o Options) error {
	list, err := files(filepath.Join("/", o.Image, Prefix))
	if err != nil {
		return fmt.Errorf("read the programs of the image: %w", err)
	}
	before, err := o.readRecord()
	if err != nil {
		return err
	}
	config, err := o.config(before)
	if err != nil {
		return err
	}
	change, err := o.addRuntime()
	if len(before.Files) > 0 && err != nil {
		// containerd may know the runtime, whatever its file has become, and pods wait for the agent.
		o.Log.Error("containerd's configuration stays as it is", "err", err)
		change, err = setup.Change{}, nil
	}
	if err != nil {
		return err
	}
	// Whoever comes after a crash in the middle finds what may have been written.
	if err := o.writeRecord(record{append(before.Files, list...), append(before.Configs, config.digest)}); err != nil {
		return err
	}
	for _, name := range list {
		if err := o.copy(name); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	for _, name := range before.Files {
		if !slices.Contains(list, name) {
			if err := o.remove(name); err != nil {
				return err
			}
		}
	}
	if err := config.write(); err != nil {
		return err
	}
	if !change.IsNone() {
		o.Log.Info("containerd gets the runtime tsugiki when it starts the next time", "file", o.Containerd)
		if err := change.Apply(); err != nil {
			return err
		}
	}
	return o.writeRecord(record{list, []string{config.digest}})
}

// configuration is that of the agent, to be written.
type configuration struct {
	path   string
	text   []byte // nil: nothing is written
	digest string
}

// config reads the agent's configuration. It refuses to replace a file of somebody else.
func (o *Options) config(r record) (configuration, error) {
	c := configuration{path: o.node(agentConfig)}
	if o.Config == "" {
		return c, nil
	}
	text, err := os.ReadFile(o.Config)
	if err != nil {
		return c, fmt.Errorf("read the agent's configuration: %w", err)
	}
	c.digest = digest(text)
	now, err := os.ReadFile(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.text = text
	case err != nil:
		return c, err
	case digest(now) == c.digest:
	case slices.Contains(r.Configs, digest(now)):
		c.text = text
	default:
		return c, fmt.Errorf("%s: %w: if the node has Tsugiki's package, leave the agent to it (agent.install=false of the chart); otherwise remove the file", agentConfig, ErrForeign)
	}
	return c, nil
}

func (c configuration) write() error {
	if c.text == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	return replace(c.path, func(f *os.File) error {
		_, err := f.Write(c.text)
		return errors.Join(err, f.Chmod(0o644))
	})
}

func digest(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// containerd finds the file with its configuration. A symbolic link leads to a file that whoever
// manages the node writes anew.
func (o *Options) containerd() (setup.Engine, error) {
	engine, _ := setup.Find("containerd")
	engine.File = o.node(o.Containerd)
	if st, err := os.Lstat(engine.File); err == nil && !st.Mode().IsRegular() {
		return engine, fmt.Errorf("%s is no regular file: add the runtime where it comes from, and leave it alone here (containerd.config= of the chart)", o.Containerd)
	}
	return engine, nil
}

// addRuntime returns the change that has containerd's configuration name the runtime.
func (o *Options) addRuntime() (setup.Change, error) {
	if o.Containerd == "" {
		return setup.Change{}, nil
	}
	engine, err := o.containerd()
	if err != nil {
		return setup.Change{}, err
	}
	return engine.Add(Runtime)
}

// Installed tells whether the node has an installation, or a part of one, that Uninstall removes.
func (o *Options) Installed() (bool, error) {
	_, err := os.Stat(o.node(filepath.Join(Prefix, recordFile)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Uninstall removes what Install has written. A configuration that was changed since then stays. Without a
// record it does nothing: what is there is of somebody else.
func Uninstall(o Options) error {
	if is, err := o.Installed(); err != nil || !is {
		return err
	}
	r, err := o.readRecord()
	if err != nil {
		return err
	}
	if o.Containerd != "" {
		engine, err := o.containerd()
		if err != nil {
			return err
		}
		change, err := engine.Remove()
		if err == nil && !change.IsNone() {
			o.Log.Info("containerd has the runtime tsugiki until it starts the next time", "file", o.Containerd)
			err = change.Apply()
		}
		if err != nil {
			return err
		}
	}
	config := o.node(agentConfig)
	if text, err := os.ReadFile(config); err == nil && slices.Contains(r.Configs, digest(text)) {
		if err := remove(config, filepath.Dir(config)); err != nil {
			return err
		}
	} else if err == nil {
		o.Log.Warn("the agent's configuration is not as it was installed, and stays", "file", agentConfig)
	}
	for _, name := range append(r.Files, recordFile) { // the record last
		if err := o.remove(name); err != nil {
			return err
		}
	}
	return nil
}
