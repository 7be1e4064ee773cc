package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// agentLimit is the time within which an agent must answer.
const agentLimit = 60 * time.Second

// binEnv is the environment variable with the folder of built binaries, for tests.
const binEnv = "TSUGIKI_BIN"

// Agent is the rig's `tsugiki agent`. It dies with the rig.
type Agent struct {
	cmd    *exec.Cmd
	log    *os.File // shared by all agents of the rig
	socket string
	ended  context.Context // done when the process has ended; its cause is the reason
}

// StartAgent starts the agent and waits until it answers. The lines are added to the section
// [charge] of its configuration. Without this call the first grafted container starts an agent.
func (r *Rig) StartAgent(ctx context.Context, charge string) (*Agent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		return nil, fmt.Errorf("start agent: the rig's socket %w by another agent", ErrTaken)
	}
	err := r.startAgent(ctx, charge)
	return r.agent, err
}

// useAgent starts the agent for the first grafted container.
func (r *Rig) useAgent(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		return r.agent.check()
	}
	return r.startAgent(ctx, "")
}

// startAgent starts the agent. The caller holds r.mu.
func (r *Rig) startAgent(ctx context.Context, charge string) error {
	tsugiki, err := r.findTsugiki("tsugiki")
	if err != nil {
		return err
	}
	config := filepath.Join(r.dir, "agent.toml")
	if err := os.WriteFile(config, []byte(r.agentConfig(charge)), 0o600); err != nil {
		return err
	}
	a := &Agent{socket: r.socket()}
	if a.log, err = os.OpenFile(filepath.Join(r.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	// The agent outlives the call that starts it, so it has no context.
	a.cmd = r.command(context.WithoutCancel(ctx), tsugiki, "agent", "--config", config,
		"--run-dir", filepath.Dir(a.socket), "--state-dir", filepath.Join(r.dir, "agent"))
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	if err := r.host.start(a.cmd); err != nil {
		return errors.Join(fmt.Errorf("start agent: %w", err), a.log.Close())
	}
	ended, end := context.WithCancelCause(context.Background())
	a.ended = ended
	go func() {
		err := a.cmd.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		end(err)
	}()
	r.agent = a
	return a.await(ctx)
}

// agentConfig returns a configuration that ignores the machine's other containers, and allows
// annotations: only the rig writes its containers' bundles.
func (r *Rig) agentConfig(charge string) string {
	return fmt.Sprintf(`[charge]
within = %q
%s
[[allow]]
engines = ["other"]
names = ["*"]
annotations = ["egress", "ingress", "mode", "name"]
unknown_origin = true
destinations = ["0.0.0.0/0"]
addresses = [%q]
ports = ["1-65535"]
`, "/"+r.name(), charge, hostAddr.Addr())
}

// EndAgent kills the agent, if there is one. The next grafted container starts another agent.
// Running grafted containers continue, and the next agent adopts them.
func (r *Rig) EndAgent() {
	r.mu.Lock()
	a := r.agent
	r.agent = nil
	r.mu.Unlock()
	if a != nil {
		a.close()
	}
}

// Agent returns the running agent, or nil.
func (r *Rig) Agent() *Agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.agent
}

func (r *Rig) socket() string { return api.SocketIn(filepath.Join(r.dir, "run")) }

func (r *Rig) findTsugiki(name string) (string, error) {
	dir := r.Bin
	if dir == "" {
		dir = os.Getenv(binEnv)
	}
	if dir != "" {
		return programs.FindIn(name, []string{dir})
	}
	return programs.Find(name)
}

// Client returns a client of the agent's API.
func (a *Agent) Client() *api.Client { return api.Dial(a.socket) }

// PID returns the agent's process id.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Log returns the path of the file with the log of all the rig's agents.
func (a *Agent) Log() string { return a.log.Name() }

// OnEnd calls fn with the cause after the agent has ended, on another goroutine.
func (a *Agent) OnEnd(fn func(error)) { context.AfterFunc(a.ended, func() { fn(a.check()) }) }

// await waits until the agent answers.
func (a *Agent) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentLimit)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(a.ended, func() { end(a.check()) })()
	err := a.Client().AwaitReady(ctx)
	if err != nil && a.check() == nil {
		err = fmt.Errorf("%w%s", err, a.said())
	}
	return err
}

// check returns an error if the agent has ended, which it never does by itself.
func (a *Agent) check() error {
	if a.ended.Err() == nil {
		return nil
	}
	return fmt.Errorf("the agent has ended: %w%s", context.Cause(a.ended), a.said())
}

// said returns the end of the agent's log, to append to an error.
func (a *Agent) said() string {
	data, err := os.ReadFile(a.log.Name())
	if err != nil {
		return ""
	}
	return complaint(data)
}

// close kills the agent and waits until it has ended.
func (a *Agent) close() {
	_ = a.cmd.Process.Kill()
	<-a.ended.Done()
	a.log.Close()
}
