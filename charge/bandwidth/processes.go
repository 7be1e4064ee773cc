package bandwidth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"golang.org/x/sys/unix"
)

// errShared says that the container has no group of its own in another hierarchy.
var errShared = errors.New("no group of its own")

// Processes lists the processes in the group and below it. Placed helpers are among them.
func (g *Group) Processes() ([]int, error) {
	pids, err := processes(g.path, "")
	if err != nil {
		return nil, g.fault("list processes", err)
	}
	return pids, nil
}

// own lists the container's processes without placed helpers.
func (g *Group) own() ([]int, error) {
	pids, err := processes(g.path, filepath.Join(g.path, HelperGroup))
	if err != nil {
		return nil, g.fault("list processes", err)
	}
	return pids, nil
}

// processes lists the processes of a tree of groups without one branch. A group that is removed
// meanwhile had no processes.
func processes(top, but string) ([]int, error) {
	pids, err := processesOf(top)
	if err != nil || leaf(top) {
		return pids, err
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(top, e.Name())
		if !e.IsDir() || path == but {
			continue
		}
		some, err := processes(path, but)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		} else if err != nil {
			return nil, err
		}
		pids = append(pids, some...)
	}
	return pids, nil
}

// leaf tells whether a group has no child groups. A directory of kernfs has two links, and one more
// for each directory in it.
func leaf(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink == 2
}

func processesOf(dir string) ([]int, error) {
	text, err := readWhole(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, unix.EOPNOTSUPP) { // a threaded group: its processes are listed at the root of its threads
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.Lines(string(text)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("read cgroup.procs of %s: %w", dir, err)
		}
		if pid > 0 { // 0: in a pid namespace that is not ours
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// counterpart returns the path of the group in another hierarchy that has all of the container's
// processes. No other process may be in that group or below it.
func (g *Group) counterpart(h *hierarchy) (string, error) {
	mine, err := g.own()
	if err != nil {
		return "", err
	}
	rel := ""
	for _, pid := range mine {
		path, err := h.of(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the process has ended
		}
		if err != nil {
			return "", err
		}
		if path == "/" && ended(pid) {
			continue // in v1 the kernel shows an exiting process in the root
		}
		if rel == "" {
			rel = path
		}
		rel = common(rel, path)
	}
	if rel == "" {
		return "", fmt.Errorf("%s: %w", g.path, ErrEmpty)
	}
	return rel, g.alone(filepath.Join(h.mount, rel), rel)
}

// alone checks that a group has only processes of the container.
func (g *Group) alone(dir, rel string) error {
	if rel == "/" {
		return fmt.Errorf("%s: %w: its processes are in the root of %s", g.path, errShared, dir)
	}
	// The group is listed first: a process that is forked between the two listings is then only in
	// mine.
	theirs, err := processes(dir, "")
	if err != nil {
		return err
	}
	mine, err := g.own()
	if err != nil {
		return err
	}
	known := make(map[int]bool, len(mine))
	for _, pid := range mine {
		known[pid] = true
	}
	for _, pid := range theirs {
		if known[pid] {
			continue
		}
		if unix.Kill(pid, 0) == nil && !ended(pid) {
			return fmt.Errorf("%s: %w: process %d in %s is not in the container", g.path, errShared, pid, dir)
		}
	}
	return nil
}

// ended tells whether a process exits, is a zombie, or is gone. The hierarchies differ in which of
// these they list.
func ended(pid int) bool {
	s, err := proc.ReadStat(pid)
	return err != nil || s.Exiting()
}

// common returns the nearest group above both paths.
func common(a, b string) string {
	for a != b {
		if len(a) >= len(b) {
			a = filepath.Dir(a)
		} else {
			b = filepath.Dir(b)
		}
	}
	return a
}
