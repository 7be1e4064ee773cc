// Package overlay measures how long it takes to create and to delete files on an
// overlay file system, and on the plain one that is below it.
//
// It owns the mounts, which are in a mount namespace of its own, so that nothing is
// left mounted whatever ends it, and the files. Repeating, and what becomes of the
// figures, is density/figures' business. It needs CAP_SYS_ADMIN and a file system
// that takes an overlay's upper layer. Linux 5.15.
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

// Operation is what is measured.
type Operation string

// The operations of the study.
const (
	Create Operation = "create" // open with O_CREAT|O_TRUNC, write, close
	Delete Operation = "delete" // unlink
)

// Target is what is at the names that files are created or deleted by.
type Target string

// The targets. There is no file of the same name in Plain and Absent before one is
// created. In Existing there is one, on the plain file system; Present has it in the
// overlay's lower layer: it is then copied up to be written, without its data, and
// a whiteout is put over it to delete it.
const (
	Plain    Target = "plain"
	Existing Target = "plain, over an old file"
	Absent   Target = "overlay, lower layer absent"
	Present  Target = "overlay, lower layer present"
)

// Job is one run.
type Job struct {
	// Dir is for the run's files, all of which are removed. It is on the file
	// system to measure, and must be there.
	Dir       string
	Operation Operation
	Target    Target
	Files     int
	Bytes     int // of each file
}

// Timing is what one run took.
type Timing struct {
	Each []time.Duration // one for each file
	All  time.Duration
	Sync time.Duration // syncfs(2) after it
}

// folders of a run.
type folders struct{ plain, lower, upper, work, merged string }

// Run measures. Before, everything is written to disk, and what is not measured is
// in the caches: it was just made.
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

// fill makes the files that are there before.
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

// write is without the runtime's poller, which would add a system call for each.
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
