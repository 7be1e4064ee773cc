package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/sys/mounts"
)

// group is the name of the cgroups of the agent and its processes.
const group = "tsugiki"

// ErrNoPod says that a process is in no cgroup of a pod.
var ErrNoPod = errors.New("no cgroup of this process is a pod's")

// groups returns the folders of our groups, beside the group of all pods in each hierarchy that has one.
// It is called in the node's namespaces, in a group of a pod.
func groups() ([]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	all, err := cgroup.Find(mounts.Self)
	if err != nil {
		return nil, err
	}
	return beside(string(text), all)
}

// leavePod moves this process into our groups, which are made if they are not there.
func leavePod() error {
	dirs, err := groups()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := move(dir); err != nil {
			return err
		}
	}
	return nil
}

// Clear kills the processes that the agent has left, and removes their groups. It is called in the node's
// namespaces by a process that is still in its pod. It waits up to ten seconds for each group.
func Clear() error {
	dirs, err := groups()
	if err != nil {
		return err
	}
	for _, v2 := range []bool{true, false} { // a group of v1 is empty when the processes are gone
		for _, dir := range dirs {
			if isV2(dir) == v2 {
				err = errors.Join(err, cgroup.At(dir).Remove())
			}
		}
	}
	return err
}

// isV2 tells whether a group is in the hierarchy of cgroup v2.
func isV2(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.events"))
	return err == nil
}

// beside returns the folders of our groups, by the text of /proc/PID/cgroup of a process of a pod.
// The kubelet has all pods in one group, which is called kubepods, or kubepods.slice where systemd
// makes it. A hierarchy of v1 in which the process is in no such group is left out. In that of v2 there
// may be no such group, beside hierarchies of v1: then ours is at the same place as in these.
func beside(text string, all *cgroup.Hierarchies) (dirs []string, err error) {
	anywhere, known := "", false // where the group of all pods is
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3) // ID:CONTROLLERS:PATH
		if len(parts) != 3 {
			continue
		}
		parent, is := aboveKubepods(parts[2])
		if is && !known {
			anywhere, known = parent, true
		}
		h := all.V2
		if parts[1] != "" {
			first, _, _ := strings.Cut(parts[1], ",")
			h = all.V1[first]
		} else if !is { // the last line
			parent, is = anywhere, known
		}
		if !is {
			continue
		}
		rel, err := filepath.Rel(h.Root, parent)
		if h.Mount == "" || err != nil || !filepath.IsLocal(rel) {
			return nil, fmt.Errorf("group %s of hierarchy %q is mounted nowhere", parent, parts[1])
		}
		dirs = append(dirs, filepath.Join(h.Mount, rel, group))
	}
	if !known {
		return nil, ErrNoPod
	}
	return dirs, nil
}

// aboveKubepods returns the group that has the group of all pods, by the group of one.
func aboveKubepods(path string) (string, bool) {
	names := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for i, name := range names {
		if name == "kubepods" || strings.HasSuffix(name, "kubepods.slice") {
			return "/" + filepath.Join(names[:i]...), true
		}
	}
	return "", false
}

// move moves this process into a group, which is made if it is not there.
func move(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A new group of cpuset has no processors (cgroup v1), and then takes no process.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := inherit(dir, name); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// inherit has an empty file of a cgroup v1 be as that of the group around it.
func inherit(dir, name string) error {
	if isV2(dir) {
		return nil // there, an empty file means that
	}
	now, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(now)) != "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), text, 0)
}
