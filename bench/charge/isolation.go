package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/internal/bundle"
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

// sysbench runs the benchmark in a container that runc makes, until it has been looked at.
func (n *node) sysbench(ctx context.Context, quota, d time.Duration) (r sysbenchRun, err error) {
	const id = "bench"
	dir := filepath.Join(n.dir, id)
	if err := n.bundle(dir, id, quota, sysbenchArgs); err != nil {
		return r, err
	}
	cmd := n.rig.Command(ctx, "runc", "run", "--bundle", dir, id)
	cmd.Stderr = n.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("start sysbench: %w", err)
	}
	defer func() {
		kill := n.do(ctx, "runc", "kill", id, "KILL")
		if kill != nil {
			_ = cmd.Process.Kill() // or it has ended
		}
		_ = cmd.Wait() // it says that sysbench was killed
		err = errors.Join(err, kill, os.RemoveAll(dir))
	}()
	return n.follow(stdout, n.containers()+"/"+id, d)
}

// sysbenchArgs run the benchmark until it is killed. It prints its events of each second.
var sysbenchArgs = []string{
	"/bin/sysbench", "cpu", "--threads=1", "--cpu-max-prime=10000", "--time=0", "--report-interval=1", "run",
}

// follow reads what sysbench prints, and the clock of its group, for so long at least, and until
// both have counted something.
func (n *node) follow(stdout io.Reader, group string, d time.Duration) (r sysbenchRun, err error) {
	clock, lines := n.groups.clock(group), bufio.NewScanner(stdout)
	var began time.Time
	var before time.Duration
	var seconds []float64
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "Threads started!" {
			if err := n.introduce(group); err != nil {
				return r, err
			}
			began = time.Now()
			if before, err = clock.Elapsed(); err != nil {
				return r, err
			}
		}
		more, err := eventsOfSeconds(lines.Bytes())
		if err != nil {
			return r, err
		}
		seconds = append(seconds, more...)
		if len(seconds) == 0 || time.Since(began) < d {
			continue
		}
		after, err := clock.Elapsed()
		if err != nil {
			return r, err
		}
		r = sysbenchRun{events: mean(seconds), share: share(before, after, time.Since(began))}
		if r.events > 0 && r.share > 0 {
			return r, nil
		}
	}
	return r, errors.Join(lines.Err(), fmt.Errorf("sysbench measured nothing\n%s", n.lastSaid()))
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

// bundle makes a bundle whose file system is that of all containers.
func (n *node) bundle(dir, id string, quota time.Duration, args []string) error {
	spec, err := bundle.Spec(n.rootfs(), args...)
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return err
	}
	spec.Root.Readonly = true
	spec.Linux.CgroupsPath = n.containers() + "/" + id
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	shares, q, p := uint64(1024), quota.Microseconds(), uint64(period.Microseconds())
	spec.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &shares, Quota: &q, Period: &p}
	return bundle.Write(dir, spec)
}
