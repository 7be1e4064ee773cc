package oci

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// # Containers that are started again while no agent runs
//
// An engine that stops a container and starts it again deletes it and creates it with the same id.
// While no agent runs, nothing of its registration ends: the store has its record and its ports,
// and the BPF programs stay attached. So the registration is used again, if the container asks for
// the same as before:
//
//	delete	keeps the state, with the agent's answer      api.EndedDir
//	create	uses that answer. A note tells the next       api.AgainDir
//		agent that the container has a program,
//		whose listener waits in the agent's socket.
//
// Both commands hold the agent's lock, so no agent adopts its containers meanwhile. An agent that
// starts reads the notes and removes both folders: it has ended the containers without a note.

// keepEnded keeps the state of a container that was deleted.
func (w *Wrapper) keepEnded(st *state) error {
	without, err := w.withoutAgent(func() error {
		path := w.endedPath(st)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.Rename(st.path, path)
	})
	if without && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return st.forget() // either it was not saved, or an agent starts, which notices the end itself
}

// registerAgain puts the registration of a container in force again that ended while no agent ran.
// It reports whether there is such a registration.
func (w *Wrapper) registerAgain(st *state) (again bool, err error) {
	ended, err := loadStateAt(w.endedPath(st))
	if ended == nil || err != nil || ended.ID != st.ID || ended.Asked != st.Asked {
		return false, err
	}
	_, err = w.withoutAgent(func() error {
		if _, err := os.Lstat(ended.path); err != nil {
			return nil // an agent has run meanwhile
		}
		dir := api.AgainDir(filepath.Dir(w.socket))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, ended.Answer.Name), []byte(st.ID), 0o600); err != nil {
			return err
		}
		again, st.Answer = true, ended.Answer
		return ended.forget()
	})
	return again && err == nil, err
}

// startPatience is how long an agent may start, or end, that has its lock and no socket.
const startPatience = 20 * time.Second

// register registers a container, again if it can, and notes the answer in its state.
func (w *Wrapper) register(st *state, r api.Registration) error {
	for deadline := time.Now().Add(startPatience); ; time.Sleep(20 * time.Millisecond) {
		again, err := w.registerAgain(st)
		if again || err != nil {
			return err
		}
		st.Answer, err = w.agent.Register(r)
		if !errors.Is(err, api.ErrNoAgent) || time.Now().After(deadline) || !w.isLocked() {
			return err
		}
	}
}

// isLocked tells whether an agent has its lock.
func (w *Wrapper) isLocked() bool {
	f, err := lock.Open(w.lockPath())
	if err == nil {
		f.Close()
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

func (w *Wrapper) lockPath() string {
	return filepath.Join(filepath.Dir(w.socket), api.AgentName+".lock")
}

func (w *Wrapper) endedPath(st *state) string {
	return filepath.Join(api.EndedDir(filepath.Dir(w.socket)), filepath.Base(st.path))
}

// withoutAgent calls fn if no agent runs. No agent can start until fn returns.
func (w *Wrapper) withoutAgent(fn func() error) (without bool, err error) {
	f, err := lock.Open(w.lockPath())
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return true, fn()
}

// hashOf returns the hash of a registration.
func hashOf(r api.Registration) string {
	data, _ := json.Marshal(r) // texts and numbers: this cannot fail
	return hash(data)
}
