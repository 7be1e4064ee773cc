// Package bandwidth is the CPU bandwidth of one cgroup, whichever hierarchy the
// cpu controller is in: quota, period and burst, how much the group has used, how
// it was throttled, and the freezer that stops its processes.
//
// It changes what it is told to change and nothing by itself, makes no group and
// moves no process; what has to be undone is written down by others. A group is
// held by its directory's descriptor: one that is made anew under the same name is
// another group. Reading needs access to the hierarchy, writing needs root. The files of
// a group are opened for each use, unless Keep says that it is read often.
//
// It needs Linux 5.6 (openat2). Burst is there since 5.14, in v2 and in v1.
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
	// ErrNoFreezer says that a group's processes cannot be stopped, or not
	// without stopping others.
	ErrNoFreezer = errors.New("no freezer of its own")
	// ErrEmpty says that what only processes can tell about a group is not known, as
	// none is in it yet.
	ErrEmpty = errors.New("no process is in it yet")
	// ErrGone says that the group was removed.
	ErrGone = errors.New("the cgroup is gone")
)

// HelperGroup is the name of the child in which helpers of a container are placed
// in the cpu hierarchy alone: they are under its quota, but not of the container.
const HelperGroup = "tsugiki-helpers"

// Group is one group of the cpu hierarchy. It may be used from several goroutines.
type Group struct {
	all  *hierarchies
	path string // absolute
	id   uint64
	dir  int // not O_PATH, which has no locks

	mu       sync.Mutex // guards what follows
	keep     bool
	kept     [fileKinds]int // descriptors; 0: not open
	counting int            // directory of the usage where that is in another hierarchy, once found; or 0
	unused   bool           // the usage was asked for before that
	before   uint64         // what the usage was when it was found
	period   string         // what was last read, for FormatQuota
	closed   bool
}

// Open opens the group at path: an absolute directory in the cpu hierarchy, or a
// path relative to its mount, "/docker/ID". A path with "..", one that leaves the
// hierarchy by a symlink or a mount, and one that is no group are ErrNotAGroup.
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

// OfProcess opens the group of the cpu hierarchy that a process is in.
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
		return nil, fmt.Errorf("open cgroup %s in %s: %w: %w", rel, all.cpu.mount, ErrNotAGroup, err)
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

// Path is the group's absolute directory.
func (g *Group) Path() string { return g.path }

// rel is the path below the root of the hierarchy, "/" first.
func (g *Group) rel() string {
	rel, _ := below(g.path, g.all.cpu.mount)
	return rel
}

// Within tells whether the group is that at a path relative to the mount, "/docker",
// or below it.
func (g *Group) Within(path string) bool {
	_, inside := below(g.rel(), filepath.Clean(path))
	return inside
}

// ID is the directory's inode, which is the kernel's id of the group.
func (g *Group) ID() uint64 { return g.id }

// rootInode is the inode of every hierarchy's root (kernfs).
const rootInode = 1

// Root tells whether it is the root of the hierarchy, which has no quota.
func (g *Group) Root() bool { return g.id == rootInode }

// Version is the kind of hierarchy: "v1", "hybrid" (the cpu controller is v1's, and
// cgroup v2 is mounted too), or "v2".
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

// Lock locks the group's directory until Close, against whoever else locks it;
// unix.EWOULDBLOCK: somebody has.
func (g *Group) Lock() error {
	if err := lock.TakeFD(g.dir); err != nil {
		return fmt.Errorf("lock cgroup %s: %w", g.path, err)
	}
	return nil
}

// Close gives the descriptors back. It changes nothing of the group.
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

// fault says what of which group went wrong; ErrGone when that is why.
func (g *Group) fault(what string, err error) error {
	if (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)) && g.Gone() {
		return fmt.Errorf("%s of %s: %w: %w", what, g.path, ErrGone, err)
	}
	return fmt.Errorf("%s of %s: %w", what, g.path, err)
}
