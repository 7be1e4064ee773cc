package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tsugiki/tsugiki/api"
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
	// No other containers of the machine than ours.
	text := fmt.Sprintf("[charge]\nwithin = %q\n%s", n.name, v.config)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	agent := n.startDaemon(ctx, "", filepath.Join(n.bin, "tsugiki"), "agent",
		"--config", config, "--run-dir", n.runDir(), "--state-dir", filepath.Join(n.dir, "state"))
	if err := agent.Start(); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	n.agent = agent
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { end(errors.Join(errors.New("it has ended"), agent.Wait())) }()
	if err := n.client.AwaitReady(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, n.lastSaid())
	}
	return nil
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

// helperOf is how the agent charges for a process; nil if it does not.
func helperOf(all api.Charges, pid int) *api.ChargeAttached {
	for i := range all.Helpers {
		if all.Helpers[i].Helper.PID == pid {
			return &all.Helpers[i]
		}
	}
	return nil
}

// account is that of a container; nil if there is none.
func account(all api.Charges, id string) *api.Charged {
	for i := range all.Containers {
		if all.Containers[i].Container == id || all.Containers[i].ID == id {
			return &all.Containers[i]
		}
	}
	return nil
}

// awaitCharged waits until the agent, if there is one, knows containers and their
// loggers.
func (n *node) awaitCharged(ctx context.Context, boxes ...*container) error {
	if n.agent == nil {
		return nil
	}
	return n.await(ctx, "the agent to charge all containers", func() error {
		all, err := n.client.Charges()
		if err != nil {
			return err
		}
		for _, box := range boxes {
			if account(all, box.id) == nil {
				return fmt.Errorf("it has no account of container %s", box.id)
			}
			if box.logger != 0 && helperOf(all, box.logger) == nil {
				return fmt.Errorf("it does not know the logger of container %s", box.id)
			}
		}
		return nil
	})
}

// charged is what the agent says that a container's logger has spent.
func (c *container) charged() (time.Duration, error) {
	all, err := c.node.client.Charges()
	if err != nil {
		return 0, err
	}
	charged, logger := account(all, c.id), helperOf(all, c.logger)
	if charged == nil || logger == nil {
		return 0, fmt.Errorf("the agent does not charge container %s for its logger any more", c.id)
	}
	var sum time.Duration
	for _, b := range charged.Borrowed {
		if b.Source == logger.Source {
			sum += time.Duration(b.US) * time.Microsecond
		}
	}
	return sum, nil
}

// how is by what means the agent charges for a container's logger.
func (c *container) how() (string, error) {
	all, err := c.node.client.Charges()
	if err != nil {
		return "", err
	}
	charged, logger := account(all, c.id), helperOf(all, c.logger)
	if charged == nil || logger == nil {
		return "", fmt.Errorf("the agent does not charge container %s for its logger any more", c.id)
	}
	how := logger.By + ", " + charged.Mode
	if logger.Reason != "" {
		how += ": " + logger.Reason
	}
	return how, nil
}

// marked is what the agent says that shared daemons have spent for a container.
func (c *container) marked() (time.Duration, error) {
	all, err := c.node.client.Charges()
	if err != nil {
		return 0, err
	}
	charged := account(all, c.id)
	if charged == nil {
		return 0, fmt.Errorf("the agent does not charge container %s any more", c.id)
	}
	var sum time.Duration
	for _, b := range charged.Borrowed {
		if b.By == api.ByMarks {
			sum += time.Duration(b.US) * time.Microsecond
		}
	}
	return sum, nil
}
