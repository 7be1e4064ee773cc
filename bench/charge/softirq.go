package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// softirqQuota is that of each of the containers of figure softirq: together they
// leave the CPU a part for what the kernel receives.
const softirqQuota = 35 * time.Millisecond

// flooder is the argument that makes this program send so many datagrams each
// millisecond to an address.
const (
	flooder   = "flood"
	floodRate = 100
)

// flood is what does that.
func flood(args []string) int {
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "charge %s: want an address\n", flooder)
		return 2
	}
	conn, err := net.Dial("udp", args[0])
	if err != nil {
		fmt.Fprintf(os.Stderr, "charge %s: %v\n", flooder, err)
		return 1
	}
	data := make([]byte, 64)
	for next := time.Now(); ; next = next.Add(time.Millisecond) {
		time.Sleep(time.Until(next))
		for range floodRate {
			_, _ = conn.Write(data) // nobody listens there: some are refused
		}
	}
}

// softirq measures what two containers on one CPU can do while a flood arrives there
// for the first of them. The kernel receives it in the time of whoever runs.
func (s *session) softirq(ctx context.Context) error {
	if runtime.NumCPU() < 2 {
		return errors.New("needs two CPUs: one to send from")
	}
	for _, v := range shuffled(s, s.variants) {
		v.config += "softirq = true\n" // it costs something, and has to be asked for
		quiet, err := s.measureSoftirq(ctx, v, false)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		flooded, err := s.measureSoftirq(ctx, v, true)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		for i, role := range []string{"flooded", "other"} {
			test := "softirq " + role
			s.add(v, test, "events", "1/s", flooded[i].events)
			s.add(v, test, "events_to_quiet", "ratio", flooded[i].events/quiet[i].events)
			s.add(v, test, "share", "%", flooded[i].share)
		}
	}
	return nil
}

// measureSoftirq runs sysbench in both containers.
func (s *session) measureSoftirq(ctx context.Context, v variant, flooded bool) (results []result, err error) {
	err = s.node.in(ctx, v, func() error {
		for _, ns := range s.node.top.Containers {
			if err := s.node.receiveAt(ctx, ns); err != nil {
				return err
			}
		}
		if flooded {
			stop, err := s.node.flood(ctx)
			if err != nil {
				return err
			}
			defer stop()
		}
		results, err = s.sysbenches(ctx)
		return err
	})
	return results, err
}

// receiveAt has what arrives at a container's interface received by the CPU that is
// measured, as a network card's interrupts would.
func (n *node) receiveAt(ctx context.Context, ns *testkit.Namespace) error {
	script := `mount -t sysfs none /sys && echo "$1" >/sys/class/net/eth0/queues/rx-0/rps_cpus`
	cmd := ns.Command(ctx, "unshare", "--mount", "sh", "-c", script, "receive", strconv.FormatUint(1<<n.cpu, 16))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("receive at CPU %d (needs CONFIG_RPS): %w: %s", n.cpu, err, out)
	}
	return nil
}

// flood sends to the first container, from another CPU, until it is stopped.
func (n *node) flood(ctx context.Context) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	from := strconv.Itoa((n.cpu + 1) % runtime.NumCPU())
	to := net.JoinHostPort(testkit.ContainerAddr4(0).String(), "9")
	cmd := n.startDaemon(ctx, "", "taskset", "-c", from, self, flooder, to)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start flood: %w", err)
	}
	return func() {
		_ = cmd.Process.Kill() // or it has ended, and the figures show it
		_ = cmd.Wait()
	}, nil
}

// sysbenches runs one in each container's namespace, all at once. CPU time is read when
// they have settled, and before any of them ends.
func (s *session) sysbenches(ctx context.Context) (results []result, err error) {
	var boxes []*container
	defer func() { err = errors.Join(err, stopAll(boxes)) }()
	logs := filepath.Join(s.node.dir, "logs")
	for i, ns := range s.node.top.Containers {
		id := fmt.Sprintf("softirq%d", i)
		box, err := s.node.start(ctx, containerOptions{
			id: id, quota: softirqQuota, log: "file://" + filepath.Join(logs, id),
			flags: []string{"--with-ns", "network:" + ns.Path()},
			args:  sysbenchArgs(s.settle + s.duration + 3*time.Second),
		})
		if box != nil {
			boxes = append(boxes, box)
		}
		if err != nil {
			return nil, err
		}
	}
	var before []clocks
	if err := s.ready(ctx, boxes...); err != nil {
		return nil, err
	}
	for _, box := range boxes {
		now, err := box.read()
		if err != nil {
			return nil, err
		}
		before = append(before, now)
	}
	if err := sleep(ctx, s.duration); err != nil {
		return nil, err
	}
	for i, box := range boxes {
		now, err := box.read()
		if err != nil {
			return nil, err
		}
		results = append(results, result{share: share(before[i].container, now.container, now.at.Sub(before[i].at))})
	}
	for i, box := range boxes {
		if results[i].events, err = s.node.printedEvents(ctx, filepath.Join(logs, box.id)); err != nil {
			return nil, err
		}
	}
	return results, os.RemoveAll(logs)
}

var eventsPerSecond = regexp.MustCompile(`events per second: +([0-9.]+)`)

// printedEvents waits for what a sysbench prints when it ends.
func (n *node) printedEvents(ctx context.Context, log string) (events float64, err error) {
	err = n.await(ctx, "sysbench", func() error {
		data, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		found := eventsPerSecond.FindSubmatch(data)
		if found == nil {
			return fmt.Errorf("it has said %q", data)
		}
		events, err = strconv.ParseFloat(string(found[1]), 64)
		return err
	})
	return events, err
}
