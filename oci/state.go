package oci

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/api"
)

// state is the content of the file of a registered container.
type state struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Bundle   string `json:"bundle"`
	Preload  string `json:"preload,omitempty"` // LD_PRELOAD of its processes
	HostUser bool   `json:"hostUser"`          // the container is in the host's user namespace
	Edited   string `json:"edited"`            // the hash of the config.json that we wrote
	// Asked is the hash of the registration that the agent got. Answer is the agent's answer.
	Asked  string         `json:"asked"`
	Answer api.Registered `json:"answer"`
	path   string
}

// statePath returns the path of a container's state. Ids are unique below one root.
func (w *Wrapper) statePath(c command) string {
	sum := sha256.Sum256([]byte(c.root + "\x00" + c.id))
	return filepath.Join(filepath.Dir(w.socket), "runtime", fmt.Sprintf("%x.json", sum[:16]))
}

// loadState returns nil for a container that was not registered.
func (w *Wrapper) loadState(c command) (*state, error) {
	s, err := loadStateAt(w.statePath(c))
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.id, err)
	}
	return s, nil
}

func loadStateAt(path string) (*state, error) {
	s := &state{path: path}
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state %s: %w", path, err)
	}
	return s, nil
}

// save writes the state. It does not call fsync(2): /run does not survive a power cut.
func (s *state) save() error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	aside := s.path + ".new"
	if err := os.WriteFile(aside, data, 0o600); err != nil {
		return err
	}
	return os.Rename(aside, s.path)
}

func (s *state) forget() error {
	err := os.Remove(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
