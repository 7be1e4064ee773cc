package drive

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	// serverLimit ends a server that nobody ended, in seconds.
	serverLimit = "7200"
	// InPrefix is before the names of tests whose server is in the mode.
	InPrefix    = "in_"
	firstInPort = 30000
)

// Driver runs tests.
type Driver struct {
	Runner *modes.Runner
	// Modes are those of the session. Each has ports of its own.
	Modes            []modes.Mode
	Duration, Warmup time.Duration // of one measurement
	Size             int           // bytes per message; 0: netdrive's own
	Lost             uint64        // datagrams so far

	dynamic, static string // netdrive
	inPort          uint16 // the last one of Inbound
}

// Build compiles netdrive into a folder, once more without shared libraries if a mode wants that.
func (d *Driver) Build(ctx context.Context, dir string) (err error) {
	if d.dynamic, err = netdrive.Build(ctx, dir); err != nil {
		return err
	}
	for _, m := range d.Modes {
		if m.IsStatic() && d.static == "" {
			if d.static, err = netdrive.BuildStatic(ctx, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// Netdrive is a command line of netdrive in a mode.
func (d *Driver) Netdrive(m modes.Mode, args ...string) []string {
	program := d.dynamic
	if m.IsStatic() {
		program = d.static
	}
	argv := append([]string{program}, args...)
	if d.Size > 0 {
		argv = append(argv, "-s", strconv.Itoa(d.Size))
	}
	return argv
}

// Times are netdrive's arguments for how long it measures.
func (d *Driver) Times() []string {
	return []string{"-t", Seconds(d.Duration), "-w", Seconds(d.Warmup)}
}

// server is where a test's client of one mode connects to.
type server struct {
	cmd  *testkit.Cmd
	port uint16
}

// Load is a test with a server for each mode, from port on: connections that modes leave in
// TIME_WAIT or in connection tracking must not meet.
func (d *Driver) Load(t Test, port uint16) modes.Load {
	servers := make(map[modes.Mode]server)
	start := func(ctx context.Context) error {
		for i, mode := range d.Modes {
			if d.skips(t, mode) {
				continue
			}
			port := port + uint16(i)
			argv := d.Netdrive(modes.Host, "server", t.Drives, d.Runner.ServerAddr(mode).String(),
				strconv.Itoa(int(port)), "-t", serverLimit)
			cmd, err := d.Runner.Serve(ctx, mode, t.Network, []uint16{port}, argv...)
			if err != nil {
				return err
			}
			servers[mode] = server{cmd, port}
		}
		return nil
	}
	run := func(ctx context.Context, mode modes.Mode, add Add) error {
		if d.skips(t, mode) {
			return nil
		}
		s, err := d.drive(ctx, t, mode, servers[mode])
		if err != nil {
			return err
		}
		d.Lost += s.Lost
		t.Record(s, add)
		return nil
	}
	return modes.Load{Name: t.Name, Pin: t.Pin, Start: start, Run: run}
}

func (d *Driver) skips(t Test, mode modes.Mode) bool {
	return t.Skips != nil && t.Skips(mode) || !mode.Carries(t.Network)
}

// drive runs a test's client in a mode.
func (d *Driver) drive(ctx context.Context, t Test, mode modes.Mode, srv server) (Sample, error) {
	before, err := modes.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return Sample{}, err
	}
	argv := d.Runner.Toward(mode, t.Network, srv.port, func(addr string) []string {
		if t.Client != nil {
			return t.Client(addr, srv.port)
		}
		return append(d.Netdrive(mode, "client", t.Drives, addr, strconv.Itoa(int(srv.port))), d.Times()...)
	})
	r, err := d.Runner.Run(ctx, mode, argv...)
	if err != nil {
		return Sample{}, err
	}
	after, err := modes.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return Sample{}, err
	}
	s, err := Decode(r.Stdout)
	if !mode.IsDocker() { // whose client's processes are not ours
		s.Processes = r.CPU + after - before
	}
	return s, err
}

// Inbound is a test in the other direction: the server is in the mode, with its port published at an
// address of the host, and the client is on the remote. Each measurement has a server and a port of its
// own: servers close first, so the port before has connections in TIME_WAIT.
func (d *Driver) Inbound(t Test) modes.Load {
	run := func(ctx context.Context, mode modes.Mode, add Add) error {
		if d.skips(t, mode) {
			return nil
		}
		d.inPort = max(firstInPort, d.inPort+1)
		end, err := d.Runner.Publish(ctx, mode, t.Network, d.inPort, d.Netdrive(mode, "server", t.Drives,
			d.Runner.ListenAddr(mode).String(), strconv.Itoa(int(d.inPort)), "-t", serverLimit)...)
		if err != nil {
			return err
		}
		defer end()
		if err := d.awaitServer(ctx, t, mode); err != nil {
			return fmt.Errorf("server in mode %s: %w", mode, err)
		}
		out, err := d.ask(ctx, t, mode, d.Times()...)
		if err != nil {
			return fmt.Errorf("server in mode %s: %w", mode, err)
		}
		s, err := Decode(out)
		if err != nil {
			return err
		}
		d.Lost += s.Lost
		t.Record(s, func(m measure.Metric, value float64) {
			if m.Name != "cpu_processes" { // the server's are not counted
				add(m, value)
			}
		})
		return nil
	}
	return modes.Load{Name: InPrefix + t.Name, Pin: t.Pin, Run: run}
}

// firstTry bounds the first try to reach a server: a process between accepts connections, and loses those
// that it made before the server listened. A try that had too little time is followed by one with twice as
// much, as others may have the machine.
const firstTry = 500 * time.Millisecond

// awaitServer waits until a server answers by the way that is measured.
func (d *Driver) awaitServer(ctx context.Context, t Test, mode modes.Mode) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for limit := firstTry; ; {
		try, end := context.WithTimeout(ctx, limit)
		_, err := d.ask(try, t, mode, "-t", "0.001")
		if try.Err() != nil {
			limit *= 2
		}
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
func (d *Driver) ask(ctx context.Context, t Test, mode modes.Mode, times ...string) ([]byte, error) {
	argv := d.Netdrive(modes.Host, "client", t.Drives, d.Runner.PublishedAddr(mode).String(), strconv.Itoa(int(d.inPort)))
	return d.Runner.Remote(ctx, mode, append(argv, times...)...).Output()
}
