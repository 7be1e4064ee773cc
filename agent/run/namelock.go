package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// nameLock holds a container's name by a lock on a file. The file says what has to be removed if
// the holder is killed.
//
// The lock lasts as long as the holder lives. A process that gets the lock knows that the former
// holder is gone, and removes what that one left. Only the holder of the lock removes the file, and
// a lock counts only if the file is still the one of that name.
type nameLock struct {
	file *os.File
}

// leftovers is the content of the file.
type leftovers struct {
	PID    int    `json:"pid"`
	Cgroup string `json:"cgroup"`
}

// lockName takes a name, after it has removed the leftovers of a killed holder.
func lockName(dir, name string) (*nameLock, error) {
	if err := api.CheckName(name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w; choose another with --run-dir", err)
	}
	path := filepath.Join(dir, name+".json")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("claim name: %w; choose another directory with --run-dir", err)
		}
		held, err := lock.TakeNamed(f, path)
		switch {
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("claim name: %w", err)
		case held:
			if err := removeLeftovers(f); err != nil {
				f.Close()
				return nil, err
			}
			return &nameLock{f}, nil
		}
		holder := readLeftovers(f)
		f.Close()
		if holder != nil {
			return nil, fmt.Errorf("the name %q is in use by process %d; choose another with --name", name, holder.PID)
		}
	}
}

// record saves the leftovers before they are made.
func (l *nameLock) record(left leftovers) error {
	data, err := json.Marshal(left)
	if err == nil {
		_, err = l.file.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("write down container: %w; make room, or choose another directory with --run-dir", err)
	}
	return nil
}

// release gives the name back.
func (l *nameLock) release() error {
	err := os.Remove(l.file.Name())
	return errors.Join(err, l.file.Close())
}

func readLeftovers(f *os.File) *leftovers {
	var l leftovers
	if err := json.NewDecoder(f).Decode(&l); err != nil {
		return nil
	}
	return &l
}

func removeLeftovers(f *os.File) error {
	l := readLeftovers(f)
	if l != nil && l.Cgroup != "" {
		if err := container.ForgetKilled(l.Cgroup); err != nil {
			return fmt.Errorf("clean up after killed process %d: %w", l.PID, err)
		}
	}
	socket := api.ContainerSocket(filepath.Dir(f.Name()), strings.TrimSuffix(filepath.Base(f.Name()), ".json"))
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean up after killed process: %w", err)
	}
	return f.Truncate(0)
}

// Sweep removes the leftovers of killed processes from a run directory.
func Sweep(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range files {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
		held, err := lock.TakeNamed(f, path)
		if held && err == nil {
			if err = removeLeftovers(f); err == nil {
				err = os.Remove(path)
			}
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}
