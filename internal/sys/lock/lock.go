// Package lock takes the locks that tell what belongs to a process which lives from
// what a killed one has left.
//
// It owns no file and removes none. A lock is flock(2)'s: it ends with the process that
// has it, and its children have it only if they inherit the file. It needs no privileges.
package lock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Take locks a file, or fails at once with EWOULDBLOCK if somebody else has it locked.
// Closing the file gives the lock back.
func Take(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// patience is how long a killed process's children may take to be executed: until then
// they have its files, and its locks with them.
const patience = 2 * time.Second

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
