// Package cgroup makes and removes child groups in the cgroup v2 hierarchy. This hierarchy is
// mounted also on machines whose controllers are still v1 ("hybrid").
//
// It never changes a group that it did not make, nor a mount. It needs write
// access to the group that it makes children of; Kill needs Linux 5.14.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/mounts"
)

// ErrNoV2 says that no cgroup v2 hierarchy is mounted.
var ErrNoV2 = errors.New("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup/unified")

// removePatience is how long Remove waits for killed processes to be gone.
const removePatience = 10 * time.Second

// v2 is the hierarchy in which Own has found the group. It does not move while this process runs,
// and the list of mounts of a machine with many containers is long.
var v2 atomic.Pointer[Hierarchy]

// lasting says that the groups that this process makes outlive it, see MakeLasting.
var lasting atomic.Bool

// MakeLasting makes Own return a directory whose groups outlive a process that is a service of
// systemd. When a unit ends, also before it starts again, systemd removes all empty groups below
// the unit's group (cg_trim in unit_prune_cgroup, systemd 252). It is called at the start, before
// Own.
func MakeLasting() { lasting.Store(true) }

// beside returns the group around a unit's, if a group is one that systemd removes with the unit.
func beside(group string) string {
	switch filepath.Ext(group) {
	case ".service", ".scope":
		return filepath.Dir(group)
	}
	return group
}

// Own returns the directory of the v2 hierarchy in which the calling process makes groups. It is
// the process's own group, or after MakeLasting the group of the slice that has its service.
func Own() (string, error) {
	h := v2.Load()
	if h == nil {
		all, err := Find(mounts.Self)
		if err != nil {
			return "", err
		}
		if all.V2.Mount == "" {
			return "", ErrNoV2
		}
		h = &all.V2
		v2.Store(h)
	}
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if path, ok := strings.CutPrefix(lines.Text(), "0::"); ok {
			rel, err := filepath.Rel(h.Root, path)
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = "."
			}
			if lasting.Load() {
				rel = beside(rel)
			}
			return filepath.Join(h.Mount, rel), nil
		}
	}
	return "", ErrNoV2
}

// Group is a group that this package made.
type Group struct {
	path string
	kill *os.File // open from the start, or nil
}

// Create makes the group NAME below the directory parent. A group of that name
// that is there already is an error that wraps fs.ErrExist.
func Create(parent, name string) (*Group, error) {
	path := filepath.Join(parent, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w; it takes write access to the cgroup v2 hierarchy", err)
	}
	// A process may lower our limit of open files with prlimit(2), so that the file could not be
	// opened later.
	kill, err := os.OpenFile(filepath.Join(path, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make cgroup: %w", err), unix.Rmdir(path))
	}
	return &Group{path, kill}, nil
}

// At is the group in a directory that an earlier process made.
func At(path string) *Group { return &Group{path: path} }

// Path is the group's directory.
func (g *Group) Path() string { return g.path }

// Open opens the group's directory, for clone3(2) or to attach programs.
func (g *Group) Open() (*os.File, error) { return os.Open(g.path) }

// Killer opens the file that kills the group's processes when "1" is written.
func (g *Group) Killer() (*os.File, error) {
	return os.OpenFile(filepath.Join(g.path, "cgroup.kill"), os.O_WRONLY, 0)
}

// Kill kills every process in the group and below it. A process that is forking at this moment does
// not escape (kernel commit 661ee6280931).
func (g *Group) Kill() error {
	if g.kill != nil {
		return g.killBy(g.kill)
	}
	f, err := g.Killer()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the group is gone
	}
	if err != nil {
		return fmt.Errorf("kill cgroup %s: %w", g.path, err)
	}
	defer f.Close()
	return g.killBy(f)
}

func (g *Group) killBy(f *os.File) error {
	if _, err := io.WriteString(f, "1"); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("kill cgroup %s: %w", g.path, err)
	}
	return nil
}

// Remove kills what is left in the group and removes it with its children. It
// waits up to ten seconds for the processes to be gone. A group that is gone
// already is no error.
func (g *Group) Remove() error {
	if err := g.Kill(); err != nil {
		return err
	}
	deadline := time.Now().Add(removePatience)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		// Without looking for children first: that takes a file.
		err := unix.Rmdir(g.path)
		if errors.Is(err, unix.EBUSY) {
			err = removeTree(g.path)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			if g.kill != nil {
				g.kill.Close()
				g.kill = nil
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		time.Sleep(pause)
	}
}

// Populated tells whether a process is in the group or below it. If the group is gone, it returns
// false.
func (g *Group) Populated() bool {
	events, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
	return err == nil && strings.Contains(string(events), "populated 1") ||
		err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV)
}

// RemoveIfEmpty removes the group with its children if no process is in any of
// them, and else returns an error and may have removed some of the children.
func (g *Group) RemoveIfEmpty() error { return removeTree(g.path) }

func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(path)
}
