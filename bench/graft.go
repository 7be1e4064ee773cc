package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/rig"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	// firstPort is the remote's port of the first test and mode.
	firstPort = 20000
	// serverLimit ends a server that nobody ended, in seconds.
	serverLimit = "7200"
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

// test is one kind of load.
type test struct {
	name    string
	network string // of the server's port; empty: no server, no netdrive
	place   rig.Placement
	record  func(s sample, add func(metric, unit string, higher bool, value float64))
}

var tests = []test{
	{"tcp_stream", "tcp", rig.Apart, recordStream},
	{"tcp_rr", "tcp", rig.Together, recordRoundTrips},
	{"tcp_crr", "tcp", rig.Together, recordConnections},
	{"udp_rr", "udp", rig.Together, recordRoundTrips},
	{"udp_rr_unconnected", "udp", rig.Together, recordRoundTrips},
	{startup, "", rig.Together, nil},
}

// startup is the test that runs the program true: what a container costs
// before its program does anything.
const startup = "startup"

func testNames() []string {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	return names
}

func recordStream(s sample, add func(string, string, bool, float64)) {
	add("throughput", "Gbit/s", true, float64(s.Bytes)*8/s.Seconds/1e9)
	add("cpu_machine", "s/GB", false, s.CPUMachine/(float64(s.Bytes)/gigabyte))
	add("cpu_processes", "s/GB", false, s.processes.Seconds()/(float64(s.TotalBytes)/gigabyte))
}

func recordRoundTrips(s sample, add func(string, string, bool, float64)) {
	add("rate", "1/s", true, float64(s.Ops)/s.Seconds)
	add("p50", "us", false, s.P50)
	add("p99", "us", false, s.P99)
	add("cpu_machine", "us/op", false, s.CPUMachine*1e6/float64(s.Ops))
}

func recordConnections(s sample, add func(string, string, bool, float64)) {
	recordRoundTrips(s, add)
	add("first_connect", "us", false, s.Connect)
}

// figure is a run of the figure graft.
type figure struct {
	options options
	rig     *rig.Rig
	driver  string
	report  *measure.Report

	servers map[load]server
	lost    uint64
}

// load is a test in a mode. Each has a server port of its own: connections
// that modes leave in TIME_WAIT or in connection tracking must not meet.
type load struct {
	test string
	mode rig.Mode
}

type server struct {
	cmd  *testkit.Cmd
	port uint16
}

// chosen are the tests that the command line asks for, in its order.
func (f *figure) chosen() []test {
	var list []test
	for _, name := range f.options.tests {
		for _, t := range tests {
			if t.name == name {
				list = append(list, t)
			}
		}
	}
	return list
}

// place puts what is started next where the command line or the test wants it.
func (f *figure) place(t test) (*measure.Pinned, error) {
	if f.options.place != automatic {
		return f.rig.Place(f.options.place)
	}
	return f.rig.Place(t.place)
}

// serve starts the servers of all tests and waits until they listen.
func (f *figure) serve(ctx context.Context) error {
	f.servers = make(map[load]server)
	port := uint16(firstPort)
	for _, t := range f.chosen() {
		if t.network == "" {
			continue
		}
		if _, err := f.place(t); err != nil {
			return err
		}
		for _, mode := range f.options.modes {
			cmd, err := f.rig.Serve(ctx, f.netdrive("server", t, port, "-t", serverLimit)...)
			if err != nil {
				return err
			}
			f.servers[load{t.name, mode}] = server{cmd, port}
			port++
		}
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, t := range f.chosen() {
		for _, mode := range f.options.modes {
			s, ok := f.servers[load{t.name, mode}]
			if !ok {
				continue
			}
			if err := f.rig.Top.Remote.WaitListen(wait, t.network, s.port); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *figure) netdrive(side string, t test, port uint16, args ...string) []string {
	argv := []string{f.driver, side, t.name, testkit.RemoteAddr4.String(), strconv.Itoa(int(port))}
	if f.options.size > 0 {
		argv = append(argv, "-s", strconv.Itoa(f.options.size))
	}
	return append(argv, args...)
}

// round runs every test once in every mode.
func (f *figure) round(ctx context.Context, random *rand.Rand) error {
	for _, t := range f.chosen() {
		cpus, err := f.place(t)
		if err != nil {
			return err
		}
		for _, mode := range f.rig.Shuffled(random) {
			add := func(metric, unit string, higher bool, value float64) {
				f.report.Add(measure.Metric{
					Test: t.name, Name: metric, Unit: unit, HigherIsBetter: higher, CPUs: cpus,
				}, string(mode), value)
			}
			if t.name == startup {
				r, err := f.rig.Run(ctx, mode, "true")
				if err != nil {
					return err
				}
				add("wall", "ms", false, float64(r.Wall)/float64(time.Millisecond))
				add("cpu_processes", "ms", false, float64(r.CPU)/float64(time.Millisecond))
				continue
			}
			s, err := f.drive(ctx, t, mode)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			f.lost += s.Lost
			t.record(s, add)
		}
	}
	return nil
}

// drive runs a test's client in a mode.
func (f *figure) drive(ctx context.Context, t test, mode rig.Mode) (sample, error) {
	srv := f.servers[load{t.name, mode}]
	before, err := rig.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	r, err := f.rig.Run(ctx, mode, f.netdrive("client", t, srv.port,
		"-t", seconds(f.options.duration), "-w", seconds(f.options.warmup))...)
	if err != nil {
		return sample{}, err
	}
	after, err := rig.ProcessCPU(srv.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	s, err := decode(r.Stdout)
	s.processes = r.CPU + after - before
	return s, err
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

// note adds what a reader of the figures should know.
func (f *figure) note() {
	f.report.Note("cpu_machine is all CPU time of the machine while measuring, other users' included; " +
		"cpu_processes is that of the client's process tree, its start included, and of the server")
	f.report.Note("%s is wall and CPU time of running true; first_connect is a process's first socket and connect", startup)
	if f.lost > 0 {
		f.report.Note("%d datagrams were lost and sent again", f.lost)
	}
}
