package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/roundtrip"
)

const (
	payload = 128 // bytes
	warmUp  = 200 // round trips that are not counted: neighbors, flows of the switch
)

// The modes. Ratios are to the first.
const (
	software = "software"       // the switch is on the host, whose CPU it shares with pods
	offload  = "offload"        // it is on the DPU
	direct   = "offload+direct" // the same, with direct forward
)

// way is two pods, and the nodes whose switches their packets pass.
type way struct {
	test, mode string
	from, to   roundtrip.End
	nodes      []*node
}

// Nodes of the figure: the host of node 1 has a DPU.
const (
	withDPU = iota + 1
	peer
	without
)

// vfs are as many as the pods of a node.
const vfs = 4

// ways makes three nodes and their pods. The pods' CPU is 0; the DPU's is the last one, as is that of
// the peer's switch.
func (f *fabric) ways(ctx context.Context) (list []*way, err error) {
	last := runtime.NumCPU() - 1
	outside := roundtrip.End{NS: f.ns, Addr: gateway}
	nodes := map[int]*node{}
	for number, place := range map[int]struct {
		cpu int
		dpu bool
	}{withDPU: {last, true}, peer: {last, false}, without: {0, false}} {
		if nodes[number], err = f.newNode(ctx, number, place.cpu, vfs, place.dpu); err != nil {
			return nil, err
		}
	}
	pods := map[string]roundtrip.End{}
	for _, p := range []struct {
		name   string
		node   int
		direct bool
	}{
		{"soft-a", without, false},
		{"soft-b", without, false},
		{"off-a", withDPU, false},
		{"off-b", withDPU, false},
		{"direct-a", withDPU, true},
		{"direct-b", withDPU, true},
		{"peer", peer, false},
	} {
		if pods[p.name], err = f.attach(ctx, nodes[p.node], p.name, p.direct); err != nil {
			return nil, err
		}
	}
	list = []*way{
		{"same node", software, pods["soft-a"], pods["soft-b"], []*node{nodes[without]}},
		{"same node", offload, pods["off-a"], pods["off-b"], []*node{nodes[withDPU]}},
		{"same node", direct, pods["direct-a"], pods["direct-b"], []*node{nodes[withDPU]}},
		{"between nodes", software, pods["soft-a"], pods["peer"], []*node{nodes[without]}},
		{"between nodes", offload, pods["off-a"], pods["peer"], []*node{nodes[withDPU]}},
		{"between nodes", direct, pods["direct-a"], pods["peer"], []*node{nodes[withDPU]}},
		{"outside", software, pods["soft-a"], outside, []*node{nodes[without]}},
		{"outside", offload, pods["off-a"], outside, []*node{nodes[withDPU]}},
		{"outside", direct, pods["direct-a"], outside, []*node{nodes[withDPU]}},
	}
	for _, w := range list {
		// A gateway is found, and its flows are installed, some time after the switch works.
		if _, _, err := roundtrip.Measure(w.from, w.to, payload, 1); err != nil {
			return nil, fmt.Errorf("try %s of %s: %w", w.mode, w.test, err)
		}
	}
	return list, nil
}

// latency measures all ways, idle and loaded, in random order.
func (o *options) latency(ctx context.Context, f *fabric, report *measure.Report, progress io.Writer) error {
	report.Base = software
	ways, err := f.ways(ctx)
	if err != nil {
		return err
	}
	report.Note("%d bytes of UDP payload, %d round trips a measurement; pods on CPU 0", payload, o.trips)
	report.Note("emulated: the DPU is a namespace whose Open vSwitch (user space) has CPU %d; its virtual functions are links; the network between nodes is a bridge", runtime.NumCPU()-1)
	report.Note("outside is the gateway of the nodes: packets to it are masqueraded")
	report.Note("load: a thread that is busy for 80 %% of CPU 0's time, and datagrams of 1,400 bytes on the same way, %d a millisecond or fewer, if the way takes fewer", burst)
	order := rand.New(rand.NewPCG(report.Seed, 0))
	for round := range o.rounds {
		for _, i := range order.Perm(2 * len(ways)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			w, loaded := ways[i/2], i%2 == 1
			if err := o.once(report, w, loaded); err != nil {
				return fmt.Errorf("measure %s of %s: %w", w.mode, w.test, err)
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
	}
	report.Finish([]string{software, offload, direct})
	return nil
}

// once measures one way.
func (o *options) once(report *measure.Report, w *way, loaded bool) (err error) {
	test := w.test + ", idle"
	trips := o.trips
	if loaded {
		test, trips = w.test+", loaded", o.trips/5
		stop := startLoad(w)
		defer func() { err = errors.Join(err, stop()) }()
	}
	if _, _, err := roundtrip.Measure(w.from, w.to, payload, min(warmUp, trips)); err != nil {
		return err
	}
	before, err := usage(w)
	if err != nil {
		return err
	}
	began := time.Now()
	times, lost, err := roundtrip.Measure(w.from, w.to, payload, trips)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := usage(w)
	if err != nil {
		return err
	}
	slices.Sort(times)
	add := func(name, unit string, value float64) {
		report.Add(measure.Metric{Test: test, Name: name, Unit: unit}, w.mode, value)
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	add("min", "us", us(times[0]))
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	add("average", "us", us(sum/time.Duration(len(times))))
	for _, rank := range []int{50, 90, 99} {
		add(fmt.Sprintf("p%d", rank), "us", us(times[len(times)*rank/100]))
	}
	add("lost", "datagrams", float64(lost))
	perThousand := 1000 / float64(trips)
	add("OVS on the host", "ms/1000", float64(after.host-before.host)/1e6*perThousand)
	add("OVS on the DPU", "ms/1000", float64(after.dpu-before.dpu)/1e6*perThousand)
	add("NET_RX softirqs", "1/s", float64(after.softirqs-before.softirqs)/took.Seconds())
	return nil
}
