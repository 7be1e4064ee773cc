package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// NetworkFile has the network of pods of the runtime TranslateName: containerd's cni_conf_dir is its
// folder.
const NetworkFile = "/etc/cni/tsugiki-translate.d/tsugiki.conflist"

// Plugin is the program of that network. It is in a folder of containerd's network plugins.
const Plugin = "tsugiki-cni"

// Network is the text of NetworkFile: the plugin makes no link.
const Network = `{
  "cniVersion": "1.0.0",
  "name": "tsugiki-translate",
  "plugins": [{"type": "tsugiki-cni", "mode": "loopback"}]
}
`

// AddNetwork returns the change that has a file be that network.
func AddNetwork(file string) (Change, error) {
	return Engine{File: file}.change(func(text []byte) ([]byte, error) {
		if len(text) > 0 && string(text) != Network {
			return nil, errors.New("the file has another network: remove it")
		}
		return []byte(Network), nil
	})
}

// RemoveNetwork returns the change that removes the network. A file with another one stays.
func RemoveNetwork(file string) (Change, error) {
	return Engine{File: file}.change(func(text []byte) ([]byte, error) {
		if string(text) == Network {
			return nil, nil
		}
		return text, nil
	})
}

// Link is a change that makes a symbolic link, or removes it.
type Link struct {
	Path, Target string
	// Undo has it be removed. A link to something else, or a file, stays in both cases: it is somebody else's.
	Undo bool
}

// Dangling returns the target of a link to a program that is gone, if both have the name Plugin; otherwise "".
func Dangling(path string) string {
	target, err := os.Readlink(path)
	if err != nil || filepath.Base(target) != Plugin {
		return ""
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return target
}

// IsNone tells whether there is nothing to change.
func (l Link) IsNone() bool {
	now, err := os.Readlink(l.Path)
	if l.Undo {
		return err != nil || now != l.Target
	}
	_, err = os.Lstat(l.Path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Diff shows the change.
func (l Link) Diff() string {
	sign := "+"
	if l.Undo {
		sign = "-"
	}
	return fmt.Sprintf("%s symbolic link %s -> %s\n", sign, l.Path, l.Target)
}

// Apply makes the change. A folder that is not there is made.
func (l Link) Apply() error {
	if l.Undo {
		return os.Remove(l.Path)
	}
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o755); err != nil {
		return err
	}
	return os.Symlink(l.Target, l.Path)
}
