package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// restartFile has the digest of the configuration for which containerd was restarted, in Prefix.
const restartFile = "restarted"

// State is what containerd should know, by what is installed.
type State struct {
	// File is the configuration of containerd, or nothing if it is left alone.
	File string
	// Runtimes are the tables of our runtimes in it, by name. Where it is left alone, they are nil.
	Runtimes map[string]map[string]any
	// Missing are runtimes that were installed, and that the file does not have.
	Missing []string
	// Restarted tells whether containerd was restarted for this configuration.
	Restarted bool
	// digest is that of the configuration.
	digest string
}

// State reads what containerd should know.
func (o *Options) State() (s State, err error) {
	r, err := o.readRecord()
	if err != nil {
		return s, err
	}
	s.Runtimes = map[string]map[string]any{}
	if n := len(r.Containerd); n > 0 && slices.Contains(r.Runtimes, setup.Name) {
		s.File = r.Containerd[n-1]
		if err := s.read(o.node(s.File), r.Runtimes); err != nil {
			return s, err
		}
	} else {
		for _, name := range latest(r.Runtimes, setup.Name) {
			s.Runtimes[name] = nil
		}
		s.digest = digest(fmt.Append(nil, r.Runtimes))
	}
	s.Restarted, err = o.restarted(s.digest)
	return s, err
}

// read reads containerd's configuration, which should have some runtimes.
func (s *State) read(path string, names []string) error {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	told, err := setup.ReadContainerd(content, Runtime)
	if err != nil {
		return fmt.Errorf("%s: %w", s.File, err)
	}
	s.digest = digest(content)
	for _, name := range names {
		if table := told.Runtimes[name]; table != nil {
			s.Runtimes[name] = table
		} else {
			s.Missing = append(s.Missing, name)
		}
	}
	return nil
}

func (o *Options) restartPath() string { return o.node(filepath.Join(Prefix, restartFile)) }

// NoteRestart notes that containerd is restarted for a configuration, before it is: whoever is killed in
// the middle does not restart it again. It returns false if another process has noted that already.
func (o *Options) NoteRestart(s State) (bool, error) {
	release, err := o.lock()
	if err != nil {
		return false, err
	}
	defer release()
	if is, err := o.Installed(); err != nil || !is {
		return false, errors.Join(err, remove(o.restartPath(), o.top())) // another process has removed all
	}
	if is, err := o.restarted(s.digest); err != nil || is {
		return false, err
	}
	list := []change{text(o.restartPath(), o.top(), []byte(s.digest), 0o644)}
	if err := stage(list); err != nil {
		return false, err
	}
	return true, commit(list)
}

// restarted tells whether containerd was restarted for a configuration.
func (o *Options) restarted(digest string) (bool, error) {
	noted, err := os.ReadFile(o.restartPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return string(noted) == digest, err
}

// ForgetRestart is called when containerd knows the configuration, or when no restart was begun after
// NoteRestart. containerd may be restarted again then.
func (o *Options) ForgetRestart() error {
	if _, err := os.Lstat(o.restartPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	release, err := o.lock()
	if err != nil {
		return err
	}
	defer release()
	return remove(o.restartPath(), o.top())
}
