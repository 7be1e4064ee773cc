package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// accuracyTest names the measurement of a command and a quota.
func accuracyTest(c command, quota time.Duration) string {
	return fmt.Sprintf("accuracy %s %v", c.name, quota)
}

// accuracy measures what one container and its logger take (tables 2, 5, 6 and 7).
func (s *session) accuracy(ctx context.Context) error {
	for _, quota := range s.quotas {
		for _, c := range s.commands {
			for _, v := range shuffled(s, s.variants) {
				err := s.node.in(ctx, v, func() error { return s.measureAccuracy(ctx, v, c, quota) })
				if err != nil {
					return fmt.Errorf("%s, %s: %w", accuracyTest(c, quota), v.name, err)
				}
			}
		}
	}
	return nil
}

func (s *session) measureAccuracy(ctx context.Context, v variant, c command, quota time.Duration) error {
	box, err := s.node.start(ctx, containerOptions{id: "noisy", quota: quota, args: []string{"/bin/sh", "-c", c.shell}})
	if err != nil {
		return err
	}
	before, after, err := s.observe(ctx, box)
	if err == nil && v.agent {
		err = s.saidHow(v, box)
	}
	if err := errors.Join(err, box.stop()); err != nil {
		return err
	}
	wall := after.at.Sub(before.at)
	logger := share(before.logger, after.logger, wall)
	container := share(before.container, after.container, wall)
	test := accuracyTest(c, quota)
	s.add(v, test, "logger", "%", logger)
	s.add(v, test, "container", "%", container)
	s.add(v, test, "sum", "%", logger+container)
	if v.agent {
		charged := share(before.charged, after.charged, wall)
		s.add(v, test, "charged", "%", charged)
		s.add(v, test, "charged_sum", "%", charged+container)
		s.add(v, test, "uncharged", "%", logger-charged)
	}
	return nil
}

// observe reads a container's clocks at both ends of a measurement. It ends when the container and
// its logger have run.
func (s *session) observe(ctx context.Context, c *container) (before, after clocks, err error) {
	if err = s.ready(ctx, c); err != nil {
		return before, after, err
	}
	if before, err = c.read(); err != nil {
		return before, after, err
	}
	if err = sleep(ctx, s.duration); err != nil {
		return before, after, err
	}
	err = s.node.await(ctx, "work of container "+c.id, func() (err error) {
		after, err = c.read()
		after.at = time.Now()
		if err == nil && (after.container <= before.container || after.logger <= before.logger) {
			err = errNothing
		}
		return err
	})
	return before, after, err
}

var errNothing = errors.New("it has done nothing since the measurement began")

// ready waits until the agent, if there is one, charges containers, and then for things
// to settle.
func (s *session) ready(ctx context.Context, boxes ...*container) error {
	if err := s.node.awaitCharged(ctx, boxes...); err != nil {
		return err
	}
	return sleep(ctx, s.settle)
}

// saidHow notes, once, by what means a variant charges.
func (s *session) saidHow(v variant, box *container) error {
	how, err := box.how()
	if err == nil && !slices.Contains(s.hows, v.name+": "+how) {
		s.hows = append(s.hows, v.name+": "+how)
	}
	return err
}
