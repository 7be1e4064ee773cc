package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// period is that of all quotas.
const period = 100 * time.Millisecond

// container is one that ctr runs, with a logger of its own.
type container struct {
	node   *node
	id     string
	group  string
	cmd    *testkit.Cmd // ctr, which removes the container when it has ended
	said   bytes.Buffer
	init   *os.Process // its first program
	logger int         // 0: it has none
}

// containerOptions say what to run.
type containerOptions struct {
	id    string
	quota time.Duration
	log   string   // a URI; empty is that of the node's logger
	flags []string // more flags of ctr run
	args  []string
}

// start runs a container, and waits for its first program and its logger.
func (n *node) start(ctx context.Context, o containerOptions) (*container, error) {
	c := &container{node: n, id: o.id, group: n.containers() + "/" + o.id}
	pidFile := filepath.Join(n.dir, o.id+".pid")
	log := o.log
	if log == "" {
		log = n.logURI(o.id)
	}
	args := []string{
		"run", "--rm", "--rootfs", "--read-only", "--log-uri", log, "--pid-file", pidFile, "--cgroup", c.group,
		"--cpu-period", strconv.FormatInt(period.Microseconds(), 10), "--cpu-quota", strconv.FormatInt(o.quota.Microseconds(), 10),
	}
	args = append(append(args, o.flags...), n.rootfs(), o.id)
	// Its life is that of the rig: ctr removes what it has started only by itself.
	c.cmd = n.rig.Command(context.WithoutCancel(ctx), "ctr", append(args, o.args...)...)
	c.cmd.Stdout, c.cmd.Stderr = &c.said, &c.said
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start container %s: %w", o.id, err)
	}
	err := n.await(ctx, "container "+o.id, func() error {
		pid, err := readInt(pidFile)
		if err != nil {
			return err
		}
		if o.log == "" {
			if c.logger, err = findLogger(o.id); err != nil {
				return err
			}
		}
		// Until the runtime has exec'ed it, it is called runc:[2:INIT].
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || strings.HasPrefix(string(comm), "runc") {
			return fmt.Errorf("it is not started: %s, %w", comm, err)
		}
		c.init, err = os.FindProcess(pid)
		return err
	})
	return c, errors.Join(err, os.Remove(pidFile))
}

func readInt(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// findLogger finds the logging driver of a container: it is told which it is for.
func findLogger(id string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00CONTAINER_ID="+id+"\x00")) {
			return strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	return 0, fmt.Errorf("container %s has no logger", id)
}

// stop kills a container, and waits until nothing is left of it.
func (c *container) stop() error {
	if c.init != nil {
		if err := c.init.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	late := time.AfterFunc(startLimit, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.cmd.Wait() // it says that the container was killed, whether it was or not
	if _, err := os.Stat(filepath.Join(c.node.groups["cpu"], c.group)); err == nil {
		return fmt.Errorf("container %s was not removed: %s\n%s", c.id, c.said.String(), c.node.lastSaid())
	}
	return nil
}

// stopAll stops containers, all at once.
func stopAll(list []*container) error {
	ended := make(chan error)
	for _, c := range list {
		go func() { ended <- c.stop() }()
	}
	var errs []error
	for range list {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// clocks are CPU times, by the kernel's own accounts.
type clocks struct {
	at        time.Time
	container time.Duration // its own programs
	logger    time.Duration
	charged   time.Duration // what the agent says that it charges for the logger
}

// read reads the clocks of a container. A logger that was placed under the container's
// quota may be in its group's usage, and is taken out of it.
func (c *container) read() (clocks, error) {
	now := clocks{at: time.Now()}
	var err error
	if now.container, err = c.node.groups.clock(c.group).Elapsed(); err != nil {
		return now, err
	}
	if c.logger != 0 {
		if now.logger, err = processCPU(c.logger); err != nil {
			return now, err
		}
		inside, err := c.node.groups.contains(c.group, c.logger)
		if err != nil {
			return now, err
		}
		if inside {
			now.container -= now.logger
		}
		if c.node.agent != nil {
			now.charged, err = c.charged()
		}
		return now, err
	}
	return now, nil
}

// share is a part of a CPU in percent.
func share(before, after, of time.Duration) float64 { return 100 * float64(after-before) / float64(of) }

// sleep waits, unless the bench is to end.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
