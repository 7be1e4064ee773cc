package bandwidth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/mounts"
)

var errNoController = errors.New("no cgroup hierarchy with a cpu controller is mounted")

// hierarchy is the mount of a controller's groups. An empty mount means that the controller is not
// mounted.
type hierarchy struct {
	mount string
	dev   uint64 // of the mount
	root  string // the group at the mount
	id    string // the controller's name in /proc/PID/cgroup; empty for v2
	v2    bool
}

// hierarchies are the ones that this package needs.
type hierarchies struct {
	cpu, cpuacct, freezer, unified hierarchy
}

// cache has the hierarchies that were found last, for all groups. Each container adds mounts, which
// makes reading them slower.
type cache struct {
	file string

	mu  sync.Mutex // guards all
	all *hierarchies
}

var mounted = &cache{file: mounts.Self}

// find returns the hierarchies. It reads the mounts again if some were missing the last time, or if
// a mount has changed since.
func (m *cache) find() (*hierarchies, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all != nil && m.all.complete() {
		return m.all, nil
	}
	all, err := findHierarchies(m.file)
	if err != nil {
		return nil, err
	}
	if m.all == nil || *m.all != *all {
		m.all = all
	}
	return m.all, nil
}

// complete tells whether reading the mounts again would find nothing new.
func (all *hierarchies) complete() bool {
	if all.cpu.v2 {
		return all.cpu.whole() && all.cpu.hasCPU()
	}
	return all.cpu.whole() && all.cpuacct.whole() && all.freezer.whole() && all.unified.whole()
}

// whole tells whether the whole hierarchy is mounted, and is still mounted at the same place.
func (h *hierarchy) whole() bool {
	var st unix.Stat_t
	return h.root == "/" && unix.Stat(h.mount, &st) == nil && st.Ino == rootInode && st.Dev == h.dev
}

// findHierarchies reads the mounts. A controller is in one hierarchy at a time.
func findHierarchies(mountinfo string) (*hierarchies, error) {
	found, err := cgroup.Find(mountinfo)
	if err != nil {
		return nil, err
	}
	all := choose(found)
	if all.cpu.mount == "" && all.unified.hasCPU() {
		all.cpu = all.unified
	}
	if all.cpu.mount == "" {
		return nil, errNoController
	}
	return all, nil
}

// hasCPU tells whether a v2 hierarchy has the cpu controller. The controller may instead be in a v1
// hierarchy that is not mounted here, or be switched off (cgroup_disable=cpu).
func (h *hierarchy) hasCPU() bool {
	text, err := os.ReadFile(filepath.Join(h.mount, "cgroup.controllers"))
	return h.mount != "" && err == nil && slices.Contains(strings.Fields(string(text)), "cpu")
}

// choose picks the hierarchies that this package needs.
func choose(found *cgroup.Hierarchies) *hierarchies {
	as := func(h cgroup.Hierarchy, id string) hierarchy {
		if h.Mount == "" {
			return hierarchy{}
		}
		return hierarchy{h.Mount, h.Dev, h.Root, id, id == ""}
	}
	return &hierarchies{
		cpu: as(found.V1["cpu"], "cpu"), cpuacct: as(found.V1["cpuacct"], "cpuacct"),
		freezer: as(found.V1["freezer"], "freezer"), unified: as(found.V2, ""),
	}
}

// relative returns the path in the hierarchy for a path that a person wrote.
func (h *hierarchy) relative(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) || slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("open cgroup %q: %w: a path starts with / and has no .. in it", path, ErrNotAGroup)
	}
	// /sys/fs/cgroup/cpu is a symlink where cpu and cpuacct are one hierarchy.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		if rel, inside := below(real, h.mount); inside {
			return rel, nil
		}
	}
	if rel, inside := below(filepath.Clean(path), h.mount); inside {
		return rel, nil
	}
	return filepath.Clean(path), nil
}

// below returns the part of path below dir.
func below(path, dir string) (rel string, inside bool) {
	if path == dir {
		return "/", true
	}
	rel, inside = strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	return "/" + rel, inside
}

// of returns the path of a process's group below the mount.
func (h *hierarchy) of(pid int) (string, error) {
	file := "/proc/" + strconv.Itoa(pid) + "/cgroup"
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	path, found := h.line(string(text))
	if !found {
		return "", fmt.Errorf("find the cgroup of process %d: %w: %s does not name it", pid, ErrNotAGroup, file)
	}
	if h.root != "/" {
		rel, inside := below(path, h.root)
		if !inside {
			return "", fmt.Errorf("find the cgroup of process %d: %w: %s is not below %s", pid, ErrNotAGroup, path, h.root)
		}
		path = rel
	}
	// The group is outside of this process's cgroup namespace, or was removed with processes in it.
	if strings.HasPrefix(path, "/..") || strings.HasSuffix(path, " (deleted)") {
		return "", fmt.Errorf("find the cgroup of process %d: %w: %s", pid, ErrNotAGroup, path)
	}
	return path, nil
}

// line returns the path that the text of a /proc/PID/cgroup has for the hierarchy.
func (h *hierarchy) line(text string) (string, bool) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, found := strings.Cut(rest, ":")
		if !found || !strings.HasPrefix(path, "/") {
			continue
		}
		if h.v2 && names == "" || !h.v2 && slices.Contains(strings.Split(names, ","), h.id) {
			return path, true
		}
	}
	return "", false
}
