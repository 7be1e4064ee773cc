package testkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Groups are the cgroups of a container: one of the same name in each of some
// hierarchies, or the one in cgroup2 if that has all controllers.
type Groups struct {
	Name string // as a path below the mounts: "/NAME"
	dirs map[string]string
}

const (
	cgroupMount = "/sys/fs/cgroup"
)

var groupsMade atomic.Int32

// CgroupVersion is how cgroups are mounted: "v2", "hybrid" (the controllers are v1's,
// and cgroup2 is mounted too) or "v1".
func CgroupVersion() string {
	var st unix.Statfs_t
	switch {
	case unix.Statfs(cgroupMount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC:
		return "v2"
	case unix.Statfs(cgroupMount+"/unified", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC:
		return "hybrid"
	}
	return "v1"
}

// CgroupRoot is where the hierarchy of a controller is mounted; "unified" is cgroup2.
func CgroupRoot(controller string) (string, error) {
	if CgroupVersion() == "v2" {
		return cgroupMount, nil
	}
	return filepath.EvalSymlinks(filepath.Join(cgroupMount, controller)) // cpu -> cpu,cpuacct
}

// NewGroups makes groups for the cpu controller, and others, which end with the test,
// with whatever is in them.
func NewGroups(t TB, controllers ...string) *Groups {
	t.Helper()
	return NewGroupsIn(t, append([]string{"cpu", "cpuacct"}, controllers...)...)
}

// NewGroupsIn is NewGroups for these hierarchies alone: controllers, or "unified".
func NewGroupsIn(t TB, hierarchies ...string) *Groups {
	t.Helper()
	g := &Groups{
		Name: fmt.Sprintf("/tsugiki-test-%d-%d", os.Getpid(), groupsMade.Add(1)),
		dirs: map[string]string{},
	}
	t.Cleanup(func() { Eventually(t, g.remove) })
	g.Add(t, hierarchies...)
	return g
}

// Add makes them in more hierarchies. Who is in them already is not in the new ones.
func (g *Groups) Add(t TB, hierarchies ...string) {
	t.Helper()
	for _, h := range hierarchies {
		root, err := CgroupRoot(h)
		if err != nil {
			t.Fatalf("%v", err)
		}
		dir := root + g.Name
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // several are one
			t.Fatalf("%v", err)
		}
		g.dirs[h] = dir
	}
}

// Dir is the group's directory in the hierarchy of one of its controllers.
func (g *Groups) Dir(controller string) string { return g.dirs[controller] }

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
		errs = append(errs, RemoveGroup(dir))
	}
	return errors.Join(errs...)
}

// RemoveGroup thaws and kills what is in a cgroup, and removes it with those below it, as far as
// that is possible yet.
func RemoveGroup(dir string) error {
	_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
	entries, _ := os.ReadDir(dir) // it may be gone
	for _, e := range entries {
		if e.IsDir() {
			if err := RemoveGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, text := range strings.Fields(string(procs)) {
		if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
