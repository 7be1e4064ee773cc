package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// baseline is a neighbour that takes what it is given, and has nothing done for it.
var baseline = command{name: "dd", paper: "dd"}

const burn = "dd if=/dev/zero of=/dev/null"

func isolationTest(c command, n int) string { return fmt.Sprintf("isolation %s N=%d", c.name, n) }

// isolation measures what a container loses by its neighbours' loggers (tables 3, 4,
// 8 and 9): it runs sysbench beside n-1 others, each with a quota of 1/n of the CPU.
func (s *session) isolation(ctx context.Context) error {
	for _, n := range s.counts {
		list := append([]command{baseline}, s.commands...)
		if n == 1 { // there is nobody to run a command
			list = list[:1]
		}
		for _, v := range shuffled(s, s.variants) {
			results := make(map[string]sysbenchRun)
			for _, c := range shuffled(s, list) {
				err := s.node.in(ctx, v, func() (err error) {
					results[c.name], err = s.measureIsolation(ctx, c, n)
					return err
				})
				if err != nil {
					return fmt.Errorf("%s, %s: %w", isolationTest(c, n), v.name, err)
				}
			}
			base := results[baseline.name]
			for _, c := range list {
				r, test := results[c.name], isolationTest(c, n)
				s.add(v, test, "events", "1/s", r.events)
				s.add(v, test, "share", "%", r.share)
				if c.name != baseline.name {
					s.add(v, test, "events_to_dd", "ratio", r.events/base.events)
					s.add(v, test, "share_to_dd", "ratio", r.share/base.share)
				}
			}
		}
	}
	return nil
}

// sysbenchRun is what the benchmark's container got.
type sysbenchRun struct {
	events float64 // per second, as sysbench says
	share  float64 // of the CPU
}

func (s *session) measureIsolation(ctx context.Context, c command, n int) (r sysbenchRun, err error) {
	shell := "exec " + burn
	if c.name != baseline.name {
		shell = burn + " & " + c.shell
	}
	quota := (period / time.Duration(n)).Truncate(time.Microsecond)
	var noisy []*container
	defer func() { err = errors.Join(err, stopAll(noisy)) }()
	for i := range n - 1 {
		box, err := s.node.start(ctx, containerOptions{
			id: fmt.Sprintf("noisy%d", i), quota: quota, args: []string{"/bin/sh", "-c", shell},
		})
		if box != nil {
			noisy = append(noisy, box)
		}
		if err != nil {
			return r, err
		}
	}
	if err := s.ready(ctx, noisy...); err != nil {
		return r, err
	}
	return s.node.sysbench(ctx, quota, s.duration)
}

// sysbench runs the benchmark in a container that runc makes, a second longer than it
// is looked at.
func (n *node) sysbench(ctx context.Context, quota, d time.Duration) (r sysbenchRun, err error) {
	const id = "bench"
	bundle := filepath.Join(n.dir, id)
	if err := n.bundle(ctx, bundle, id, quota, sysbenchArgs(d+time.Second)); err != nil {
		return r, err
	}
	cmd := n.rig.Command(ctx, "runc", "run", "--bundle", bundle, id)
	cmd.Stderr = n.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("start sysbench: %w", err)
	}
	defer func() { err = errors.Join(err, cmd.Wait(), os.RemoveAll(bundle)) }()
	return n.follow(stdout, n.containers()+"/"+id, d)
}

func sysbenchArgs(d time.Duration) []string {
	return []string{
		"/usr/bin/sysbench", "cpu", "--threads=1", "--cpu-max-prime=10000",
		"--time=" + strconv.Itoa(int(d.Seconds())), "run",
	}
}

// follow reads what sysbench prints, and the clock of its group while it runs.
func (n *node) follow(stdout io.Reader, group string, d time.Duration) (r sysbenchRun, err error) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		switch key {
		case "Threads started!":
			if err := n.introduce(group); err != nil {
				return r, err
			}
			if r.share, err = n.observeShare(group, d); err != nil {
				return r, err
			}
		case "events per second":
			if r.events, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
				return r, fmt.Errorf("sysbench says %q: %w", lines.Text(), err)
			}
		}
	}
	if r.events <= 0 || r.share <= 0 {
		return r, errors.Join(lines.Err(), fmt.Errorf("sysbench measured nothing\n%s", n.lastSaid()))
	}
	return r, lines.Err()
}

// introduce has the agent, if there is one, know a container that runc has made by
// itself: a container of an engine is found, and may then use later what others' debts
// kept from it. It is charged as little as can be.
func (n *node) introduce(group string) error {
	if n.agent == nil {
		return nil
	}
	return n.client.Charge(group, "bench", time.Microsecond)
}

// observeShare is what a group takes of the CPU from now on.
func (n *node) observeShare(group string, d time.Duration) (float64, error) {
	started := time.Now()
	before, err := n.groups.usage(group)
	if err != nil {
		return 0, err
	}
	time.Sleep(d)
	after, err := n.groups.usage(group)
	return share(before, after, time.Since(started)), err
}

// bundle makes what runc runs, from what it proposes.
func (n *node) bundle(ctx context.Context, dir, id string, quota time.Duration, args []string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := n.do(ctx, "runc", "spec", "--bundle", dir); err != nil {
		return err
	}
	file := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	spec.Root = &specs.Root{Path: n.rootfs(), Readonly: true}
	spec.Process.Terminal, spec.Process.Args = false, args
	spec.Linux.CgroupsPath = n.containers() + "/" + id
	shares, q, p := uint64(1024), quota.Microseconds(), uint64(period.Microseconds())
	spec.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &shares, Quota: &q, Period: &p}
	if data, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
