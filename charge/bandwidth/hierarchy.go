package bandwidth

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

var errNoController = errors.New("no cgroup hierarchy with a cpu controller is mounted")

// hierarchy is where a controller's groups are; without a mount there is none.
type hierarchy struct {
	mount string
	root  string // the group that is at the mount
	id    string // as in the lines of /proc/PID/cgroup: a controller's name, "" is v2
	v2    bool
}

// hierarchies are those that matter for the CPU of a group.
type hierarchies struct {
	cpu, cpuacct, freezer, unified hierarchy
}

// findHierarchies reads the mounts. A controller is in one hierarchy at a time; of
// several mounts of it, that of the whole tree serves.
func findHierarchies(mountinfo string) (*hierarchies, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	all := parseMounts(string(text))
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

func parseMounts(text string) *hierarchies {
	all := &hierarchies{}
	for line := range strings.Lines(text) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		mount, root := unescape(fields[4]), unescape(fields[3])
		switch kind[0] {
		case "cgroup2":
			all.unified.take(hierarchy{mount, root, "", true})
		case "cgroup":
			for _, c := range strings.Split(kind[2], ",") {
				switch c {
				case "cpu":
					all.cpu.take(hierarchy{mount, root, c, false})
				case "cpuacct":
					all.cpuacct.take(hierarchy{mount, root, c, false})
				case "freezer":
					all.freezer.take(hierarchy{mount, root, c, false})
				}
			}
		}
	}
	return all
}

func (h *hierarchy) take(other hierarchy) {
	if h.mount == "" || h.root != "/" && other.root == "/" {
		*h = other
	}
}

// unescape undoes what mountinfo does to spaces and the like in paths.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
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
