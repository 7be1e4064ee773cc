// Package bandwidth reads and writes the CPU limit of one cgroup, in any version of the cpu
// controller: quota, period and burst. It also reads the CPU time that the group has used and how
// it was throttled, and stops the group's processes with a freezer.
//
// It changes only the files that its caller asks for. It makes no group and moves no process. Its
// callers record how to undo a change. A Group holds its directory's descriptor: a directory made
// later under the same name is another group. Reading needs access to the hierarchy. Writing needs
// root. The files of a group are opened for each use, unless Keep says that they are read often.
//
// It needs Linux 5.6 (openat2). Burst exists since 5.14, in v2 and in v1.
package bandwidth

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/tsugiki/tsugiki/internal/sys/lock"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotAGroup says that a path is no cgroup with a cpu controller.
	ErrNotAGroup = errors.New("not a cgroup with a cpu controller")
	// ErrNoFreezer says that a group's processes cannot be stopped without stopping others, or not
	// at all.
	ErrNoFreezer = errors.New("no freezer of its own")
	// ErrEmpty says that the group has no process yet, and that only a process could show the
	// answer.
	ErrEmpty = errors.New("no process is in it yet")
	// ErrGone says that the group was removed.
	ErrGone = errors.New("the cgroup is gone")
)

// HelperGroup is the name of the child group for a container's helpers. It exists only in the cpu
// hierarchy: the helpers there are under the container's quota, but are not processes of the
// container.
const HelperGroup = "tsugiki-helpers"

// Group is one group of the cpu hierarchy. Several goroutines may use it.
type Group struct {
	all  *hierarchies
	path string // absolute
	id   uint64
	dir  int // not O_PATH: such a descriptor cannot be locked

	mu       sync.Mutex // guards the fields below
	keep     bool
	kept     [fileKinds]int // descriptors; 0: not open
	counting int            // directory of the cpuacct group, if that is another one and was found; or 0
	unused   bool           // Usage was called before counting was found
	before   uint64         // the usage when counting was found after such a call
	period   string         // the text that was last read, for FormatQuota
	closed   bool
}

// Open opens the group at path. The path is an absolute directory in the cpu hierarchy, or a path
// relative to its mount such as "/docker/ID". ErrNotAGroup: the path has a "..", leaves the
// hierarchy by a symlink or a mount, or is no group.
func Open(path string) (*Group, error) {
	all, err := mounted.find()
	if err != nil {
		return nil, err
	}
	rel, err := all.cpu.relative(path)
	if err != nil {
		return nil, err
	}
	return open(all, rel)
}

// OfProcess opens the cpu group of a process.
func OfProcess(pid int) (*Group, error) {
	all, err := mounted.find()
	if err != nil {
		return nil, err
	}
	rel, err := all.cpu.of(pid)
	if err != nil {
		return nil, err
	}
	return open(all, rel)
}

// PathOfProcess returns the directory of the group of the cpu hierarchy that a process is in. In
// cgroup v2 such a group may have no cpu controller, and so cannot be opened.
func PathOfProcess(pid int) (string, error) {
	all, err := mounted.find()
	if err != nil {
		return "", err
	}
	rel, err := all.cpu.of(pid)
	if err != nil {
		return "", err
	}
	return filepath.Join(all.cpu.mount, filepath.Clean("/"+rel)), nil
}

func open(all *hierarchies, rel string) (*Group, error) {
	rel = filepath.Clean("/" + rel)
	top, err := unix.Open(all.cpu.mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup hierarchy %s: %w", all.cpu.mount, err)
	}
	defer unix.Close(top)
	dir, err := unix.Openat2(top, "."+rel, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s in %s: %w", rel, all.cpu.mount, notAGroup(err))
	}
	g := &Group{all: all, path: filepath.Join(all.cpu.mount, rel), dir: dir}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("open cgroup %s: %w", rel, err), g.Close())
	}
	g.id = st.Ino
	if !g.Root() {
		if err := unix.Faccessat(dir, g.name(quotaFile), unix.F_OK, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("open cgroup %s: %w: it has no %s: %w; "+
				"in cgroup v2 its parent has to delegate cpu", g.path, ErrNotAGroup, g.name(quotaFile), err), g.Close())
		}
	}
	return g, nil
}

// notAGroup adds ErrNotAGroup to an error of opening a path, if the path is the reason. Another
// reason is for example that the process has too many open files.
func notAGroup(err error) error {
	for _, path := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG, unix.EINVAL} {
		if errors.Is(err, path) {
			return fmt.Errorf("%w: %w", ErrNotAGroup, err)
		}
	}
	return err
}

// Path returns the group's absolute directory.
func (g *Group) Path() string { return g.path }

// rel returns the path below the root of the hierarchy. It starts with "/".
func (g *Group) rel() string {
	rel, _ := below(g.path, g.all.cpu.mount)
	return rel
}

// Within tells whether the group is at or below a path that is relative to the mount, such as
// "/docker".
func (g *Group) Within(path string) bool {
	_, inside := below(g.rel(), filepath.Clean(path))
	return inside
}

// ID returns the directory's inode. It is the kernel's id of the group.
func (g *Group) ID() uint64 { return g.id }

// rootInode is the inode of every hierarchy's root (kernfs).
const rootInode = 1

// Root tells whether the group is the root of the hierarchy. The root has no quota.
func (g *Group) Root() bool { return g.id == rootInode }

// Version returns the kind of hierarchy: "v1", "hybrid" (the cpu controller is in v1, and v2 is
// mounted too), or "v2".
func (g *Group) Version() string {
	switch {
	case g.all.cpu.v2:
		return "v2"
	case g.all.unified.mount != "":
		return "hybrid"
	}
	return "v1"
}

// Gone tells whether the group has been removed.
func (g *Group) Gone() bool {
	var st unix.Stat_t
	if err := unix.Stat(g.path, &st); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return st.Ino != g.id
}

// Lock locks the group's directory until Close. unix.EWOULDBLOCK: another process holds the lock.
func (g *Group) Lock() error {
	if err := lock.TakeFD(g.dir); err != nil {
		return fmt.Errorf("lock cgroup %s: %w", g.path, err)
	}
	return nil
}

// Close closes the descriptors. It does not change the group.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	errs := []error{unix.Close(g.dir), g.drop()}
	if g.counting != 0 {
		errs = append(errs, unix.Close(g.counting))
	}
	return errors.Join(errs...)
}

// fault adds the operation and the group to an error, and ErrGone if the group was removed.
func (g *Group) fault(what string, err error) error {
	if (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)) && g.Gone() {
		return fmt.Errorf("%s of %s: %w: %w", what, g.path, ErrGone, err)
	}
	return fmt.Errorf("%s of %s: %w", what, g.path, err)
}
