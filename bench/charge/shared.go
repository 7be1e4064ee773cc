package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// sharedQuota is that of each of the containers of figure shared, and sharedCommands
// what they run: they keep the daemon busy to a different degree.
const sharedQuota = 25 * time.Millisecond

var sharedCommands = []command{commands[0], commands[1]}

// collection is a running collector.
type collection struct {
	cmd    *testkit.Cmd
	ask    io.Writer
	answer *json.Decoder
}

// shared measures two containers with one daemon that logs for both.
func (s *session) shared(ctx context.Context) error {
	for _, v := range shuffled(s, s.variants) {
		if err := s.node.in(ctx, v, func() error { return s.measureShared(ctx, v) }); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

func (s *session) measureShared(ctx context.Context, v variant) (err error) {
	var ids []string
	for _, c := range sharedCommands {
		ids = append(ids, "shared-"+c.name)
	}
	daemon, err := s.node.collect(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, daemon.stop(), s.node.do(ctx, "rm", "-r", sharedFolder)) }()
	var boxes []*container
	defer func() { err = errors.Join(err, stopAll(boxes)) }()
	for i, id := range ids {
		box, err := s.node.start(ctx, containerOptions{
			id: id, quota: sharedQuota, log: "file://" + sharedFolder + "/" + id + "/" + id + "-stdout",
			args: []string{"/bin/sh", "-c", sharedCommands[i].shell},
		})
		if box != nil {
			boxes = append(boxes, box)
		}
		if err != nil {
			return err
		}
	}
	if v.agent {
		_, err := s.node.client.AttachHelper(api.ChargeHelper{
			Helper: api.HelperProcess{PID: daemon.cmd.Process.Pid}, Shared: true, Source: collector,
		})
		if err != nil {
			return err
		}
	}
	return s.compareShared(ctx, v, boxes, daemon)
}

// parts are the CPU times of a container and of what works for it; marked is what the
// agent says that the daemon's part is.
type parts struct{ own, shim, daemon, marked time.Duration }

// compareShared measures what each container takes by itself, by its shim, and by its
// part of the daemon: what that did for it, and in proportion what it did for nobody.
func (s *session) compareShared(ctx context.Context, v variant, boxes []*container, daemon *collection) error {
	if err := s.ready(ctx, boxes...); err != nil {
		return err
	}
	started := time.Now()
	before, all, err := readParts(boxes, daemon)
	if err == nil {
		err = sleep(ctx, s.duration)
	}
	if err != nil {
		return err
	}
	var after []parts
	var allAfter time.Duration
	err = s.node.await(ctx, "work of all containers", func() (err error) {
		if after, allAfter, err = readParts(boxes, daemon); err != nil {
			return err
		}
		for i := range boxes {
			if after[i].own <= before[i].own || after[i].daemon <= before[i].daemon {
				return errNothing
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	wall := time.Since(started)
	var known time.Duration
	for i := range boxes {
		known += after[i].daemon - before[i].daemon
	}
	for i, c := range sharedCommands {
		b, a := before[i], after[i]
		test := "shared " + c.name
		// What it does for nobody in particular is done for all, as far as it works for each.
		rest := float64(allAfter-all-known) * float64(a.daemon-b.daemon) / float64(max(known, 1))
		a.daemon += time.Duration(rest)
		s.add(v, test, "container", "%", share(b.own, a.own, wall))
		s.add(v, test, "shim", "%", share(b.shim, a.shim, wall))
		s.add(v, test, "daemon's part", "%", share(b.daemon, a.daemon, wall))
		if v.agent {
			s.add(v, test, "daemon's part, charged", "%", share(b.marked, a.marked, wall))
		}
		s.add(v, test, "sum", "%", share(b.own+b.shim+b.daemon, a.own+a.shim+a.daemon, wall))
	}
	s.add(v, "shared", "daemon", "%", share(all, allAfter, wall))
	return nil
}

func readParts(boxes []*container, daemon *collection) (list []parts, all time.Duration, err error) {
	worked, err := daemon.worked()
	if err != nil {
		return nil, 0, err
	}
	if all, err = processCPU(daemon.cmd.Process.Pid); err != nil {
		return nil, 0, err
	}
	for _, box := range boxes {
		now, err := box.read()
		if err != nil {
			return nil, 0, err
		}
		stat, err := proc.ReadStat(box.init.Pid)
		if err != nil {
			return nil, 0, err
		}
		shim := stat.Parent
		spent, err := processCPU(shim)
		if err != nil {
			return nil, 0, err
		}
		// A shim that was placed under the quota is in the group's usage where the
		// controllers of CPU time and quota are one.
		inside, err := box.node.groups.contains(box.group, shim)
		if err != nil {
			return nil, 0, err
		}
		if inside {
			now.container -= spent
		}
		p := parts{own: now.container, shim: spent, daemon: time.Duration(worked[box.id])}
		if box.node.agent != nil {
			if p.marked, err = box.marked(); err != nil {
				return nil, 0, err
			}
		}
		list = append(list, p)
	}
	return list, all, nil
}

// sharedFolder is where the collector has its files, in the rig.
const sharedFolder = logFolder + "/shared"

// collect starts a collector.
func (n *node) collect(ctx context.Context, ids []string) (*collection, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := n.startDaemon(ctx, n.daemons(), self, append([]string{collector, sharedFolder}, ids...)...)
	cmd.Stdout = nil
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start collector: %w", err)
	}
	c := &collection{cmd, stdin, json.NewDecoder(bufio.NewReader(stdout))}
	// It answers once unasked, when it is ready.
	if err := c.answer.Decode(&map[string]int64{}); err != nil {
		return nil, errors.Join(fmt.Errorf("start collector: %w\n%s", err, n.lastSaid()), c.stop())
	}
	return c, nil
}

// worked is what the collector says it has worked for each container, in nanoseconds.
func (c *collection) worked() (map[string]int64, error) {
	if _, err := io.WriteString(c.ask, "\n"); err != nil {
		return nil, fmt.Errorf("ask the collector: %w", err)
	}
	worked := make(map[string]int64)
	if err := c.answer.Decode(&worked); err != nil {
		return nil, fmt.Errorf("ask the collector: %w", err)
	}
	return worked, nil
}

func (c *collection) stop() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("stop the collector: %w", err)
	}
	_ = c.cmd.Wait() // killed
	return nil
}
