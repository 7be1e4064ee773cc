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

// agent is the daemon for grafted containers. It is killed with the rig.
type agent struct {
	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

// useAgent starts the agent before the first container is grafted.
func (r *Rig) useAgent(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != nil {
		return r.agent.check()
	}
	tsugiki, err := findTsugiki("tsugiki")
	if err != nil {
		return err
	}
	a := &agent{ended: make(chan error, 1)}
	if a.log, err = os.Create(filepath.Join(r.dir, "agent.log")); err != nil {
		return err
	}
	config := filepath.Join(r.dir, "agent.toml")
	if err := os.WriteFile(config, []byte(r.agentConfig()), 0o600); err != nil {
		return errors.Join(err, a.log.Close())
	}
	// It is to stay longer than what it was started for: it has no context.
	a.cmd = r.command(context.WithoutCancel(ctx), tsugiki, "agent", "--config", config,
		"--run-dir", filepath.Dir(r.socket()), "--state-dir", filepath.Join(r.dir, "agent"))
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	if err := r.host.start(a.cmd); err != nil {
		return errors.Join(fmt.Errorf("start agent: %w", err), a.log.Close())
	}
	go func() { a.ended <- a.cmd.Wait() }()
	r.agent = a
	return a.await(ctx, r.socket())
}

// agentConfig is as none, but that the agent leaves the machine's other containers alone,
// and hears the annotations of the rig's: their bundles are nobody's but the rig's.
func (r *Rig) agentConfig() string {
	return fmt.Sprintf(`[charge]
within = %q
[[allow]]
engines = ["other"]
names = ["*"]
annotations = ["egress", "ingress", "mode", "name"]
unknown_origin = true
destinations = ["0.0.0.0/0"]
addresses = [%q]
ports = ["1-65535"]
`, "/"+r.name(), hostAddr.Addr())
}

// EndAgent ends the agent, of which no container is left: what is measured next is to find the
// rig as it was. The next container that is grafted has another one.
func (r *Rig) EndAgent() {
	r.mu.Lock()
	a := r.agent
	r.agent = nil
	r.mu.Unlock()
	if a != nil {
		a.close()
	}
}

func (r *Rig) socket() string { return api.SocketIn(filepath.Join(r.dir, "run")) }

func findTsugiki(name string) (string, error) {
	if dir := os.Getenv(binEnv); dir != "" {
		return programs.FindIn(name, []string{dir})
	}
	return programs.Find(name)
}

// await waits until the agent answers.
func (a *agent) await(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, agentLimit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := api.Dial(socket).Containers(); err == nil {
			return nil
		}
		if err := a.check(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the agent: %w%s", ctx.Err(), a.said())
		}
	}
}

// check says whether the agent has ended, which it does not by itself.
func (a *agent) check() error {
	select {
	case err := <-a.ended:
		a.ended <- err
		if err == nil {
			err = errors.New("exit status 0")
		}
		return fmt.Errorf("the agent has ended: %w%s", err, a.said())
	default:
		return nil
	}
}

// said is the end of the agent's log, to append to an error.
func (a *agent) said() string {
	data, err := os.ReadFile(a.log.Name())
	if err != nil {
		return ""
	}
	return complaint(data)
}

// close waits for the end of an agent that was killed.
func (a *agent) close() {
	_ = a.cmd.Process.Kill()
	<-a.ended
	a.log.Close()
}
