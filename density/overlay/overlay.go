// Package overlay measures how long it takes to create and to delete files on an overlay file
// system, and on the plain file system below it.
//
// It owns the files, and the mounts, which are in a mount namespace of their own: the kernel
// removes them however the process ends. Rounds and statistics belong to density/figures. It
// needs CAP_SYS_ADMIN and a file system that can hold an overlay's upper layer. Linux 5.15.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// Operation is the operation that is measured.
type Operation string

// The operations of the study.
const (
	Create Operation = "create" // open with O_CREAT|O_TRUNC, write, close
	Delete Operation = "delete" // unlink
)

// Target says what exists at a file's name before the operation.
type Target string

// The targets. In Plain and Absent, Create finds no file of the name. In Existing it finds one on
// the plain file system. In Present there is one in the overlay's lower layer: to write it, the
// kernel copies it up without its data; to delete it, the kernel puts a whiteout over it.
const (
	Plain    Target = "plain"
	Existing Target = "plain, over an old file"
	Absent   Target = "overlay, lower layer absent"
	Present  Target = "overlay, lower layer present"
)

// Job is one run.
type Job struct {
	// Dir is a directory on the file system that is measured. Run removes the files that it
	// creates there.
	Dir       string
	Operation Operation
	Target    Target
	Files     int
	Bytes     int // of each file
}

// Timing is what one run took.
type Timing struct {
	Each []time.Duration // by file
	All  time.Duration
	Sync time.Duration // of syncfs(2) after the last file
}

// folders of a run.
type folders struct{ plain, lower, upper, work, merged string }

// Run measures one job. Before it measures, it writes the file system's data to disk. The files
// that exist before are in the kernel's caches, since Run has just created them.
func (j Job) Run() (Timing, error) {
	root, err := os.MkdirTemp(j.Dir, "overlay-")
	if err != nil {
		return Timing{}, fmt.Errorf("measure overlay: %w", err)
	}
	var timing Timing
	err = thread.Do(func() (err error) { // on a thread with other mounts than the process
		timing, err = j.run(root)
		return err
	})
	if err := errors.Join(err, os.RemoveAll(root)); err != nil {
		return Timing{}, fmt.Errorf("measure %s %s: %w", j.Operation, j.Target, err)
	}
	return timing, nil
}

func (j Job) run(root string) (Timing, error) {
	f := folders{}
	for name, path := range map[string]*string{"plain": &f.plain, "lower": &f.lower, "upper": &f.upper, "work": &f.work, "merged": &f.merged} {
		*path = filepath.Join(root, name)
		if err := os.Mkdir(*path, 0o700); err != nil {
			return Timing{}, err
		}
	}
	dir := f.plain
	if j.Target == Present {
		if err := j.fill(f.lower); err != nil {
			return Timing{}, err
		}
	}
	if j.Target == Present || j.Target == Absent {
		if err := f.mount(); err != nil {
			return Timing{}, err
		}
		dir = f.merged
	}
	if j.Target == Existing || j.Operation == Delete && j.Target != Present {
		if err := j.fill(dir); err != nil {
			return Timing{}, err
		}
	}
	timing, err := j.measure(dir)
	if dir == f.merged {
		err = errors.Join(err, unix.Unmount(f.merged, unix.MNT_DETACH))
	}
	return timing, err
}

func (f folders) mount() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// From here the names of the layers have no comma or colon in them.
	if err := unix.Chdir(filepath.Dir(f.merged)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", f.merged, "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work"); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", f.merged, err)
	}
	return nil
}

// fill creates the files that exist before the operation.
func (j Job) fill(dir string) error {
	data := make([]byte, j.Bytes)
	for i := range j.Files {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (j Job) measure(dir string) (Timing, error) {
	d, err := os.Open(dir)
	if err != nil {
		return Timing{}, err
	}
	defer d.Close()
	sync := func() error { return unix.Syncfs(int(d.Fd())) }
	if err := sync(); err != nil {
		return Timing{}, fmt.Errorf("write everything to disk: %w", err)
	}
	do := func(path string) error { return unix.Unlink(path) }
	if j.Operation == Create {
		data := make([]byte, j.Bytes)
		do = func(path string) error { return write(path, data) }
	}
	t := Timing{Each: make([]time.Duration, j.Files)}
	begin := time.Now()
	for i := range j.Files {
		path := filepath.Join(dir, strconv.Itoa(i))
		since := time.Now()
		if err := do(path); err != nil {
			return Timing{}, fmt.Errorf("%s %s: %w", j.Operation, path, err)
		}
		t.Each[i] = time.Since(since)
	}
	t.All = time.Since(begin)
	since := time.Now()
	err = sync()
	t.Sync = time.Since(since)
	return t, err
}

// write does not use os.File: Go's poller would add a system call for each file.
func write(path string, data []byte) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		data = data[n:]
	}
	return unix.Close(fd)
}
