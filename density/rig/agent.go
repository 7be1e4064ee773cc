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

// agentLimit is how long an agent may take until it serves.
const agentLimit = 60 * time.Second

// binEnv names the folder of built binaries for tests.
const binEnv = "TSUGIKI_BIN"

// Agent is the rig's `tsugiki agent`. It is killed with the rig.
type Agent struct {
	cmd    *exec.Cmd
	log    *os.File // of all agents of the rig
	socket string
	ended  context.Context // done when the process has ended; the cause says how
}

// StartAgent starts the agent with more lines for the section [charge] of its configuration,
// and waits until it serves. Without this call the first grafted container starts one.
func (r *Rig) StartAgent(ctx context.Context, charge string) (*Agent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		return nil, fmt.Errorf("start agent: the rig's socket %w by another agent", ErrTaken)
	}
	err := r.startAgent(ctx, charge)
	return r.agent, err
}

// useAgent starts the agent before the first container is grafted.
func (r *Rig) useAgent(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		return r.agent.check()
	}
	return r.startAgent(ctx, "")
}

// startAgent is called with r.mu locked.
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
	// The agent stays longer than what it was started for: it has no context.
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

// agentConfig leaves the machine's other containers alone, and allows the annotations of the
// rig's: nobody but the rig writes their bundles.
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

// EndAgent kills the agent; without one it does nothing. The next grafted container starts
// another one. Grafted containers that run stay, and the next agent adopts them.
func (r *Rig) EndAgent() {
	r.mu.Lock()
	a := r.agent
	r.agent = nil
	r.mu.Unlock()
	if a != nil {
		a.close()
	}
}

// Agent is the one that runs; nil if there is none.
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

// Client speaks to the agent.
func (a *Agent) Client() *api.Client { return api.Dial(a.socket) }

// PID is the agent's process.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Log is the path of the file with what the rig's agents have logged, all of them.
func (a *Agent) Log() string { return a.log.Name() }

// OnEnd calls fn with the cause when the agent has ended, on a goroutine of its own.
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

// check says whether the agent has ended, which it does not by itself.
func (a *Agent) check() error {
	if a.ended.Err() == nil {
		return nil
	}
	return fmt.Errorf("the agent has ended: %w%s", context.Cause(a.ended), a.said())
}

// said is the end of the agent's log, to append to an error.
func (a *Agent) said() string {
	data, err := os.ReadFile(a.log.Name())
	if err != nil {
		return ""
	}
	return complaint(data)
}

// close kills the agent and waits for its end.
func (a *Agent) close() {
	_ = a.cmd.Process.Kill()
	<-a.ended.Done()
	a.log.Close()
}
