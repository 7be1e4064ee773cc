// Package setup owns the entries for tsugiki-runtime in the configuration files of container
// engines, and the network of containerd's pods whose IPv4 is translated: it adds them, and removes
// them again.
//
// It keeps everything else of a file byte for byte: comments, the order of keys, and keys that it
// does not know. It calls no engine, and Apply alone changes what is there. It needs the privilege to
// write the file, and runs on any kernel.
package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrForeign says that a configuration has an entry of our name that setup has not written.
var ErrForeign = errors.New("the configuration has another runtime of the name")

// Engine is a container engine whose configuration names its runtimes.
type Engine struct {
	Name string
	File string // of its configuration
	// Next is the command that makes the engine read its configuration again. It is empty if the
	// engine needs none.
	Next string
	// Translate has Add write the runtime TranslateName, too. It needs NetworkFile and the network plugin
	// tsugiki-cni. Only containerd has pods of this runtime.
	Translate bool
	// add returns the text of the engine's file with an entry for the runtime at a path. An empty text
	// means that the file does not exist.
	add func(e Engine, text []byte, runtime string) ([]byte, error)
	// remove returns the text without the entry, or an empty text if nothing is left. The text may
	// have no entry.
	remove func(text []byte) ([]byte, error)
}

// Engines returns the engines that setup knows.
func Engines() []Engine {
	return []Engine{
		{"containerd", "/etc/containerd/config.toml", "systemctl restart containerd", false, addToContainerd, removeContainerd},
		{"crio", "/etc/crio/crio.conf.d/60-tsugiki.conf", "systemctl restart crio", false, ownFile(crioText), cutBlock},
		{"docker", "/etc/docker/daemon.json", "systemctl reload docker", false, addToDocker, removeDocker},
		{"podman", "/etc/containers/containers.conf.d/60-tsugiki.conf", "", false, ownFile(podmanText), cutBlock},
	}
}

// Find returns the engine of a name.
func Find(name string) (Engine, bool) {
	all := Engines()
	i := slices.IndexFunc(all, func(e Engine) bool { return e.Name == name })
	if i < 0 {
		return Engine{}, false
	}
	return all[i], true
}

// Change is a change of one file.
type Change struct {
	File string // after symbolic links were followed
	// Before and After are the contents of the file. nil: the file does not exist.
	Before, After []byte
}

// Add returns the change that adds an entry for the runtime at a path.
func (e Engine) Add(runtime string) (Change, error) {
	return e.change(func(text []byte) ([]byte, error) { return e.add(e, text, runtime) })
}

// Remove returns the change that removes the entry of Add.
func (e Engine) Remove() (Change, error) { return e.change(e.remove) }

func (e Engine) change(edit func([]byte) ([]byte, error)) (Change, error) {
	c := Change{File: e.File}
	if file, err := filepath.EvalSymlinks(e.File); err == nil {
		c.File = file
	}
	var err error
	if c.Before, err = os.ReadFile(c.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if c.After, err = edit(c.Before); err != nil {
		return c, fmt.Errorf("%s: %w", c.File, err)
	}
	if len(c.After) == 0 {
		c.After = nil
	}
	return c, nil
}

// IsNone tells whether the file already has the wanted content.
func (c Change) IsNone() bool { return bytes.Equal(c.Before, c.After) }

// unfinished begins the names of files that take the place of a configuration when they are complete.
const unfinished = ".tsugiki-setup-"

// Sweep removes what killed processes have left of changes that they did not complete. Nobody may change the
// engine's configuration by this package meanwhile.
func (e Engine) Sweep() error {
	list, err := os.ReadDir(filepath.Dir(e.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range list {
		if strings.HasPrefix(f.Name(), unfinished) {
			if gone := os.Remove(filepath.Join(filepath.Dir(e.File), f.Name())); !errors.Is(gone, fs.ErrNotExist) { // its owner may have renamed it
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}

// Apply makes the change. At any time the file is either the old one or the new one. Apply fails if
// the file's content is no longer Before. It keeps the file's mode and owner.
func (c Change) Apply() error {
	now, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !bytes.Equal(now, c.Before) {
		return fmt.Errorf("%s has changed meanwhile; try again", c.File)
	}
	if c.After == nil {
		return os.Remove(c.File)
	}
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(c.File), unfinished+"*")
	if err != nil {
		return err
	}
	_, err = next.Write(c.After)
	if err == nil {
		err = likeBefore(next, c.File)
	}
	err = errors.Join(err, next.Sync(), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), c.File)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// diffContext is the number of lines that Diff shows around a change.
const diffContext = 3

// Diff returns the change in the form of diff -u.
func (c Change) Diff() string {
	before, after := lines(c.Before), lines(c.After)
	same := 0
	for same < len(before) && same < len(after) && before[same] == after[same] {
		same++
	}
	tail := 0
	for tail < len(before)-same && tail < len(after)-same && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	first := max(same-diffContext, 0)
	last := min(tail, diffContext)
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", name(c.File, c.Before), name(c.File, c.After))
	fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n", first+1, len(before)-tail+last-first, first+1, len(after)-tail+last-first)
	write := func(mark string, list []string) {
		for _, l := range list {
			fmt.Fprintf(&b, "%s%s\n", mark, l)
		}
	}
	write(" ", before[first:same])
	write("-", before[same:len(before)-tail])
	write("+", after[same:len(after)-tail])
	write(" ", before[len(before)-tail:len(before)-tail+last])
	return b.String()
}

func name(file string, text []byte) string {
	if text == nil {
		return os.DevNull
	}
	return file
}

func lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
