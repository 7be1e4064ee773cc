package bandwidth

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// fileKind is one of a group's files.
type fileKind int

const (
	quotaFile fileKind = iota
	periodFile
	burstFile
	statFile
	usageFile
	fileKinds
)

var (
	namesV1 = [fileKinds]string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.stat", "cpuacct.usage"}
	namesV2 = [fileKinds]string{"cpu.max", "cpu.max", "cpu.max.burst", "cpu.stat", "cpu.stat"}
)

func (g *Group) name(kind fileKind) string {
	if g.all.cpu.v2 {
		return namesV2[kind]
	}
	return namesV1[kind]
}

// Keep keeps the files open after their first use, or closes them. An open file that was read takes
// 4.5 KiB of the kernel's memory. Opening a file for each use costs two or three times as much as
// reading it.
func (g *Group) Keep(keep bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.keep = keep && !g.closed
	if g.keep {
		return nil
	}
	return g.drop()
}

// drop closes the open files. The caller holds mu.
func (g *Group) drop() error {
	var errs []error
	for kind, fd := range g.kept {
		if fd != 0 {
			errs = append(errs, unix.Close(fd))
			g.kept[kind] = 0
		}
	}
	return errors.Join(errs...)
}

// use calls do with a descriptor of one of the group's files. It uses no os.File, because
// os.File.Fd is a system call. The caller holds mu.
func (g *Group) use(kind fileKind, do func(fd int) (int, error)) (int, error) {
	if fd := g.kept[kind]; fd != 0 {
		return do(fd)
	}
	if g.closed {
		return 0, os.ErrClosed
	}
	dir := g.dir
	if kind == usageFile && g.counting != 0 {
		dir = g.counting
	}
	fd, err := openAt(dir, g.name(kind))
	if err != nil {
		return 0, err
	}
	if g.keep {
		g.kept[kind] = fd
	} else {
		defer unix.Close(fd)
	}
	return do(fd)
}

// openAt opens a file of a group, for writing too where that is possible.
func openAt(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	return fd, err
}

// readSize is larger than any file that this package reads once.
const readSize = 1024

// read returns a file's text without surrounding space.
func (g *Group) read(kind fileKind) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var buf [readSize]byte
	// One read is enough: another one, to see the end, would be a second system call.
	n, err := g.use(kind, func(fd int) (int, error) { return unix.Pread(fd, buf[:], 0) })
	if err != nil {
		return "", g.fault("read "+g.name(kind), err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

func (g *Group) write(kind fileKind, text string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.use(kind, func(fd int) (int, error) { return unix.Pwrite(fd, []byte(text), 0) }); err != nil {
		return g.fault(fmt.Sprintf("write %q to %s", text, g.name(kind)), err)
	}
	return nil
}

// readWhole reads a file of any group. os.ReadFile costs more than the reading itself: files of
// cgroups can be polled, so the Go runtime adds them to its poller.
func readWhole(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := make([]byte, 0, readSize)
	for {
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if n <= 0 || err != nil {
			return text, err
		}
		if text = text[:len(text)+n]; len(text) == cap(text) {
			text = slices.Grow(text, cap(text))
		}
	}
}
