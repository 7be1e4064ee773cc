package main

import (
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

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/roundtrip"
	"github.com/tsugiki/tsugiki/internal/sys/pidfd"
)

// restart measures how long packets do not pass when ovs-vswitchd of the DPU is killed and started
// again at once: until it is ready, as its start says, and from then until packets pass.
func (o *options) restart(ctx context.Context, f *fabric, report *measure.Report, progress io.Writer) error {
	const mode = "restart"
	report.Base = mode
	ways, err := f.ways(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"same node", "between nodes"} {
		for _, w := range ways {
			if w.test == name && w.mode == direct {
				if _, _, err := roundtrip.Measure(w.from, w.to, payload, warmUp); err != nil {
					return err
				}
			}
		}
	}
	report.Note("ovs-vswitchd is killed and started again at once; a datagram is sent each millisecond; local is to a pod of the node, remote to one of another node")
	for round := range o.rounds {
		for _, w := range ways {
			if w.mode != direct {
				continue
			}
			ready, back, err := w.killSwitch(ctx)
			if err != nil {
				return err
			}
			name := map[string]string{"same node": "local", "between nodes": "remote"}[w.test]
			add := func(metric string, d time.Duration) {
				report.Add(measure.Metric{Test: name, Name: metric, Unit: "ms"}, mode, float64(d)/float64(time.Millisecond))
			}
			add("longest silence", back.silence)
			if w.test == "between nodes" {
				add("start of ovs-vswitchd", ready)
				add("from then to the first answer", max(0, back.first-ready))
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
	}
	report.Finish([]string{mode})
	return nil
}

// silence is when answers came.
type silence struct {
	silence time.Duration // the longest between two answers
	first   time.Duration // from the kill to the first answer after the start
}

// killSwitch kills ovs-vswitchd of the way's first node and starts it again, while datagrams are sent.
func (w *way) killSwitch(ctx context.Context) (ready time.Duration, s silence, err error) {
	answers := make(chan time.Time, 1<<16)
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { done <- roundtrip.Stream(ctx, w.from, w.to, answers) }()
	select {
	case <-answers:
	case err := <-done:
		return 0, s, fmt.Errorf("no answer before: %w", err)
	}
	n := w.nodes[0]
	text, err := os.ReadFile(filepath.Join(n.dir, "ovs-vswitchd.pid"))
	if err != nil {
		return 0, s, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, s, err
	}
	began := time.Now()
	process, err := pidfd.Open(pid)
	if err != nil {
		return 0, s, err
	}
	defer process.Close()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return 0, s, err
	}
	pidfd.Await(process)
	if err := n.startVswitchd(ctx); err != nil {
		return 0, s, err
	}
	started := time.Now()
	last := began
	limit := time.After(patience)
	for last.Before(started) || s.first == 0 {
		select {
		case at := <-answers:
			s.silence = max(s.silence, at.Sub(last))
			if last = at; at.After(started) {
				s.first = at.Sub(began)
			}
		case err := <-done:
			return 0, s, errors.Join(errors.New("the stream has ended"), err)
		case <-limit:
			return 0, s, fmt.Errorf("no answer for %s after the restart", patience)
		}
	}
	stop()
	return started.Sub(began), s, <-done
}
