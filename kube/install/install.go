// Package install owns what a pod writes on its node: the programs below one folder, the agent's
// configuration, the network of pods whose IPv4 is translated, and the entry in containerd's
// configuration. It writes them, and removes them again.
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
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// Prefix is the folder of the programs, in the image and on the node.
const Prefix = "/opt/tsugiki"

// Runtime is the program that containerd calls, on the node.
const Runtime = Prefix + "/bin/tsugiki-runtime"

// Handlers are the names of our runtimes in containerd's configuration.
var Handlers = []string{setup.Name, setup.TranslateName}

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
	Socket     string // containerd's, on the node; for the record
	// Translate has the node get the runtime of pods whose IPv4 is translated, and their network.
	Translate bool
	// PluginDir is the folder of the node that gets the network plugin for that.
	PluginDir string
	Log       *slog.Logger
}

// node returns the place of a path of the node.
func (o *Options) node(path string) string { return filepath.Join("/", o.Root, path) }

// clean has paths be as those that they are compared with.
func (o *Options) clean() {
	for _, path := range []*string{&o.Containerd, &o.PluginDir} {
		if *path != "" {
			*path = filepath.Clean(*path)
		}
	}
}

// top is the folder around the programs' folder.
func (o *Options) top() string { return o.node(filepath.Dir(Prefix)) }

// plan is what an installation changes.
type plan struct {
	after   record
	changes []change
	gone    []string // files of the programs
	told    setup.Change
}

// Install writes what the options say. What is there already stays untouched, so that a second call
// changes nothing. Files of an earlier installation that are no more in the image are removed. When it
// fails before all files are on the disk, the node is as it was. If containerd's configuration cannot be
// changed, the first call fails; a later one says so in the log alone.
func Install(o Options) error {
	o.clean()
	release, err := o.lock()
	if err != nil {
		return err
	}
	defer release()
	atStep()
	before, err := o.readRecord()
	if err != nil {
		return err
	}
	p, err := o.plan(before)
	if err != nil {
		return err
	}
	if err := o.sweep(before.and(p.after)); err != nil {
		return err
	}
	// Whoever comes after a crash in the middle finds what may have been written.
	if err := o.writeRecord(before.and(p.after)); err != nil {
		return err
	}
	if err := stage(p.changes); err != nil {
		return errors.Join(err, o.restore(before))
	}
	if err := commit(p.changes); err != nil {
		return err
	}
	for _, name := range p.gone {
		if err := remove(o.node(filepath.Join(Prefix, name)), o.node(Prefix)); err != nil {
			return err
		}
	}
	if !p.told.IsNone() {
		o.Log.Info("containerd gets our runtimes when it starts the next time", "file", o.Containerd, "runtimes", p.after.Runtimes)
		if err := p.told.Apply(); err != nil {
			return err
		}
		atStep()
	}
	return o.writeRecord(p.after)
}

// restore writes the record of before.
func (o *Options) restore(before record) error {
	if before.Files == nil {
		return remove(o.recordPath(), o.top())
	}
	return o.writeRecord(before)
}

// sweep removes what a killed process has left beside the files of a record.
func (o *Options) sweep(r record) (err error) {
	paths := slices.Collect(maps.Keys(r.Others))
	for _, name := range append(slices.Clone(r.Files), restartFile, recordFile) {
		paths = append(paths, filepath.Join(Prefix, name))
	}
	for _, path := range paths {
		err = errors.Join(err, removeFile(next(o.node(path))))
	}
	for _, file := range r.Containerd {
		err = errors.Join(err, o.engine(file).Sweep())
	}
	return err
}

// plan finds what there is to do, and changes nothing.
func (o *Options) plan(before record) (p plan, err error) {
	folder := filepath.Join("/", o.Image, Prefix)
	if p.after.Files, err = files(folder); err != nil {
		return p, fmt.Errorf("read the programs of the image: %w", err)
	}
	for _, name := range p.after.Files {
		c, err := copied(filepath.Join(folder, name), o.node(filepath.Join(Prefix, name)), o.top())
		if err != nil {
			return p, fmt.Errorf("install %s: %w", name, err)
		}
		p.changes = append(p.changes, c...)
	}
	for _, name := range before.Files {
		if !slices.Contains(p.after.Files, name) {
			p.gone = append(p.gone, name)
		}
	}
	// What is not wanted any more stays until all is removed: containerd asks for the plugin of pods that
	// run, and whoever has written a configuration since then keeps it.
	p.after.Others, p.after.Socket = before.Others, o.Socket
	if err := o.planConfig(&p, before); err != nil {
		return p, err
	}
	return p, o.planContainerd(&p, before)
}

// planConfig has the node's agent get its configuration. It refuses to replace a file of somebody else.
func (o *Options) planConfig(p *plan, before record) error {
	if o.Config == "" {
		return nil
	}
	content, err := os.ReadFile(o.Config)
	if err != nil {
		return fmt.Errorf("read the agent's configuration: %w", err)
	}
	err = o.planOther(p, before, agentConfig, content, 0o644)
	if errors.Is(err, ErrForeign) {
		err = fmt.Errorf("%w: if the node has Tsugiki's package, leave the agent to it (agent.install=false of the chart); otherwise remove the file", err)
	}
	return err
}

// planOther has a file outside of Prefix get a content. A file that no earlier installation has written stays:
// it is ErrForeign, or, if it has this content, as it shall be. Nobody removes it by our record.
func (o *Options) planOther(p *plan, before record, path string, content []byte, mode fs.FileMode) error {
	now, err := digestOf(o.node(path))
	if err != nil {
		return err
	}
	want := digest(content)
	if now != "" && !slices.Contains(before.Others[path], now) {
		if now == want {
			return nil
		}
		return fmt.Errorf("%s: %w", path, ErrForeign)
	}
	if now != want {
		p.changes = append(p.changes, text(o.node(path), o.around(path), content, mode))
	}
	p.after.Others = maps.Clone(p.after.Others)
	p.after.Others[path] = []string{want}
	return nil
}

// around is the folder around a file outside of Prefix that stays when it is empty. That of agentConfig is
// removed. That of the network stays: containerd watches it, and containerd 2 ends when it is removed
// (cni_conf_syncer.go, seen in the code of 2.1.5 and 2.4.2).
func (o *Options) around(path string) string {
	if path == agentConfig {
		return o.node(filepath.Dir(filepath.Dir(path)))
	}
	return o.node(filepath.Dir(path))
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
