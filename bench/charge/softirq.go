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
func (s *session) measureSoftirq(ctx context.Context, v variant, flooded bool) (results []sysbenchRun, err error) {
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

// sysbenches runs one in each container's namespace, all at once, and takes what they do
// when they have settled.
func (s *session) sysbenches(ctx context.Context) (results []sysbenchRun, err error) {
	var boxes []*container
	defer func() { err = errors.Join(err, stopAll(boxes)) }()
	logs := filepath.Join(s.node.dir, "logs")
	for i, ns := range s.node.top.Containers {
		id := fmt.Sprintf("softirq%d", i)
		box, err := s.node.start(ctx, containerOptions{
			id: id, quota: softirqQuota, log: "file://" + filepath.Join(logs, id),
			flags: []string{"--with-ns", "network:" + ns.Path()},
			args:  sysbenchArgs,
		})
		if box != nil {
			boxes = append(boxes, box)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.ready(ctx, boxes...); err != nil {
		return nil, err
	}
	var before []clocks
	var done []int // lines that sysbench has printed
	for _, box := range boxes {
		now, seconds, err := box.progress(logs)
		if err != nil {
			return nil, err
		}
		before, done = append(before, now), append(done, len(seconds))
	}
	if err := sleep(ctx, s.duration); err != nil {
		return nil, err
	}
	for i, box := range boxes {
		var now clocks
		var seconds []float64
		// On a busy machine the line of a second comes later than after a second.
		err := s.node.await(ctx, "sysbench of "+box.id, func() (err error) {
			now, seconds, err = box.progress(logs)
			if err == nil && (sum(seconds[done[i]:]) == 0 || now.container == before[i].container) {
				err = errNothing
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		results = append(results, sysbenchRun{
			share:  share(before[i].container, now.container, now.at.Sub(before[i].at)),
			events: mean(seconds[done[i]:]),
		})
	}
	return results, os.RemoveAll(logs)
}

// progress is what a container with sysbench has used, and its events of each second.
func (c *container) progress(logs string) (clocks, []float64, error) {
	now, err := c.read()
	if err != nil {
		return now, nil, err
	}
	data, err := os.ReadFile(filepath.Join(logs, c.id))
	if err != nil {
		return now, nil, err
	}
	seconds, err := eventsOfSeconds(data)
	return now, seconds, err
}

var eventsPerSecond = regexp.MustCompile(`eps: ([0-9.]+)`)

// eventsOfSeconds is what a sysbench has printed of each second.
func eventsOfSeconds(data []byte) ([]float64, error) {
	var events []float64
	for _, found := range eventsPerSecond.FindAllSubmatch(data, -1) {
		n, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return nil, fmt.Errorf("sysbench says %q: %w", found[0], err)
		}
		events = append(events, n)
	}
	return events, nil
}

func mean(list []float64) float64 { return sum(list) / float64(len(list)) }

func sum(list []float64) (total float64) {
	for _, n := range list {
		total += n
	}
	return total
}
