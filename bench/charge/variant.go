package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// variant is a way to deal with what others spend for containers.
type variant struct {
	name   string
	agent  bool
	config string // of the agent, in [charge]
}

// The variants. Off is a machine without the agent.
var variants = []variant{
	{name: "off"},
	{name: "placed", agent: true},
	{name: "quota", agent: true, config: "placement = false\n"},
}

// enter starts the agent of a variant, if it has one. The agent is not on the CPU of
// the containers, where there is another.
func (n *node) enter(ctx context.Context, v variant) error {
	if !v.agent {
		return nil
	}
	config := filepath.Join(n.dir, "agent.toml")
	if err := os.WriteFile(config, []byte("[charge]\n"+v.config), 0o600); err != nil {
		return err
	}
	agent := n.startDaemon(ctx, "", filepath.Join(n.bin, "tsugiki"), "agent",
		"--config", config, "--run-dir", n.runDir(), "--state-dir", filepath.Join(n.dir, "state"))
	if err := agent.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	n.agent = agent
	return n.await(ctx, "the agent", func() error {
		_, err := n.client.Charges()
		return err
	})
}

// leave ends the agent.
func (n *node) leave() error {
	if n.agent == nil {
		return nil
	}
	agent := n.agent
	n.agent = nil
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	late := time.AfterFunc(startLimit, func() { _ = agent.Process.Kill() })
	defer late.Stop()
	if err := agent.Wait(); err != nil {
		return fmt.Errorf("the agent ended: %w\n%s", err, n.lastSaid())
	}
	return nil
}

// in does something with a variant's agent.
func (n *node) in(ctx context.Context, v variant, do func() error) error {
	err := n.enter(ctx, v)
	if err == nil {
		err = do()
	}
	return errors.Join(err, n.leave())
}

// charged is all that the agent says others have spent for a container, but for its
// shim: what is compared is the logger.
func (n *node) charged(id string) (time.Duration, error) {
	all, err := n.client.Charges()
	if err != nil {
		return 0, err
	}
	for _, c := range all.Containers {
		if c.Container != id && c.ID != id {
			continue
		}
		var sum time.Duration
		for _, b := range c.Borrowed {
			if b.Source == "logger" {
				sum += time.Duration(b.US) * time.Microsecond
			}
		}
		return sum, nil
	}
	return 0, fmt.Errorf("the agent charges no container %s", id)
}
