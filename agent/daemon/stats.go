package daemon

import (
	"net/http"
	"time"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/policy"
)

// statsPatience is how long gates have to report their counters. All are asked at once, and nothing
// else here waits.
const statsPatience = time.Second

// stats returns the counters of all containers.
func (d *Daemon) stats() api.Stats {
	var list []*managed
	asked := map[*managed][]<-chan struct{}{}
	for _, m := range d.all() {
		list = append(list, m)
		asked[m] = m.AskGates()
	}
	wait := time.NewTimer(statsPatience)
	defer wait.Stop()
	late := false
	answered := func(gate <-chan struct{}) bool {
		if !late {
			select {
			case <-gate:
				return true
			case <-wait.C:
				late = true
			}
		}
		select {
		case <-gate:
			return true
		default:
			return false
		}
	}
	stats := api.Stats{Containers: []api.ContainerStats{}}
	for _, m := range list {
		silent := 0
		for _, gate := range asked[m] {
			if !answered(gate) {
				silent++
			}
		}
		d.silent.Add(uint64(silent))
		if s, ok := m.stats(); ok {
			s.Gates, s.Silent = len(asked[m]), silent
			stats.Containers = append(stats.Containers, s)
		}
	}
	stats.Time = time.Now().UTC().Format(time.RFC3339Nano)
	return stats
}

// stats returns the counters of the container; false if it has ended.
func (m *managed) stats() (api.ContainerStats, bool) {
	c, ok := m.Counts()
	if !ok {
		return api.ContainerStats{}, false
	}
	g := &c.Gates
	s := api.ContainerStats{
		ID: m.ID, Name: m.Name, State: stateCreated,
		Connections: api.Connections{Out: c.Connections.Out, In: c.Connections.In},
		Denied:      deniedOf(c.Denied),
		Pool:        api.Pool{Batches: g.Batches, Sockets: g.BatchSockets, Single: g.Single, Misses: g.Misses},
		AskedAgain:  g.Again, Delayed: g.Full, Unreported: g.Unreported + c.Decided.Unreported,
		Memory: c.Memory, Translation: c.Translation,
	}
	if m.isGuest() {
		s.Guest = m.guestState()
	}
	if c.Running || s.Guest != nil && (s.Guest.VMM != 0 || s.Guest.Open > 0) {
		s.State = stateRunning
	}
	s.Kernel.Calls = map[string]uint64{
		gate.Connect.String(): c.Decided.Connect, gate.Send.String(): c.Decided.Send, gate.Listen.String(): c.Decided.Listen,
	}
	s.Gate = decisions(g, func(c *gate.CallStats) uint64 { return c.Answered })
	s.Agent = decisions(&c.Agent, func(c *gate.CallStats) uint64 { return c.Answered })
	// The gates also count the calls that an earlier agent has answered.
	s.Agent.Calls = decisions(g, func(c *gate.CallStats) uint64 { return c.Passed }).Calls
	return s, true
}

func deniedOf(d policy.Denied) api.Denied {
	return api.Denied{Connect: d.Connect, Bind: d.Bind, Send: d.Send, SetSockOpt: d.SetOption, Leave: d.Leave, Enter: d.Enter}
}

func decisions(s *gate.Stats, of func(*gate.CallStats) uint64) api.Decisions {
	d := api.Decisions{Calls: map[string]uint64{}, Times: make([]uint64, gate.TimeBuckets)}
	for i := gate.Socket; int(i) < len(s.Calls); i++ {
		c := &s.Calls[i]
		d.Calls[i.String()] = of(c)
		d.Refused += c.Refused
		for n, count := range c.Time {
			d.Times[n] += count
		}
	}
	return d
}

func (d *Daemon) handleStats(w http.ResponseWriter, _ *http.Request) {
	httpapi.Answer(w, http.StatusOK, d.stats())
}
