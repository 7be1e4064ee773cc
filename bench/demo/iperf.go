package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const iperfPort = 5201

// iperfTries is how often a short run is tried in which a busy machine may get
// nothing across.
const iperfTries = 3

var errNothing = errors.New("nothing was received")

// iperf is one TCP stream of iperf3, from the client to the remote.
func iperf(r *modes.Runner, duration time.Duration) modes.Load {
	once := func(ctx context.Context, mode modes.Mode, add func(measure.Metric, float64)) error {
		// A server that is not through with a client refuses the next one, so each has its own.
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		server, err := r.Serve(ctx, modes.Host, "tcp", []uint16{iperfPort}, "iperf3", "--server", "--port", strconv.Itoa(iperfPort))
		if err != nil {
			return err
		}
		defer func() {
			stop()
			_ = server.Wait() // killed
		}()
		before, err := readClocks(server)
		if err != nil {
			return err
		}
		client, err := r.Run(ctx, mode, "iperf3", "--client", testkit.RemoteAddr4.String(),
			"--port", strconv.Itoa(iperfPort), "--time", strconv.Itoa(int(duration.Seconds())), "--json")
		if err != nil {
			return err
		}
		after, err := readClocks(server)
		if err != nil {
			return err
		}
		received, err := parseIperf(client.Stdout)
		if err != nil {
			return err
		}
		gigabytes := received.Bytes / 1e9
		add(measure.Metric{Name: "throughput", Unit: "Gbit/s", HigherIsBetter: true}, received.BitsPerSecond/1e9)
		add(measure.Metric{Name: "CPU of the machine", Unit: "s/GB"},
			(after.machine-before.machine).Seconds()/gigabytes)
		add(measure.Metric{Name: "CPU of both programs", Unit: "s/GB"},
			(client.CPU+after.server-before.server).Seconds()/gigabytes)
		return nil
	}
	run := func(ctx context.Context, mode modes.Mode, add func(measure.Metric, float64)) (err error) {
		for range iperfTries {
			if err = once(ctx, mode, add); !errors.Is(err, errNothing) {
				break
			}
		}
		return err
	}
	return modes.Load{Name: "iperf3", Pin: modes.Apart, Run: run}
}

// clocks are CPU times.
type clocks struct {
	machine, server time.Duration
}

func readClocks(server *testkit.Cmd) (c clocks, err error) {
	if c.server, err = modes.ProcessCPU(server.Process.Pid); err != nil {
		return c, err
	}
	c.machine, err = modes.MachineCPU()
	return c, err
}

// received is what arrived at iperf3's server.
type received struct {
	Bytes         float64 `json:"bytes"`
	BitsPerSecond float64 `json:"bits_per_second"`
}

func parseIperf(output []byte) (received, error) {
	var result struct {
		End struct {
			Received received `json:"sum_received"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(output, &result); err != nil {
		return received{}, fmt.Errorf("read output of iperf3: %w", err)
	}
	if result.End.Received.Bytes <= 0 {
		return received{}, fmt.Errorf("read output of iperf3: %w: %s", errNothing, result.Error)
	}
	return result.End.Received, nil
}
