// Package drive has the tests of netdrive (bench/netdrive) as loads of a session, with the server on
// the remote, or the other way round.
//
// It owns what the tests measure and how netdrive is called. Where and how its processes are started
// is the business of bench/modes. It needs what that needs, and gcc or clang.
package drive

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
)

// Sample is what netdrive prints.
type Sample struct {
	Ops        uint64  `json:"ops"`
	Bytes      uint64  `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	CPUMachine float64 `json:"cpu_machine"`
	Lost       uint64  `json:"lost"`
	Connect    float64 `json:"connect_us"`
	TotalBytes uint64  `json:"total_bytes"` // with those of the warm-up
	// Processes is CPU time of the client's process tree, start-up
	// included, and of the server, while TotalBytes went by.
	Processes time.Duration `json:"-"`
}

// Decode reads the line of JSON that netdrive prints.
func Decode(line []byte) (Sample, error) {
	var s Sample
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("read netdrive's result %q: %w", line, err)
	}
	if s.Ops == 0 || s.Bytes == 0 || s.Seconds <= 0 {
		return s, fmt.Errorf("netdrive measured nothing: %s", line)
	}
	return s, nil
}

// Add takes a measured value.
type Add = func(measure.Metric, float64)

// Test is a test of netdrive.
type Test struct {
	Name    string
	Drives  string // netdrive's name of it
	Network string // of the server's port
	Pin     modes.Pinning
	Record  func(Sample, Add)
	// Client, if not nil, is the command line of another client of netdrive's server.
	Client func(addr string, port uint16) []string
	// Skips says in which modes the test is left out; nil: in none.
	Skips func(modes.Mode) bool
}

// Tests are all tests of netdrive.
var Tests = []Test{
	{Name: "tcp_stream", Drives: "tcp_stream", Network: "tcp", Pin: modes.Apart, Record: recordStream},
	{Name: "tcp_rr", Drives: "tcp_rr", Network: "tcp", Pin: modes.Together, Record: RecordRoundTrips},
	{Name: "tcp_crr", Drives: "tcp_crr", Network: "tcp", Pin: modes.Anywhere, Record: RecordConnections},
	{Name: "udp_rr", Drives: "udp_rr", Network: "udp", Pin: modes.Together, Record: RecordRoundTrips},
	{
		Name: "udp_rr_unconnected", Drives: "udp_rr_unconnected", Network: "udp", Pin: modes.Together,
		Record: RecordRoundTrips,
	},
}

const gigabyte = 1e9

func recordStream(s Sample, add Add) {
	add(measure.Metric{Name: "throughput", Unit: "Gbit/s", HigherIsBetter: true}, float64(s.Bytes)*8/s.Seconds/1e9)
	add(measure.Metric{Name: "cpu_machine", Unit: "s/GB"}, s.CPUMachine/(float64(s.Bytes)/gigabyte))
	if s.Processes > 0 {
		add(measure.Metric{Name: "cpu_processes", Unit: "s/GB"}, s.Processes.Seconds()/(float64(s.TotalBytes)/gigabyte))
	}
}

// RecordRoundTrips adds what round trips measure.
func RecordRoundTrips(s Sample, add Add) {
	add(measure.Metric{Name: "rate", Unit: "1/s", HigherIsBetter: true}, float64(s.Ops)/s.Seconds)
	add(measure.Metric{Name: "p50", Unit: "us"}, s.P50)
	add(measure.Metric{Name: "p99", Unit: "us"}, s.P99)
	add(measure.Metric{Name: "cpu_machine", Unit: "us/op"}, s.CPUMachine*1e6/float64(s.Ops))
}

// RecordConnections adds what round trips measure that have a connection each.
func RecordConnections(s Sample, add Add) {
	RecordRoundTrips(s, add)
	add(measure.Metric{Name: "first_connect", Unit: "us"}, s.Connect)
}

// Seconds is a duration as netdrive reads it.
func Seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}
