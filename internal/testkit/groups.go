package testkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Groups are the cgroups of a container: one of the same name in each of some
// hierarchies, or the one in cgroup2 if that has all controllers.
type Groups struct {
	Name string // as a path below the mounts: "/NAME"
	dirs []string
}

const groupsPatience = 10 * time.Second

var groupsMade atomic.Int32

// NewGroups makes groups for the cpu controller, and others, which end with the test,
// with whatever is in them.
func NewGroups(t TB, controllers ...string) *Groups {
	t.Helper()
	return NewGroupsIn(t, append([]string{"cpu", "cpuacct"}, controllers...)...)
}

// NewGroupsIn is NewGroups for these hierarchies alone: controllers, or "unified".
func NewGroupsIn(t TB, hierarchies ...string) *Groups {
	t.Helper()
	g := &Groups{Name: fmt.Sprintf("/tsugiki-test-%d-%d", os.Getpid(), groupsMade.Add(1))}
	t.Cleanup(func() { Eventually(t, groupsPatience, g.remove) })
	g.Add(t, hierarchies...)
	return g
}

// Add makes them in more hierarchies. Who is in them already is not in the new ones.
func (g *Groups) Add(t TB, hierarchies ...string) {
	t.Helper()
	roots := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil {
		roots = nil
		for _, h := range hierarchies {
			roots = append(roots, filepath.Join("/sys/fs/cgroup", h))
		}
	}
	for _, root := range roots {
		dir := root + g.Name
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // cpu,cpuacct are one
			t.Fatalf("%v", err)
		}
		if !slices.Contains(g.dirs, dir) {
			g.dirs = append(g.dirs, dir)
		}
	}
}

// Enter moves a process into the groups.
func (g *Groups) Enter(t TB, pid int) {
	t.Helper()
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// remove thaws, kills and removes, as far as that is to be done still.
func (g *Groups) remove() error {
	var errs []error
	for _, dir := range g.dirs {
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, text := range strings.Fields(string(procs)) {
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
