package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// sockperfPorts are those of its servers.
var sockperfPorts = map[string]uint16{"tcp": 11111, "udp": 11112}

// sockperfLongest is the longest run in seconds.
const sockperfLongest = 32

// sockperf is a ping-pong of 128-byte messages.
func sockperf(r *modes.Runner, network string, duration time.Duration) modes.Load {
	port := sockperfPorts[network]
	args := []string{"--ip", testkit.RemoteAddr4.String(), "--port", strconv.Itoa(int(port)), "--msg-size", "128"}
	if network == "tcp" {
		args = append(args, "--tcp")
	}
	start := func(ctx context.Context) error {
		_, err := r.Serve(ctx, modes.Host, network, []uint16{port}, append([]string{"sockperf", "server"}, args...)...)
		return err
	}
	once := func(ctx context.Context, mode modes.Mode, seconds int, add func(measure.Metric, float64)) error {
		client, err := r.Run(ctx, mode, append([]string{
			"sockperf", "ping-pong", "--full-rtt", "--time", strconv.Itoa(seconds),
		}, args...)...)
		if err != nil {
			return err
		}
		for _, p := range []int{50, 99} {
			us, err := parseSockperf(client.Stdout, p)
			if err != nil {
				return err
			}
			add(measure.Metric{Name: fmt.Sprintf("round trip p%d", p), Unit: "us"}, us)
		}
		return nil
	}
	// Sockperf leaves out what it sees in its first 400 ms. A busy machine may run it in no
	// other part of a short run, so the run is made again, twice as long.
	run := func(ctx context.Context, mode modes.Mode, add func(measure.Metric, float64)) (err error) {
		for seconds := int(duration.Seconds()); seconds <= sockperfLongest; seconds *= 2 {
			if err = once(ctx, mode, seconds, add); !errors.Is(err, errNothing) {
				break
			}
		}
		return err
	}
	return modes.Load{Name: "sockperf " + network, Pin: modes.Together, Start: start, Run: run}
}

// percentileLine is "sockperf: ---> percentile 99.000 =  165.697".
var percentileLine = regexp.MustCompile(`percentile (\d+)\.000 = +([0-9.]+)`)

func parseSockperf(output []byte, percentile int) (float64, error) {
	for _, m := range percentileLine.FindAllSubmatch(output, -1) {
		if string(m[1]) == strconv.Itoa(percentile) {
			return strconv.ParseFloat(string(m[2]), 64)
		}
	}
	if bytes.Contains(output, []byte("No valid observations")) {
		return 0, fmt.Errorf("read output of sockperf: %w: %q", errNothing, output)
	}
	return 0, fmt.Errorf("read output of sockperf: no percentile %d in %q", percentile, output)
}
