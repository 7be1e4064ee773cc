package install

import (
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// Uninstall removes what Install has written, by the record of it. Files that were changed since then
// stay. Without a record it does nothing: what is there is of somebody else.
func Uninstall(o Options) error {
	if is, err := o.Installed(); err != nil || !is {
		return err
	}
	release, err := o.lock()
	if err != nil {
		return err
	}
	defer release()
	r, err := o.readRecord()
	if err != nil {
		return err
	}
	if err := o.sweep(r); err != nil {
		return err
	}
	for _, file := range r.Containerd {
		if err := o.untell(file); err != nil {
			return err
		}
	}
	for path, digests := range r.Others {
		now, err := digestOf(o.node(path))
		if err != nil {
			return err
		}
		if now != "" && !slices.Contains(digests, now) {
			o.Log.Warn("the file is not as it was installed, and stays", "file", path)
			continue
		}
		if err := remove(o.node(path), o.around(path)); err != nil {
			return err
		}
	}
	// The folder goes with the record, last: whoever finds it gone makes a new one, which has a lock of its own.
	for _, name := range append(slices.Clone(r.Files), restartFile) {
		if err := remove(o.node(filepath.Join(Prefix, name)), o.node(Prefix)); err != nil {
			return err
		}
	}
	return remove(o.recordPath(), o.top())
}

// untell takes our runtimes out of a configuration of containerd.
func (o *Options) untell(file string) error {
	engine := o.engine(file)
	if err := regular(engine.File); err != nil {
		o.Log.Warn("the file is not as it was installed, and stays: where it comes from, remove our runtimes by hand", "err", err)
		return nil
	}
	change, err := engine.Remove()
	if err != nil {
		return err
	}
	if told, err := setup.ReadContainerd(change.Before, Runtime); err == nil && len(told.Runtimes) == 0 && !change.IsNone() {
		o.Log.Warn("the runtimes in the file have another program than ours, and stay", "file", file)
		return nil
	}
	if told, err := setup.ReadContainerd(change.After, Runtime); err == nil && len(told.Runtimes) > 0 {
		// A tool has written the file anew, without the lines around our runtimes.
		after, err := setup.RemoveTables(change.After, Runtime)
		if err != nil {
			o.Log.Warn("our runtimes stay in the file: remove their tables by hand", "file", file, "err", err)
		} else {
			change.After = after
		}
	}
	if change.IsNone() {
		return nil
	}
	o.Log.Info("containerd has our runtimes until it starts the next time", "file", file)
	return change.Apply()
}
