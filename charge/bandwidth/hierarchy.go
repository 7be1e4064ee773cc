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

// hierarchy is where a controller's groups are; without a mount there is none.
type hierarchy struct {
	mount string
	dev   uint64 // of the mount
	root  string // the group that is at the mount
	id    string // as in the lines of /proc/PID/cgroup: a controller's name, "" is v2
	v2    bool
}

// hierarchies are those that matter for the CPU of a group.
type hierarchies struct {
	cpu, cpuacct, freezer, unified hierarchy
}

// cache is the hierarchies that were found last, for all groups: with each container
// there are more mounts to read.
type cache struct {
	file string

	mu  sync.Mutex // guards what follows
	all *hierarchies
}

var mounted = &cache{file: mounts.Self}

// find reads the mounts, unless nothing was missing when that was done last, and what
// was found is still there.
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

// complete tells whether reading the mounts again would bring nothing else.
func (all *hierarchies) complete() bool {
	if all.cpu.v2 {
		return all.cpu.whole() && all.cpu.hasCPU()
	}
	return all.cpu.whole() && all.cpuacct.whole() && all.freezer.whole() && all.unified.whole()
}

// whole tells whether all of a hierarchy is mounted, and still where it was.
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

// hasCPU tells whether the cpu controller is in a hierarchy of v2: it may be in one of
// v1 that is mounted nowhere here, or switched off (cgroup_disable=cpu).
func (h *hierarchy) hasCPU() bool {
	text, err := os.ReadFile(filepath.Join(h.mount, "cgroup.controllers"))
	return h.mount != "" && err == nil && slices.Contains(strings.Fields(string(text)), "cpu")
}

// choose takes what matters for the CPU of a group.
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

// relative is the group's path in the hierarchy of what a person wrote.
func (h *hierarchy) relative(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) || slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("open cgroup %q: %w: it takes a path that starts with / and has no .. in it", path, ErrNotAGroup)
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

// below is the part of path below dir.
func below(path, dir string) (rel string, inside bool) {
	if path == dir {
		return "/", true
	}
	rel, inside = strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	return "/" + rel, inside
}

// of is the path of a process's group below the mount.
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
	// Outside of this process's cgroup namespace, or removed with processes in it.
	if strings.HasPrefix(path, "/..") || strings.HasSuffix(path, " (deleted)") {
		return "", fmt.Errorf("find the cgroup of process %d: %w: %s", pid, ErrNotAGroup, path)
	}
	return path, nil
}

// line is the path that a /proc/PID/cgroup says for the hierarchy.
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
