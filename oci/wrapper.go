package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
)

// Wrapper is the runtime that engines are told of.
type Wrapper struct {
	runtime string // the real one
	socket  string // the agent's
	agent   *api.Client
}

// Main does what a runtime is called for, and returns the exit status, unless this
// process becomes the real runtime. The environment names the agent's socket
// (TSUGIKI_AGENT) and the runtime (TSUGIKI_OCI_RUNTIME) where the configuration
// does not; see config.Load.
func Main(args []string) int {
	runtime.LockOSThread() // see run
	c := parseCommand(args)
	w, err := newWrapper()
	if err == nil {
		var status int
		if status, err = w.call(c, args); err == nil {
			return status
		}
	}
	report(c, err)
	return 1
}

func newWrapper() (*Wrapper, error) {
	cfg, err := config.Load("")
	if err != nil {
		return nil, err
	}
	w := &Wrapper{socket: os.Getenv("TSUGIKI_AGENT")}
	if w.socket == "" {
		w.socket = api.SocketIn(cfg.RunDir)
	}
	w.agent = api.Dial(w.socket)
	w.runtime, err = findRuntime(cfg.Runtime.Path, os.Getenv("TSUGIKI_OCI_RUNTIME"))
	return w, err
}

func (w *Wrapper) call(c command, args []string) (int, error) {
	if c.id == "" {
		return 1, w.become(args)
	}
	if slices.Contains(stopped, c.name) {
		w.letGo(c)
	}
	switch c.name {
	case "create", "run":
		return w.create(c, args)
	case "exec":
		return w.exec(c, args)
	case "delete":
		return w.delete(c, args)
	}
	return 1, w.become(args)
}

// stopped are the commands that a frozen container is in the way of. (Limits that are
// set while it has burst are, too, but runc's update has too many options to be known.)
var stopped = []string{"exec", "pause", "resume", "kill", "delete"}

// letGoFor is how long a container is then not held for what it owes.
const letGoFor = 2 * time.Second

// letGo has the agent thaw the container, if it is held for what it owes. An agent
// that cannot be asked holds nothing: it thaws all when it ends.
func (w *Wrapper) letGo(c command) { _ = w.agent.LetGo(c.id, letGoFor) }

func (w *Wrapper) create(c command, args []string) (int, error) {
	bundle, err := filepath.Abs(c.bundle) // of "" it is the current directory
	if err != nil {
		return 1, err
	}
	// It was made here before, and nobody has said that it ended.
	if old, err := w.loadState(c); err != nil {
		return 1, err
	} else if old != nil {
		if w.exists(c) {
			return 1, w.become(args) // which says so
		}
		if err := w.undo(old); err != nil {
			return 1, fmt.Errorf("container %s: %w", old.Name, err)
		}
	}
	s, f, err := open(bundle, c.id)
	if err != nil {
		return 1, err
	}
	if f.sandbox {
		return 1, w.become(args)
	}
	st, err := w.prepare(c, s, f, bundle)
	if err != nil {
		return 1, fmt.Errorf("container %s: %w", f.name, err)
	}
	if st == nil {
		return 1, w.become(args)
	}
	status, err := w.run(args)
	if err != nil || status != 0 || c.name == "run" && !c.detach {
		err = errors.Join(err, w.undo(st))
	}
	return status, err
}

func open(bundle, id string) (*spec, facts, error) {
	data, err := readFile(filepath.Join(bundle, configFile))
	if err != nil {
		return nil, facts{}, err
	}
	s, err := parseSpec(data)
	if err != nil {
		return nil, facts{}, fmt.Errorf("%s of container %s: %w", configFile, id, err)
	}
	f, err := factsOf(s, id, bundle)
	return s, f, err
}

// prepare registers a container and edits its bundle; nil if nothing of it is to be
// grafted. On an error all is as it was.
func (w *Wrapper) prepare(c command, s *spec, f facts, bundle string) (*state, error) {
	uid, gid, err := s.ids()
	if err != nil {
		return nil, err
	}
	r := api.Registration{
		ID: c.id, Name: f.name, Engine: f.engine, Annotations: f.annotations, Unknown: f.unknown, Image: f.image,
		UID: uid, GID: gid, LoopbackOnly: f.loopback,
	}
	st := &state{ID: c.id, Bundle: bundle, HostUser: s.isOurs(specs.UserNamespace, "user"), path: w.statePath(c)}
	if st.HostUser {
		if dropped, err := dropNetRaw(s.process); err != nil {
			return nil, err
		} else if dropped {
			r.Dropped = []string{netRaw}
		}
	}
	if len(f.image) > 0 {
		note(c, "warning", fmt.Sprintf("container %s: annotations of its image are not heard: %s", f.name, strings.Join(f.image, ", ")))
	}
	answer, err := w.agent.Register(r)
	if err != nil || !answer.Graft {
		return nil, w.explain(err)
	}
	st.Name = answer.Name
	if len(r.Dropped) > 0 {
		note(c, "info", fmt.Sprintf("container %s: %s", st.Name, noteNetRaw))
	}
	var edited []byte
	if err = s.refuse(); err == nil {
		edited, st.Preload, err = s.edit(answer)
	}
	if err == nil {
		st.Edited = hash(edited)
		err = st.save()
	}
	if err == nil {
		err = replaceConfig(bundle, edited)
	}
	if err != nil {
		return nil, errors.Join(err, w.undo(st))
	}
	return st, nil
}

// explain says what to do where there is no agent.
func (w *Wrapper) explain(err error) error {
	if errors.Is(err, api.ErrNoAgent) {
		return fmt.Errorf("tsugiki agent is not running at %s; start it with systemctl start tsugiki, or choose another runtime", w.socket)
	}
	return err
}

// undo makes it as if the container had never been registered.
func (w *Wrapper) undo(st *state) error {
	err := w.agent.Unregister(st.Name, st.ID)
	if errors.Is(err, api.ErrNotFound) {
		err = nil
	}
	return errors.Join(w.explain(err), restoreConfig(st.Bundle, st.Edited), st.forget())
}

func (w *Wrapper) delete(c command, args []string) (int, error) {
	st, err := w.loadState(c)
	if err != nil || st == nil {
		return 1, errors.Join(err, w.become(args))
	}
	status, err := w.run(args)
	// A container that is not deleted goes on running.
	if err == nil && (status == 0 || c.force) {
		// The agent finds out by itself about those whose end it was not told.
		if err := w.undo(st); err != nil {
			report(command{}, err)
		}
	}
	return status, err
}

func (w *Wrapper) exec(c command, args []string) (int, error) {
	st, err := w.loadState(c)
	if err != nil {
		return 1, err
	}
	if st == nil {
		return 1, w.become(args)
	}
	if st.HostUser && slices.ContainsFunc(c.caps, isNetAdmin) {
		return 1, fmt.Errorf("container %s: %w", st.Name, errNetAdmin)
	}
	if st.HostUser && slices.ContainsFunc(c.caps, isNetRaw) {
		return 1, fmt.Errorf("container %s: %w", st.Name, errNetRaw)
	}
	if c.processAt == 0 {
		return 1, w.become(args)
	}
	file, err := editProcess(c.process, st)
	if err != nil {
		return 1, fmt.Errorf("container %s: process %s: %w", st.Name, c.process, err)
	}
	if file == "" {
		return 1, w.become(args)
	}
	defer os.Remove(file)
	args = slices.Clone(args)
	args[c.processAt] = c.processPrefix + file
	return w.run(args)
}

// editProcess writes a copy of the description of a process that is to run in a
// grafted container, and returns its path; empty if it may stay as it is.
func editProcess(path string, st *state) (string, error) {
	data, err := readFile(path)
	if err != nil {
		return "", err
	}
	process, changed, err := editedProcess(data, st)
	if err != nil || !changed {
		return "", err
	}
	if data, err = json.Marshal(process); err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "tsugiki-process-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// editedProcess is a process as it may run in a grafted container, and whether that is
// another than it was.
func editedProcess(data []byte, st *state) (process object, changed bool, err error) {
	if process, err = parseObject(data, "env", "capabilities"); err != nil {
		return nil, false, err
	}
	if st.HostUser {
		var caps *specs.LinuxCapabilities
		if err := process.get("capabilities", &caps); err != nil {
			return nil, false, err
		}
		if err := refuseCaps(caps); err != nil {
			return nil, false, err
		}
		if changed, err = dropNetRaw(process); err != nil {
			return nil, false, err
		}
	}
	if st.Preload == "" {
		return process, changed, nil
	}
	return process, true, addPreload(process, st.Preload)
}
