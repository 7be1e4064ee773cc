package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
)

// firstPort is the remote's port of the first test and mode.
const firstPort = 20000

// goTests have a Go program make connections to the server of tcp_crr, so many at once.
var goTests = map[string]int{"go_crr": 1, "go_crr_16": 16}

// outboundTests are the tests whose server is on the remote.
func (f *figure) outboundTests() []drive.Test {
	list := slices.Clone(drive.Tests)
	for _, name := range slices.Sorted(maps.Keys(goTests)) {
		list = append(list, drive.Test{
			Name: name, Drives: "tcp_crr", Network: "tcp", Pin: modes.Anywhere, Record: drive.RecordConnections,
			Client: func(addr string, port uint16) []string {
				return []string{
					f.self, goClientCommand, net.JoinHostPort(addr, strconv.Itoa(int(port))),
					strconv.Itoa(goTests[name]), f.options.warmup.String(), f.options.session.Duration.String(),
				}
			},
			Skips: func(m modes.Mode) bool { return m == modes.Preload }, // it stays in the container's own network
		})
	}
	return list
}

// startup is the test that runs the program true: what a container costs
// before its program does anything.
const startup = "startup"

// execs is the test that starts programs within a container, one after another.
const execs = "exec"

// execsPerRun is how many they are.
const execsPerRun = 200

// graftTests are the tests of the figure graft that run by themselves: all but the inbound ones.
func graftTests() []string {
	var names []string
	for _, t := range (&figure{}).outboundTests() {
		names = append(names, t.Name)
	}
	for _, t := range ownTests {
		names = append(names, t.Name)
	}
	return append(names, startup, execs)
}

// inboundTests are the tests whose client is on the remote.
func inboundTests() []string {
	var names []string
	for _, t := range drive.Tests {
		names = append(names, drive.InPrefix+t.Name)
	}
	return names
}

// inboundTCPTests are those of them that the modes of the figure graft publish a port for.
func inboundTCPTests() []string {
	return slices.DeleteFunc(inboundTests(), func(name string) bool { return strings.Contains(name, "udp") })
}

// figure is a run of a figure.
type figure struct {
	options *options
	driver  *drive.Driver
	self    string // this program
	dir     string // for programs that are built
}

// loads are the tests that the command line asks for, in its order.
func (f *figure) loads() []modes.Load {
	var list []modes.Load
	port := uint16(firstPort)
	for name := range strings.SplitSeq(f.options.tests, ",") {
		for _, t := range f.outboundTests() {
			if t.Name == name {
				list = append(list, f.driver.Load(t, port))
				port += uint16(len(f.options.session.Modes))
			}
		}
		for _, t := range ownTests {
			if t.Name == name {
				list = append(list, f.ownLoad(t, port))
				port += uint16(len(f.options.session.Modes))
			}
		}
		for _, t := range drive.Tests {
			if drive.InPrefix+t.Name == name {
				list = append(list, f.driver.Inbound(t))
			}
		}
		for _, b := range goBenches {
			if b.name == name {
				list = append(list, b.load(f, f.dir))
			}
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

// startup runs a program that does nothing.
func (f *figure) startup(ctx context.Context, mode modes.Mode, add drive.Add) error {
	r, err := f.driver.Runner.Run(ctx, mode, "true")
	if err != nil {
		return err
	}
	milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	add(measure.Metric{Name: "wall", Unit: "ms"}, milliseconds(r.Wall))
	add(measure.Metric{Name: "cpu_processes", Unit: "ms"}, milliseconds(r.CPU))
	return nil
}

// execs has a shell run the program true many times, and say how long that took.
func (f *figure) execs(ctx context.Context, mode modes.Mode, add drive.Add) error {
	script := fmt.Sprintf(`TIMEFORMAT=%%R; { time for i in {1..%d}; do /bin/true; done; } 2>&1`, execsPerRun)
	r, err := f.driver.Runner.Run(ctx, mode, "bash", "-c", script)
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

// print writes the table, and of the figure translate, whose modes are many, one with a column for each.
func (f *figure) print(report *measure.Report, w io.Writer) error {
	if err := report.WriteTable(w); err != nil || f.options.session.Figure != modes.Translate {
		return err
	}
	fmt.Fprintln(w)
	return report.WriteBrief(w, modes.Names(f.driver.Runner.Modes()))
}

// note adds what a reader of the figures should know.
func (f *figure) note(report *measure.Report) {
	report.Note("cpu_machine is all CPU time of the machine while measuring, other users' included; " +
		"cpu_processes is that of the client's process tree, its start included, and of the server")
	if f.options.session.Figure == modes.Translate {
		report.Note("first_connect is a process's first socket and connect; tayga, haproxy and socat are on the client's CPU " +
			"and in its process tree, but for what socat forks; haproxy carries no datagrams")
		report.Note("%s is asked by 32 clients at once, directly and by way of the proxy, which unbound is the resolver of", goBenches[0].name)
	} else {
		report.Note("%s is wall and CPU time of running true; first_connect is a process's first socket and connect; "+
			"%s is fork, exec, the loader and exit of true, within one container", startup, execs)
	}
	if f.driver.Lost > 0 {
		report.Note("%d datagrams were lost and sent again", f.driver.Lost)
	}
}
