package api

import (
	"cmp"
	"slices"
	"time"
)

// Rate is the activity of a container between two Stats. All fields but the last four are events
// per second.
type Rate struct {
	Name           string
	Out, In        float64 // connections
	Gate, Agent    float64 // decisions, by who answers
	Denied, Misses float64
	// P50 and P99 are the median and the 99th percentile of the time of a decision; 0 without
	// decisions.
	P50, P99 time.Duration
	Silent   int
	Memory   uint64 // bytes
}

// Rates returns the rates of the containers that the later Stats has, the busiest first. Counters of
// an agent that was restarted in between count from 0.
func Rates(before, after *Stats) ([]Rate, error) {
	from, err := time.Parse(time.RFC3339Nano, before.Time)
	if err != nil {
		return nil, err
	}
	to, err := time.Parse(time.RFC3339Nano, after.Time)
	if err != nil {
		return nil, err
	}
	seconds := to.Sub(from).Seconds()
	earlier := map[string]*ContainerStats{}
	for i := range before.Containers {
		earlier[before.Containers[i].ID] = &before.Containers[i]
	}
	rates := []Rate{}
	for i := range after.Containers {
		c := &after.Containers[i]
		old := earlier[c.ID]
		if old == nil {
			old = &ContainerStats{}
		}
		rates = append(rates, rate(old, c, seconds))
	}
	slices.SortStableFunc(rates, func(a, b Rate) int { return cmp.Compare(b.busy(), a.busy()) })
	return rates, nil
}

func (r *Rate) busy() float64 { return r.Out + r.In + r.Gate + r.Agent + r.Denied }

func rate(a, b *ContainerStats, seconds float64) Rate {
	per := func(from, to uint64) float64 {
		if seconds <= 0 {
			return 0
		}
		return float64(since(from, to)) / seconds
	}
	times := make([]uint64, max(len(b.Gate.Times), len(b.Agent.Times)))
	for _, d := range [][2]*Decisions{{&a.Gate, &b.Gate}, {&a.Agent, &b.Agent}} {
		for i, n := range d[1].Times {
			var old uint64
			if i < len(d[0].Times) {
				old = d[0].Times[i]
			}
			times[i] += since(old, n)
		}
	}
	return Rate{
		Name: b.Name, Silent: b.Silent, Memory: b.Memory,
		Out: per(a.Connections.Out, b.Connections.Out), In: per(a.Connections.In, b.Connections.In),
		Gate: per(total(&a.Gate), total(&b.Gate)), Agent: per(total(&a.Agent), total(&b.Agent)),
		Denied: per(denied(a), denied(b)), Misses: per(a.Pool.Misses, b.Pool.Misses),
		P50: quantile(times, 0.5), P99: quantile(times, 0.99),
	}
}

// since returns the increase of a counter that may have restarted at 0.
func since(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

func total(d *Decisions) (n uint64) {
	for _, calls := range d.Calls {
		n += calls
	}
	return n
}

func denied(s *ContainerStats) uint64 {
	d := &s.Denied
	return d.Connect + d.Bind + d.Send + d.SetSockOpt + d.Leave + d.Enter
}

// quantile estimates a quantile from Decisions.Times. It assumes that times are spread evenly within
// a bucket.
func quantile(times []uint64, q float64) time.Duration {
	var all uint64
	for _, n := range times {
		all += n
	}
	want := q * float64(all)
	below := 0.0
	for power, n := range times {
		if n == 0 || below+float64(n) < want {
			below += float64(n)
			continue
		}
		low, high := time.Duration(0), time.Duration(1)<<power
		if power > 0 {
			low = high / 2
		}
		return low + time.Duration(float64(high-low)*(want-below)/float64(n))
	}
	return 0
}
