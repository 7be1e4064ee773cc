package setup

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// modeNew is the mode of a new configuration file.
const modeNew = 0o644

// likeBefore gives next the mode and the owner of the file that it will replace.
func likeBefore(next *os.File, file string) error {
	old, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return next.Chmod(modeNew)
	}
	if err != nil {
		return err
	}
	if owner, ok := old.Sys().(*syscall.Stat_t); ok {
		err = next.Chown(int(owner.Uid), int(owner.Gid))
	}
	return errors.Join(err, next.Chmod(old.Mode().Perm()))
}
