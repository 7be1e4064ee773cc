package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// Registry is a folder with a file for each rig. The file has the name of the rig's folder and
// groups, and contains the folder's path. A rig holds the lock of its file as long as it lives.
const Registry = "/run/tsugiki-density"

const (
	namePrefix = "tsugiki-density-"
	// removeLimit limits the wait for groups whose processes were killed.
	removeLimit = 10 * time.Second
)

// claim removes what killed rigs have left, registers a new rig and makes its folder. The returned
// file is locked.
func claim(parent string) (dir string, f *os.File, err error) {
	if err := os.MkdirAll(Registry, 0o700); err != nil {
		return "", nil, fmt.Errorf("write down the rig: %w", err)
	}
	// One at a time: a file that was just made is not locked yet.
	all, err := os.Open(Registry)
	if err != nil {
		return "", nil, err
	}
	defer all.Close()
	if err := lock.Wait(all); err != nil {
		return "", nil, fmt.Errorf("lock %s: %w", Registry, err)
	}
	if parent, err = filepath.Abs(parent); err != nil {
		return "", nil, err
	}
	if err := removeLeftovers(parent); err != nil {
		return "", nil, fmt.Errorf("remove what a killed run has left: %w", err)
	}
	dir = filepath.Join(parent, fmt.Sprintf("%s%08x", namePrefix, rand.Uint32()))
	file := filepath.Join(Registry, filepath.Base(dir))
	if err = os.WriteFile(file, []byte(dir), 0o600); err != nil {
		return "", nil, fmt.Errorf("write down the rig: %w", err)
	}
	if f, err = lock.Open(file); err != nil {
		return "", nil, errors.Join(err, os.Remove(file))
	}
	if err = os.Mkdir(dir, 0o755); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make the rig's folder: %w", err), os.Remove(file), f.Close())
	}
	return dir, f, nil
}

// removeLeftovers is called with Registry locked.
func removeLeftovers(parent string) error {
	files, err := filepath.Glob(filepath.Join(Registry, namePrefix+"*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := lock.Open(file)
		if err != nil {
			continue // somebody's who lives, or has just removed it
		}
		dir, err := os.ReadFile(file)
		if err == nil {
			err = remove(string(dir), file)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	// A folder that is not written down is of before the machine was started.
	folders, err := filepath.Glob(filepath.Join(parent, namePrefix+"????????"))
	if err != nil {
		return err
	}
	for _, dir := range folders {
		if _, err := os.Stat(filepath.Join(Registry, filepath.Base(dir))); errors.Is(err, fs.ErrNotExist) {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove kills what runs in a rig's group and removes the groups, the folder, and last
// what was written down.
func remove(dir, file string) error {
	name := filepath.Base(file)
	if len(dir) > 0 && (filepath.Base(dir) != name || !filepath.IsAbs(dir)) {
		return fmt.Errorf("%s says %q, which is no folder of a rig", file, dir)
	}
	v2, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	if err := cgroup.At(filepath.Join(v2, name)).Remove(); err != nil {
		return err
	}
	mounts, err := cgroup.Controllers()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := removeGroup(filepath.Join(mount, name)); err != nil {
			return err
		}
	}
	if len(dir) > 0 { // else it was killed before it had one
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	return os.Remove(file)
}

// removeGroup removes a v1 group and its children. Processes that were killed through
// the v2 hierarchy stay in them until they have ended.
func removeGroup(path string) error {
	for deadline := time.Now().Add(removeLimit); ; time.Sleep(10 * time.Millisecond) {
		err := cgroup.At(path).RemoveIfEmpty()
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
	}
}
