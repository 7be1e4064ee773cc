package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
)

// Wrapper is the runtime that engines call.
type Wrapper struct {
	runtime string // the real one
	socket  string // the agent's
	agent   *api.Client
}

// Main carries out a command of an engine and returns the exit status, unless it executes the
// real runtime in this process. TSUGIKI_AGENT names the agent's socket in place of the
// configuration. TSUGIKI_OCI_RUNTIME names the real runtime if the configuration does not.
func Main(args []string) int {
	c := parseCommand(args)
	done, err := own(args)
	if done && err == nil {
		return 0
	}
	var w *Wrapper
	if err == nil {
		w, err = newWrapper()
	}
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

// stopped lists the commands that do not work while a container is frozen. (update does not work
// while a container has burst, but has too many options for parseCommand.)
var stopped = []string{"exec", "pause", "resume", "kill", "delete"}

// letGoFor is how long the agent then does not hold the container for its debt.
const letGoFor = 2 * time.Second

// letGo makes the agent thaw the container if it holds the container for its debt. Without an agent
// no container is held: the agent thaws all containers when it ends.
func (w *Wrapper) letGo(c command) { _ = w.agent.LetGo(c.id, letGoFor) }

func (w *Wrapper) create(c command, args []string) (int, error) {
	bundle, err := filepath.Abs(c.bundle) // "" is the current directory
	if err != nil {
		return 1, err
	}
	// A container with this id was made before and was not deleted.
	if old, err := w.loadState(c); err != nil {
		return 1, err
	} else if old != nil {
		if w.exists(c) {
			return 1, w.become(args) // the runtime reports that the id is in use
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

// prepare registers a container and edits its bundle. It returns nil if nothing of the container
// is grafted. After an error, the bundle and the registration are as before.
func (w *Wrapper) prepare(c command, s *spec, f facts, bundle string) (*state, error) {
	uid, gid, err := s.ids()
	if err != nil {
		return nil, err
	}
	r := api.Registration{
		ID: c.id, Name: f.name, Engine: f.engine, Annotations: f.annotations, Unknown: f.unknown, Image: f.image,
		UID: uid, GID: gid, LoopbackOnly: f.loopback, Published: f.published, Pod: f.pod,
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
		note(c, "warning", fmt.Sprintf("container %s: the agent ignores annotations of its image: %s", f.name, strings.Join(f.image, ", ")))
	}
	st.Asked = hashOf(r)
	err = w.register(st, r)
	answer := st.Answer
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

// explain adds what to do if no agent runs.
func (w *Wrapper) explain(err error) error {
	if errors.Is(err, api.ErrNoAgent) {
		return fmt.Errorf("tsugiki agent is not running at %s; start it with systemctl start tsugiki, or choose another runtime", w.socket)
	}
	return err
}

// undo removes the registration of a container, and restores its bundle. Without an agent, the
// registration is left to the next one.
func (w *Wrapper) undo(st *state) error {
	err := w.agent.Unregister(st.Name, st.ID)
	if errors.Is(err, api.ErrNotFound) {
		err = nil
	}
	if errors.Is(err, api.ErrNoAgent) {
		return errors.Join(restoreConfig(st.Bundle, st.Edited), w.keepEnded(st))
	}
	return errors.Join(err, restoreConfig(st.Bundle, st.Edited), st.forget())
}

func (w *Wrapper) delete(c command, args []string) (int, error) {
	st, unreadable := w.loadState(c)
	if unreadable == nil && st == nil {
		return 1, w.become(args)
	}
	status, err := w.run(args)
	// If the runtime did not delete the container, it still runs.
	if err == nil && (status == 0 || c.force) {
		// If the agent was not told, it notices the end of the container itself.
		if err := w.clean(c, st, unreadable); err != nil {
			report(command{}, err)
		}
	}
	return status, err
}

// clean is undo for a container that the runtime has deleted. An unreadable state is only removed,
// because create would refuse the id: it has neither the agent's name of the container nor its
// bundle.
func (w *Wrapper) clean(c command, st *state, unreadable error) error {
	if unreadable == nil {
		return w.undo(st)
	}
	return errors.Join(unreadable, (&state{path: w.statePath(c)}).forget())
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

// editProcess writes an edited copy of the description of a process for a grafted container. It
// returns the path of the copy, or an empty text if the process needs no edit.
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

// editedProcess returns the description of a process for a grafted container, and reports
// whether it differs from data.
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
