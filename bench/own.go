package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ownTest is one in which client and server are in one container. Mode host has them on the host's
// loopback, and mode nat on the loopback of a plain namespace.
type ownTest struct {
	test
	drives    string // netdrive's name of it
	published bool   // by a rule, at the host's address
}

var ownTests = []ownTest{
	{test{"own_crr", "tcp", modes.Anywhere, recordConnections, 0}, "tcp_crr", false},
	{test{"published_crr", "tcp", modes.Anywhere, recordConnections, 0}, "tcp_crr", true},
	{test{"own_rr", "tcp", modes.Together, recordRoundTrips, 0}, "tcp_rr", false},
	{test{"own_udp_rr", "udp", modes.Together, recordRoundTrips, 0}, "udp_rr", false},
	{test{"own_udp_rr_unconnected", "udp", modes.Together, recordRoundTrips, 0}, "udp_rr_unconnected", false},
}

// ownLoad is such a test. Each mode has a port of its own, as in load.
func (f *figure) ownLoad(t ownTest, port uint16) modes.Load {
	run := func(ctx context.Context, mode modes.Mode, add addFunc) error {
		at := strconv.Itoa(int(port) + slices.Index(f.options.session.Modes, mode))
		addr, flags := "127.0.0.1", []string(nil)
		if t.published {
			addr, flags = "0.0.0.0", []string{"-i", fmt.Sprintf("0.0.0.0:%s=%s", at, testkit.HostAddr4)}
		}
		r, err := f.runner.RunWith(ctx, mode, flags, f.driver, "both", t.drives, addr, at,
			"-t", seconds(f.options.session.Duration), "-w", seconds(f.options.warmup))
		if err != nil {
			return err
		}
		s, err := decode(r.Stdout)
		s.processes = r.CPU
		f.lost += s.Lost
		t.record(s, add)
		return err
	}
	return modes.Load{Name: t.name, Pin: t.pin, Run: run}
}
