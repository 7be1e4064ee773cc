package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lock waits until no other process installs or removes: two pods of a DaemonSet may be there at once. The
// kernel releases the lock when the process ends. The folder of the programs is made if it is not there, and that
// of the node's files is not.
func (o *Options) lock() (release func(), err error) {
	if _, err := os.Stat(o.node("/")); err != nil {
		return nil, fmt.Errorf("find the node's files: %w", err)
	}
	folder := o.node(Prefix)
	if err := os.MkdirAll(o.top(), 0o755); err != nil {
		return nil, err
	}
	for {
		if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err := os.Open(folder)
		if _, link := os.Readlink(folder); errors.Is(err, fs.ErrNotExist) && link != nil {
			continue // whoever had the lock has removed the folder; a link would lead nowhere for ever
		}
		if err != nil {
			return nil, err
		}
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		// Whoever had the lock may have removed the folder.
		ours, err := f.Stat()
		if now, gone := os.Stat(folder); err == nil && gone == nil && os.SameFile(now, ours) {
			if ours.Sys().(*syscall.Stat_t).Nlink == 0 { // in a pod, the mount of the folder stays
				f.Close()
				return nil, fmt.Errorf("%s was removed from the node by another pod; this pod's next start makes it anew", Prefix)
			}
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}
