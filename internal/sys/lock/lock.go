// Package lock takes locks that distinguish the files of a living process from those that a killed
// process has left.
//
// It owns no file and removes none. A lock is flock(2)'s: it ends with the process that
// has it, and its children have it only if they inherit the file. It needs no privileges.
package lock

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Take locks a file, or fails at once with EWOULDBLOCK if another process has locked it. Closing
// the file gives the lock back.
func Take(f *os.File) error { return TakeFD(int(f.Fd())) }

// TakeFD is Take for a bare descriptor.
func TakeFD(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }

// Wait locks a file as soon as nobody else has it locked.
func Wait(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// TakeNamed locks a file, and tells whether the lock counts: nobody else has it, and the
// file is the one that path leads to. A file that was removed or renamed since it was
// opened is not, and another process may have the lock of the one that is there now.
func TakeNamed(f *os.File, path string) (bool, error) {
	err := Take(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, named), err
}

// patience is how long a killed process's children may take to be executed: until then
// they have its files, and its locks with them.
var patience = 2 * time.Second

// TakeFromKilled locks a file whose holder may just have been killed, or fails with
// EWOULDBLOCK if a process that lives holds the lock.
func TakeFromKilled(f *os.File) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := Take(f)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
	}
}

// Open opens a file or a folder and locks it.
func Open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := Take(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
