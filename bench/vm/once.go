package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/bench/drive"
	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/cputime"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	echoSize = "128" // bytes
	// begun is what a stream has carried when it has begun: what is measured later is not of a handshake.
	begun  = 64 << 10
	warmUp = 100 * time.Millisecond
	// serverLimit and clientLimit end what nobody ends, in seconds.
	serverLimit = "7200"
	clientLimit = "600"
	gigabyte    = 1e9
)

// once measures one way.
func (o *options) once(ctx context.Context, w *way, add drive.Add) error {
	for _, what := range []struct {
		name    string
		measure func(context.Context, *way, drive.Add) error
	}{{"stream out", o.out}, {"stream in", o.in}, {"echo", o.echo}} {
		named := func(m measure.Metric, v float64) {
			m.Name = what.name + m.Name
			add(m, v)
		}
		if err := what.measure(ctx, w, named); err != nil {
			return fmt.Errorf("%s: %w", what.name, err)
		}
	}
	return nil
}

// out measures a stream to the remote, where a server reads it.
func (o *options) out(ctx context.Context, w *way, add drive.Add) error {
	carried := func() (uint64, error) { return carriedBy(w.streams, "rchar") }
	start, err := carried()
	if err != nil {
		return err
	}
	client, err := w.place.start(ctx, "client", "tcp_stream", w.dial.String(), w.at(streamPort), "-t", clientLimit)
	if err != nil {
		return err
	}
	spend := w.spend
	if client.pid != 0 {
		spend = append(slices.Clone(spend), client.pid)
	}
	return errors.Join(o.stream(ctx, start, carried, spend, add), client.stop(ctx))
}

// in measures a stream of the remote's client to the way's own server.
func (o *options) in(ctx context.Context, w *way, add drive.Add) error {
	client, err := w.remote.start(ctx, "client", "tcp_stream", w.reach.String(), w.at(ownPort), "-t", clientLimit)
	if err != nil {
		return err
	}
	carried := func() (uint64, error) { return carriedBy(client.pid, "wchar") }
	start, err := carried()
	if err != nil {
		return err
	}
	return errors.Join(o.stream(ctx, start, carried, w.spend, add), client.stop(ctx))
}

// stream measures a stream that runs, on the host's clock, from the bytes that one of its ends has carried.
func (o *options) stream(ctx context.Context, start uint64, carried func() (uint64, error), spend []int, add drive.Add) error {
	limit, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for {
		now, err := carried()
		if err != nil {
			return fmt.Errorf("the stream has ended: %w", err)
		}
		if now-start >= begun {
			break
		}
		if err := pause(limit, time.Millisecond); err != nil {
			return fmt.Errorf("the stream has carried %d bytes: %w", now-start, err)
		}
	}
	if err := pause(ctx, warmUp); err != nil {
		return err
	}
	before, err := look(carried, spend)
	if err != nil {
		return err
	}
	after := before
	// Once, but where others have the machine. What was carried while it looked first may be all that was.
	for after.bytes == before.bytes || after.processes == before.processes {
		if err := pause(limit, o.duration); err != nil {
			return fmt.Errorf("nothing came for %s: %w", after.at.Sub(before.at), err)
		}
		if after, err = look(carried, spend); err != nil {
			return err
		}
	}
	bytes, took := float64(after.bytes-before.bytes), after.at.Sub(before.at).Seconds()
	add(measure.Metric{Unit: "Gbit/s", HigherIsBetter: true}, bytes*8/took/1e9)
	add(measure.Metric{Name: ", CPU processes", Unit: "s/GB"}, (after.processes-before.processes).Seconds()/(bytes/gigabyte))
	add(measure.Metric{Name: ", CPU machine", Unit: "s/GB"}, (after.machine-before.machine).Seconds()/(bytes/gigabyte))
	return nil
}

// echo measures round trips of a message on one connection to the remote, on the clock of the way's
// programs.
func (o *options) echo(ctx context.Context, w *way, add drive.Add) error {
	out, err := w.place.output(ctx, "client", "tcp_rr", w.dial.String(), w.at(echoPort), "-s", echoSize, "-t", drive.Seconds(o.duration),
		"-w", drive.Seconds(warmUp))
	if err != nil {
		return err
	}
	s, err := drive.Decode([]byte(out))
	if err == nil {
		add(measure.Metric{Name: " p50", Unit: "us"}, s.P50)
		add(measure.Metric{Name: " p99", Unit: "us"}, s.P99)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// seen is what has happened until a moment.
type seen struct {
	at                 time.Time
	bytes              uint64
	processes, machine time.Duration // CPU time
}

func look(carried func() (uint64, error), spend []int) (s seen, err error) {
	s.at = time.Now()
	if s.bytes, err = carried(); err != nil {
		return s, err
	}
	if s.processes, err = spent(spend); err != nil {
		return s, err
	}
	s.machine, err = modes.MachineCPU()
	return s, err
}

// carriedBy reads what a process has read or written by read(2) and write(2): rchar or wchar of
// /proc/PID/io (Documentation/filesystems/proc.rst).
func carriedBy(pid int, field string) (uint64, error) {
	io, err := proc.ReadFields(fmt.Sprintf("/proc/%d/io", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	value, _ := io.Get(field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(value, 10, 64)
}

// spent is the CPU time of processes and their descendants. User-Mode Linux has a process for each of the
// guest's.
func spent(roots []int) (sum time.Duration, err error) {
	pids, err := proc.All()
	if err != nil {
		return 0, err
	}
	stats := map[int]proc.Stat{}
	for _, pid := range pids {
		if s, err := proc.ReadStat(pid); err == nil { // or it has ended
			stats[pid] = s
		}
	}
	for pid, s := range stats {
		for at := pid; at > 1; at = stats[at].Parent {
			if !slices.Contains(roots, at) {
				continue
			}
			if now, err := cputime.Process(pid); err == nil {
				sum += now + s.ChildUser + s.ChildSystem
			}
			break
		}
	}
	return sum, nil
}
