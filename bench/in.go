package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// # Inbound
//
// The server is in the mode, with its port published at the host's address, and the client is on the
// remote. Each measurement has a server and a port of its own: servers close first, so the port
// before has connections in TIME_WAIT.

const (
	// inPrefix is before the names of tests in this direction.
	inPrefix    = "in_"
	firstInPort = 30000
)

// outbound are the tests that bench runs by itself: all but the inbound ones.
func outbound() []string {
	return slices.DeleteFunc(testNames(), func(name string) bool { return strings.HasPrefix(name, inPrefix) })
}

// inboundNames are the tests of netdrive over TCP.
func inboundNames() []string {
	var names []string
	for _, t := range tests {
		if t.network == "tcp" && t.goAtOnce == 0 {
			names = append(names, inPrefix+t.name)
		}
	}
	return names
}

// inbound is a test of netdrive in the other direction.
func (f *figure) inbound(name string) modes.Load {
	t := tests[slices.IndexFunc(tests, func(t test) bool { return t.name == name })]
	run := func(ctx context.Context, mode modes.Mode, add addFunc) error {
		f.inPort = max(firstInPort, f.inPort+1)
		end, err := f.runner.Publish(ctx, mode, f.inPort, f.sized(f.driver, "server", t.name, "0.0.0.0", strconv.Itoa(int(f.inPort)), "-t", serverLimit)...)
		if err != nil {
			return err
		}
		defer end()
		if err := f.awaitServer(ctx, t); err != nil {
			return fmt.Errorf("server in mode %s: %w", mode, err)
		}
		out, err := f.ask(ctx, t, f.options.session.Duration, f.options.warmup)
		if err != nil {
			return fmt.Errorf("server in mode %s: %w", mode, err)
		}
		s, err := decode(out)
		if err != nil {
			return err
		}
		t.record(s, func(m measure.Metric, value float64) {
			if m.Name != "cpu_processes" { // the server's are not counted
				add(m, value)
			}
		})
		return nil
	}
	return modes.Load{Name: inPrefix + t.name, Pin: t.pin, Run: run}
}

// tryLimit bounds one try to reach a server: a process between accepts connections, and loses those
// that it made before the server listened.
const tryLimit = 500 * time.Millisecond

// awaitServer waits until a server answers by the way that is measured.
func (f *figure) awaitServer(ctx context.Context, t test) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		try, end := context.WithTimeout(ctx, tryLimit)
		_, err := f.ask(try, t, time.Millisecond, 0)
		end()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ask runs netdrive's client on the remote.
func (f *figure) ask(ctx context.Context, t test, duration, warmup time.Duration) ([]byte, error) {
	return f.runner.Remote(ctx, f.sized(f.driver, "client", t.name, testkit.HostAddr4.String(), strconv.Itoa(int(f.inPort)),
		"-t", seconds(duration), "-w", seconds(warmup))...).Output()
}
