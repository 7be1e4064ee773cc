package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// ownTest is one in which client and server are in one container. Mode host has them on the host's
// loopback, and mode nat on the loopback of a plain namespace.
type ownTest struct {
	drive.Test
	published bool // by a rule, at the host's address
}

var ownTests = []ownTest{
	{drive.Test{Name: "own_crr", Drives: "tcp_crr", Pin: modes.Anywhere, Record: drive.RecordConnections}, false},
	{drive.Test{Name: "published_crr", Drives: "tcp_crr", Pin: modes.Anywhere, Record: drive.RecordConnections}, true},
	{drive.Test{Name: "own_rr", Drives: "tcp_rr", Pin: modes.Together, Record: drive.RecordRoundTrips}, false},
	{drive.Test{Name: "own_udp_rr", Drives: "udp_rr", Pin: modes.Together, Record: drive.RecordRoundTrips}, false},
	{
		drive.Test{
			Name: "own_udp_rr_unconnected", Drives: "udp_rr_unconnected", Pin: modes.Together,
			Record: drive.RecordRoundTrips,
		}, false,
	},
}

// ownLoad is such a test. Each mode has a port of its own, as in drive.Load.
func (f *figure) ownLoad(t ownTest, port uint16) modes.Load {
	run := func(ctx context.Context, mode modes.Mode, add drive.Add) error {
		at := strconv.Itoa(int(port) + slices.Index(f.options.session.Modes, mode))
		addr, flags := "127.0.0.1", []string(nil)
		if t.published {
			addr, flags = "0.0.0.0", []string{"-i", fmt.Sprintf("0.0.0.0:%s=%s", at, testkit.HostAddr4)}
		}
		argv := append(f.driver.Netdrive(mode, "both", t.Drives, addr, at), f.driver.Times()...)
		r, err := f.driver.Runner.RunWith(ctx, mode, flags, argv...)
		if err != nil {
			return err
		}
		s, err := drive.Decode(r.Stdout)
		s.Processes = r.CPU
		f.driver.Lost += s.Lost
		t.Record(s, add)
		return err
	}
	return modes.Load{Name: t.Name, Pin: t.Pin, Run: run}
}
