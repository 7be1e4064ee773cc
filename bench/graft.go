package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	// firstPort is the remote's port of the first test and mode.
	firstPort = 20000
	// serverLimit ends a server that nobody ended, in seconds.
	serverLimit = "7200"
	startLimit  = 10 * time.Second
	gigabyte    = 1e9
)

// sample is what netdrive prints.
type sample struct {
	Ops        uint64  `json:"ops"`
	Bytes      uint64  `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	CPUMachine float64 `json:"cpu_machine"`
	Lost       uint64  `json:"lost"`
	Connect    float64 `json:"connect_us"`
	TotalBytes uint64  `json:"total_bytes"` // with those of the warm-up
	// processes is CPU time of the client's process tree, start-up
	// included, and of the server, while TotalBytes went by.
	processes time.Duration
}

// decode reads the line of JSON that netdrive prints.
func decode(line []byte) (sample, error) {
	var s sample
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("read netdrive's result %q: %w", line, err)
	}
	if s.Ops == 0 || s.Bytes == 0 || s.Seconds <= 0 {
		return s, fmt.Errorf("netdrive measured nothing: %s", line)
	}
	return s, nil
}

type addFunc = func(measure.Metric, float64)

// test is one of netdrive's tests.
type test struct {
	name    string
	network string // of the server's port
	pin     modes.Pinning
	record  func(s sample, add addFunc)
	// goAtOnce, if not 0, has a Go program make connections to the server of tcp_crr, so many at
	// once.
	goAtOnce int
}

var tests = []test{
	{"tcp_stream", "tcp", modes.Apart, recordStream, 0},
	{"tcp_rr", "tcp", modes.Together, recordRoundTrips, 0},
	{"tcp_crr", "tcp", modes.Anywhere, recordConnections, 0},
	{"go_crr", "tcp", modes.Anywhere, recordConnections, 1},
	{"go_crr_16", "tcp", modes.Anywhere, recordConnections, 16},
	{"udp_rr", "udp", modes.Together, recordRoundTrips, 0},
	{"udp_rr_unconnected", "udp", modes.Together, recordRoundTrips, 0},
}

// startup is the test that runs the program true: what a container costs
// before its program does anything.
const startup = "startup"

// execs is the test that starts programs within a container, one after another.
const execs = "exec"

// execsPerRun is how many they are.
const execsPerRun = 200

func testNames() []string {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	for _, t := range ownTests {
		names = append(names, t.name)
	}
	names = append(names, inboundNames()...)
	return append(names, startup, execs)
}

func recordStream(s sample, add addFunc) {
	add(measure.Metric{Name: "throughput", Unit: "Gbit/s", HigherIsBetter: true}, float64(s.Bytes)*8/s.Seconds/1e9)
	add(measure.Metric{Name: "cpu_machine", Unit: "s/GB"}, s.CPUMachine/(float64(s.Bytes)/gigabyte))
	if s.processes > 0 {
		add(measure.Metric{Name: "cpu_processes", Unit: "s/GB"}, s.processes.Seconds()/(float64(s.TotalBytes)/gigabyte))
	}
}

func recordRoundTrips(s sample, add addFunc) {
	add(measure.Metric{Name: "rate", Unit: "1/s", HigherIsBetter: true}, float64(s.Ops)/s.Seconds)
	add(measure.Metric{Name: "p50", Unit: "us"}, s.P50)
	add(measure.Metric{Name: "p99", Unit: "us"}, s.P99)
	add(measure.Metric{Name: "cpu_machine", Unit: "us/op"}, s.CPUMachine*1e6/float64(s.Ops))
}

func recordConnections(s sample, add addFunc) {
	recordRoundTrips(s, add)
	add(measure.Metric{Name: "first_connect", Unit: "us"}, s.Connect)
}

// figure is a run of the figure graft.
type figure struct {
	options *options
	runner  *modes.Runner
	driver  string
	self    string // this program
	lost    uint64
	inPort  uint16 // the last one of inbound
}

// loads are the tests that the command line asks for, in its order.
func (f *figure) loads() []modes.Load {
	var list []modes.Load
	port := uint16(firstPort)
	for name := range strings.SplitSeq(f.options.tests, ",") {
		for _, t := range tests {
			if t.name == name {
				list = append(list, f.load(t, port))
				port += uint16(len(f.options.session.Modes))
			}
		}
		for _, t := range ownTests {
			if t.name == name {
				list = append(list, f.ownLoad(t, port))
				port += uint16(len(f.options.session.Modes))
			}
		}
		if t, inbound := strings.CutPrefix(name, inPrefix); inbound {
			list = append(list, f.inbound(t))
		}
		if name == startup {
			list = append(list, modes.Load{Name: startup, Pin: modes.Anywhere, Run: f.startup})
		}
		if name == execs {
			list = append(list, modes.Load{Name: execs, Pin: modes.Together, Run: f.execs})
		}
	}
	return list
}

// server is where a test's client of one mode connects to.
type server struct {
	cmd  *testkit.Cmd
	port uint16
}

// load is a test with a server for each mode: connections that modes leave in
// TIME_WAIT or in connection tracking must not meet.
func (f *figure) load(t test, port uint16) modes.Load {
	servers := make(map[modes.Mode]server)
	start := func(ctx context.Context) error {
		wait, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		for i, mode := range f.options.session.Modes {
			port := port + uint16(i)
			cmd, err := f.runner.Serve(ctx, f.netdrive("server", t, port, "-t", serverLimit)...)
			if err != nil {
				return err
			}
			if err := f.runner.Top.Remote.WaitListen(wait, t.network, port); err != nil {
				return err
			}
			servers[mode] = server{cmd, port}
		}
		return nil
	}
	run := func(ctx context.Context, mode modes.Mode, add addFunc) error {
		if t.goAtOnce > 0 && mode == modes.Preload {
			return nil // it stays in the container's own network
		}
		s, err := f.drive(ctx, t, mode, servers[mode])
		if err != nil {
			return err
		}
		f.lost += s.Lost
		t.record(s, add)
		return nil
	}
	return modes.Load{Name: t.name, Pin: t.pin, Start: start, Run: run}
}

func (f *figure) netdrive(side string, t test, port uint16, args ...string) []string {
	name := t.name
	if t.goAtOnce > 0 {
		name = "tcp_crr"
	}
	return append(f.sized(f.driver, side, name, testkit.RemoteAddr4.String(), strconv.Itoa(int(port))), args...)
}

// sized is a command of netdrive with the size of messages that the command line asks for.
func (f *figure) sized(argv ...string) []string {
	if f.options.size > 0 {
		argv = append(argv, "-s", strconv.Itoa(f.options.size))
	}
	return argv
}

// drive runs a test's client in a mode.
func (f *figure) drive(ctx context.Context, t test, mode modes.Mode, srv server) (sample, error) {
	before, err := modes.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	argv := f.netdrive("client", t, srv.port, "-t", seconds(f.options.session.Duration), "-w", seconds(f.options.warmup))
	if t.goAtOnce > 0 {
		argv = []string{
			f.self, goClientCommand, netip.AddrPortFrom(testkit.RemoteAddr4, srv.port).String(),
			strconv.Itoa(t.goAtOnce), f.options.warmup.String(), f.options.session.Duration.String(),
		}
	}
	r, err := f.runner.Run(ctx, mode, argv...)
	if err != nil {
		return sample{}, err
	}
	after, err := modes.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	s, err := decode(r.Stdout)
	if !mode.IsDocker() { // whose client's processes are not ours
		s.processes = r.CPU + after - before
	}
	return s, err
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// startup runs a program that does nothing.
func (f *figure) startup(ctx context.Context, mode modes.Mode, add addFunc) error {
	r, err := f.runner.Run(ctx, mode, "true")
	if err != nil {
		return err
	}
	milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	add(measure.Metric{Name: "wall", Unit: "ms"}, milliseconds(r.Wall))
	add(measure.Metric{Name: "cpu_processes", Unit: "ms"}, milliseconds(r.CPU))
	return nil
}

// execs has a shell run the program true many times, and say how long that took.
func (f *figure) execs(ctx context.Context, mode modes.Mode, add addFunc) error {
	script := fmt.Sprintf(`TIMEFORMAT=%%R; { time for i in {1..%d}; do /bin/true; done; } 2>&1`, execsPerRun)
	r, err := f.runner.Run(ctx, mode, "bash", "-c", script)
	if err != nil {
		return err
	}
	took, err := strconv.ParseFloat(strings.TrimSpace(string(r.Stdout)), 64)
	if err != nil {
		return fmt.Errorf("read what bash has timed: %w", err)
	}
	add(measure.Metric{Name: "per_program", Unit: "us"}, took*1e6/execsPerRun)
	return nil
}

// note adds what a reader of the figures should know.
func (f *figure) note(report *measure.Report) {
	report.Note("cpu_machine is all CPU time of the machine while measuring, other users' included; " +
		"cpu_processes is that of the client's process tree, its start included, and of the server")
	report.Note("%s is wall and CPU time of running true; first_connect is a process's first socket and connect; "+
		"%s is fork, exec, the loader and exit of true, within one container", startup, execs)
	if f.lost > 0 {
		report.Note("%d datagrams were lost and sent again", f.lost)
	}
}
