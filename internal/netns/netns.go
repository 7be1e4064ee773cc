// Package netns opens, makes, enters and connects network namespaces, and finds their sockets.
//
// It owns the file descriptor of a namespace and nothing else: the links of a
// pair, their addresses and routes belong to their callers. Entering or making a
// namespace needs CAP_SYS_ADMIN in it; SO_NETNS_COOKIE, which identifies a
// namespace to BPF programs, needs Linux 5.14.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// RunDir is where iproute2 keeps named namespaces, see ip-netns(8).
const RunDir = "/run/netns"

// NS is an open network namespace. The namespace lives at least as long as
// the NS is not closed.
type NS struct {
	f      *os.File
	cookie uint64
	inode  uint64
	diag   diag
}

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) {
	// Between the steps of open the goroutine could change to another thread. The one that it has
	// left could end, or enter another namespace.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return open("/proc/thread-self/ns/net")
}

// Open opens a namespace by the name that ip-netns(8) gave it, by a process
// id, or by a path (anything with a slash in it).
func Open(name string) (*NS, error) {
	path := name
	if !strings.Contains(name, "/") {
		path = filepath.Join(RunDir, name)
		if _, err := strconv.ParseUint(name, 10, 31); err == nil {
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				path = filepath.Join("/proc", name, "ns/net")
			}
		}
	}
	return open(path)
}

// New makes a network namespace whose only link is a loopback that is up.
func New() (*NS, error) {
	var ns *NS
	err := thread.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback of new namespace: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set loopback of new namespace up: %w", err)
		}
		ns, err = Current()
		return err
	})
	return ns, err
}

func open(path string) (*NS, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w; ip netns list shows those that have a name", err)
	}
	return FromFile(f)
}

// errKind says that a path leads to something else than a namespace.
var errKind = errors.New("no network namespace")

// openFile opens the file of a namespace and no other file: to open a FIFO or a device
// can wait for ever, or do something.
func openFile(path string) (*os.File, error) {
	at, err := find(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(at, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, &os.PathError{Op: "open", Path: path, Err: errKind}
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// find looks a path up without opening what is there (O_PATH).
//
// On the way it follows no magic link of procfs: behind /proc/PID/root can be a file system that a
// container serves and that may never answer. As the last step it follows a link in the folders ns
// and fd of procfs: such a link leads to a file that is open already.
func find(path string) (int, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC
	plain := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	at, err := openat2(path, &plain)
	if !errors.Is(err, unix.ELOOP) {
		return at, err
	}
	folder, name := filepath.Split(filepath.Clean(path))
	if kind := filepath.Base(folder); kind != "ns" && kind != "fd" {
		return -1, errKind
	}
	plain.Flags |= unix.O_DIRECTORY
	dir, err := openat2(folder, &plain)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil {
		return -1, err
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return -1, errKind
	}
	return unix.Openat(dir, name, flags, 0)
}

// openat2 looks again when somebody was renaming files meanwhile.
func openat2(path string, how *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// FromFile makes an NS of the file of an open namespace. The NS owns the file from then on. On an
// error, FromFile closes the file.
func FromFile(f *os.File) (*NS, error) {
	ns := &NS{f: f}
	err := ns.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		ns.cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
		ns.inode = st.Ino
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s is no network namespace that can be entered: %w", f.Name(), err)
	}
	return ns, nil
}

// Do runs fn on a thread of its own that is in the namespace. What fn starts
// in other goroutines is not in the namespace.
func (ns *NS) Do(fn func() error) error {
	return thread.Do(func() error {
		if err := unix.Setns(int(ns.f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// In runs fn on a thread that is in the namespace: the caller's, if that is there, which saves a new
// thread. fn must change nothing of its thread.
func (ns *NS) In(fn func() error) error {
	var here unix.Stat_t
	// All threads to which the caller may move until fn ends are in the same namespace: those of Do
	// have their goroutines to themselves.
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err == nil && here.Ino == ns.inode {
		return fn()
	}
	return ns.Do(fn)
}

// Cookie is the namespace's SO_NETNS_COOKIE, unique until the machine restarts
// (kernel commit e8b9eab99232).
func (ns *NS) Cookie() uint64 { return ns.cookie }

// Inode is the number by which /proc/PID/ns/net shows the namespace
// (namespaces(7)).
func (ns *NS) Inode() uint64 { return ns.inode }

// File is the open namespace, for setns(2) or to hand to a child. It stays
// owned by ns.
func (ns *NS) File() *os.File { return ns.f }

// Close lets go of the namespace.
func (ns *NS) Close() error {
	ns.diag.mu.Lock()
	defer ns.diag.mu.Unlock()
	ns.diag.close()
	return ns.f.Close()
}
