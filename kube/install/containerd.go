package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// engine is containerd with a configuration of the node.
func (o *Options) engine(file string) setup.Engine {
	engine, _ := setup.Find("containerd")
	engine.File = o.node(file)
	return engine
}

// regular returns an error if containerd's configuration is no regular file. A symbolic link leads to a file
// that whoever manages the node writes anew.
func regular(file string) error {
	if st, err := os.Lstat(file); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file: add the runtime where it comes from, and leave it alone here (containerd.config= of the chart)", file)
	}
	return nil
}

// planContainerd has containerd's configuration name our runtimes, and the node have what they need.
func (o *Options) planContainerd(p *plan, before record) error {
	p.after.Containerd = before.Containerd
	if o.Containerd != "" {
		p.after.Containerd = latest(before.Containerd, o.Containerd)
		p.after.Runtimes = []string{setup.Name}
	}
	if o.Translate || o.translated(before) {
		p.after.Runtimes = append(p.after.Runtimes, setup.TranslateName)
	}
	err := o.tell(p, before)
	if err != nil && len(before.Files) > 0 {
		// containerd may know the runtime, whatever its file has become, and pods wait for the agent.
		o.Log.Error("containerd's configuration stays as it is", "err", err)
		p.told, err = setup.Change{}, nil
	}
	return err
}

// translated tells whether an earlier installation has added the runtime of pods whose IPv4 is translated to
// containerd's configuration. It stays: a containerd that does not know it gives such a pod's end to the plugins
// of the default network, and starts none of its containers again.
func (o *Options) translated(before record) bool {
	return o.Containerd != "" && slices.Contains(before.Runtimes, setup.Name) && slices.Contains(before.Runtimes, setup.TranslateName)
}

func (o *Options) tell(p *plan, before record) (err error) {
	if o.Containerd != "" {
		engine := o.engine(o.Containerd)
		engine.Translate = o.Translate || o.translated(before)
		if err := regular(engine.File); err != nil {
			return err
		}
		if p.told, err = engine.Add(Runtime); err != nil {
			return err
		}
	}
	if !o.Translate {
		return nil
	}
	if o.Containerd != "" {
		told, err := setup.ReadContainerd(p.told.After, Runtime)
		if err != nil {
			return err
		}
		if !slices.Contains(told.PluginDirs, o.PluginDir) {
			return fmt.Errorf("containerd looks for network plugins in %q by %s, and not in %s: say so where pods whose IPv4 is translated are asked for (translate.pluginDir= of the chart)",
				told.PluginDirs, o.Containerd, o.PluginDir)
		}
	}
	if err := o.planOther(p, before, setup.NetworkFile, []byte(setup.Network), 0o644); err != nil {
		return fmt.Errorf("%w: remove it", err)
	}
	return o.planPlugin(p, before)
}

// planPlugin has the folder of network plugins get ours. One of somebody else stays: it may be that of the
// network of all pods.
func (o *Options) planPlugin(p *plan, before record) error {
	content, err := os.ReadFile(filepath.Join("/", o.Image, Prefix, "bin", setup.Plugin))
	if err != nil {
		return err
	}
	err = o.planOther(p, before, filepath.Join(o.PluginDir, setup.Plugin), content, 0o755)
	if errors.Is(err, ErrForeign) {
		o.Log.Warn("the network plugin of somebody else stays, and pods whose IPv4 is translated have it", "err", err)
		return nil
	}
	return err
}

// noRegular is what digestOf returns for a link, or another file that has no content of its own. A link of the
// node leads elsewhere in a container.
const noRegular = "no regular file"

// digestOf is the digest of a file, or nothing if it is not there.
func digestOf(path string) (string, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return noRegular, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return digest(content), nil
}
