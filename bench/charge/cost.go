package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
)

// caller is the argument that makes this program read a byte of /dev/zero callsAtOnce
// times for each line of standard input, and print how many nanoseconds each took.
const (
	caller      = "call"
	callsAtOnce = 200_000
)

// call is what does that.
func call(args []string) int {
	zero, err := os.Open("/dev/zero")
	if err != nil || len(args) > 0 {
		fmt.Fprintf(os.Stderr, "charge %s: %v, %q\n", caller, err, args)
		return 1
	}
	fd, buffer := int(zero.Fd()), make([]byte, 1)
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		before := threadCPU()
		for range callsAtOnce {
			if _, err := unix.Read(fd, buffer); err != nil {
				fmt.Fprintf(os.Stderr, "charge %s: %v\n", caller, err)
				return 1
			}
		}
		fmt.Println(float64(threadCPU()-before) / callsAtOnce)
	}
	return 0
}

// cost measures what the agent itself takes with many containers, all of whose loggers
// are busy, and what a system call costs that it has marked.
func (s *session) cost(ctx context.Context) error {
	for _, v := range shuffled(s, s.variants) {
		if !v.agent {
			continue
		}
		err := s.node.in(ctx, v, func() error {
			return errors.Join(s.measureMany(ctx, v), s.measureCalls(ctx, v))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

// measureMany starts containers that wait, so that one does not hold up the start of the
// next, and then all write.
func (s *session) measureMany(ctx context.Context, v variant) (err error) {
	gate := filepath.Join(s.node.dir, "gate")
	if err := os.Mkdir(gate, 0o755); err != nil {
		return err
	}
	pipe := filepath.Join(gate, "open") // who opens it to read waits for one that writes
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return err
	}
	var boxes []*container
	defer func() { err = errors.Join(err, stopAll(boxes), os.RemoveAll(gate)) }()
	for i := range s.many {
		box, err := s.node.start(ctx, containerOptions{
			id: fmt.Sprintf("many%d", i), quota: period,
			flags: []string{"--mount", "type=bind,src=" + gate + ",dst=/tmp,options=rbind:ro"},
			args:  []string{"/bin/sh", "-c", "read never </tmp/open; while true; do echo 1; done"},
		})
		if box != nil {
			boxes = append(boxes, box)
		}
		if err != nil {
			return err
		}
	}
	if err := s.node.awaitCharged(ctx, boxes...); err != nil {
		return err
	}
	if err := s.lower(ctx, boxes); err != nil {
		return err
	}
	pid := s.node.agent.Process.Pid
	idle, err := s.agentShare(ctx, pid)
	if err != nil {
		return err
	}
	if err := os.WriteFile(pipe, nil, 0); err != nil {
		return err
	}
	test := fmt.Sprintf("cost %d containers", s.many)
	s.add(v, test, "agent, idle containers", "%", idle)
	return s.measureBusy(ctx, v, test, boxes)
}

// busyWindows is how often the agent is measured while all containers write: some of them are
// held then, at different times.
const busyWindows = 5

// measureBusy measures what the agent takes while all containers are over their quotas, and
// whether they get their quotas: together with their loggers and shims, by the kernel's clocks.
func (s *session) measureBusy(ctx context.Context, v variant, test string, boxes []*container) error {
	if err := sleep(ctx, 2*s.settle); err != nil { // until all have owed something once
		return err
	}
	for range busyWindows {
		before, err := usageOf(boxes)
		if err != nil {
			return err
		}
		started := time.Now()
		busy, err := s.agentShare(ctx, s.node.agent.Process.Pid)
		if err != nil {
			return err
		}
		after, err := usageOf(boxes)
		if err != nil {
			return err
		}
		quotas := time.Since(started) * time.Duration(len(boxes)) * s.manyQuota() / period
		s.add(v, test, "agent, all busy", "%", busy)
		s.add(v, test, "containers and helpers, of their quotas", "%", share(before, after, quotas))
	}
	return nil
}

// usageOf is what containers, their loggers and their shims have used.
func usageOf(boxes []*container) (sum time.Duration, err error) {
	for _, box := range boxes {
		own, err := box.node.groups.clock(box.group).Elapsed()
		if err != nil {
			return 0, err
		}
		sum += own
		stat, err := proc.ReadStat(box.init.Pid)
		if err != nil {
			return 0, err
		}
		for _, pid := range []int{box.logger, stat.Parent} {
			inside, err := box.node.groups.contains(box.group, pid)
			if err != nil {
				return 0, err
			}
			if inside {
				continue
			}
			helper, err := processCPU(pid)
			if err != nil {
				return 0, err
			}
			sum += helper
		}
	}
	return sum, nil
}

// lower gives containers their part of a CPU, when they have paid for their start: of that
// part it would take a minute.
func (s *session) lower(ctx context.Context, boxes []*container) error {
	err := s.node.await(ctx, "all containers to have paid for their start", func() error {
		if err := sleep(ctx, s.settle); err != nil { // asking is work, too
			return err
		}
		all, err := s.node.client.Charges()
		if err != nil {
			return err
		}
		for _, box := range boxes {
			if c := account(all, box.id); c == nil || c.DebtUS > time.Millisecond.Microseconds() {
				return fmt.Errorf("container %s has not", box.id)
			}
		}
		return nil
	})
	for _, box := range boxes {
		err = errors.Join(err, s.node.groups.limit(box.group, s.manyQuota()))
	}
	return err
}

// manyQuota is that of each of many containers: its part of a CPU, or the least that there is.
func (s *session) manyQuota() time.Duration {
	return max(period/time.Duration(s.many), time.Millisecond)
}

// agentShare is what the agent takes of a CPU.
func (s *session) agentShare(ctx context.Context, pid int) (float64, error) {
	if err := sleep(ctx, s.settle); err != nil {
		return 0, err
	}
	started := time.Now()
	before, err := processCPU(pid)
	if err == nil {
		err = sleep(ctx, s.duration)
	}
	if err != nil {
		return 0, err
	}
	wall := time.Since(started)
	after, err := processCPU(pid)
	return share(before, after, wall), err
}

// callRounds is how often each kind of system call is measured, in turns.
const callRounds = 5

// measureCalls measures one system call of a process while no process is divided among
// containers, while another is, and while it is itself.
func (s *session) measureCalls(ctx context.Context, v variant) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var ask [2]io.Writer
	var answers *bufio.Reader
	var pids [2]int
	for i := range pids { // the first is measured
		cmd := s.node.startDaemon(ctx, "", self, caller)
		cmd.Stdout = nil
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if ask[i], err = cmd.StdinPipe(); err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			_ = cmd.Process.Kill() // it would end with its input, too
			_ = cmd.Wait()
		}()
		pids[i] = cmd.Process.Pid
		if i == 0 {
			answers = bufio.NewReader(stdout)
		}
	}
	for range callRounds {
		for _, state := range []struct {
			name string
			pid  int // of who is divided
		}{{"nobody is divided", 0}, {"another is divided", pids[1]}, {"it is divided", pids[0]}} {
			took, err := s.timeCall(state.pid, ask[0], answers)
			if err != nil {
				return err
			}
			s.add(v, "cost read(2)", state.name, "ns", took)
		}
	}
	return nil
}

// timeCall measures a system call while a process is divided.
func (s *session) timeCall(divided int, ask io.Writer, answers *bufio.Reader) (took float64, err error) {
	if divided != 0 {
		helper, err := s.node.client.AttachHelper(api.ChargeHelper{
			Helper: api.HelperProcess{PID: divided}, Shared: true, Source: caller,
		})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, s.node.client.DetachHelper(helper.ID)) }()
	}
	if _, err := io.WriteString(ask, "\n"); err != nil {
		return 0, err
	}
	line, err := answers.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}
