package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/proc"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/policy"
)

// statsPatience is how long gates have to say what they have counted. All are asked
// at once, and nothing else here waits for anybody.
const statsPatience = time.Second

// counted is what gates and those who answer what they ask have counted. It is 6 KiB:
// where it stays, it is only if there is something.
type counted struct{ *sums }

type sums struct {
	gates  gate.Stats
	agents gate.Stats // only its Calls
}

func (c *counted) add(o counted) {
	switch {
	case o.sums == nil:
	case c.sums == nil:
		c.sums = &sums{o.gates, o.agents}
	default:
		c.gates.Add(&o.gates)
		c.agents.Add(&o.agents)
	}
}

// ask makes a gate say what it has counted. The channel is closed when it has.
func (s *supervised) ask() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != nil {
		return s.asking
	}
	asking := make(chan struct{})
	s.asking = asking
	go func() {
		stats, err := s.gate.Stats()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			s.stats = &stats
		}
		s.asking = nil
		close(asking)
	}()
	return asking
}

// counted is what the gate has said last.
func (s *supervised) counted() counted {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := counted{&sums{agents: s.supervisor.Stats()}}
	if s.stats != nil {
		c.gates = *s.stats
	}
	return c
}

// counted is what all gates have counted, those that have ended included.
func (g *gates) counted() counted {
	g.mu.Lock()
	defer g.mu.Unlock()
	sum := counted{&sums{}}
	sum.add(g.ended)
	for _, s := range g.list {
		sum.add(s.counted())
	}
	return sum
}

// stats are what all containers have counted.
func (d *Daemon) stats() api.Stats {
	var list []*managed
	asked := map[*managed][]<-chan struct{}{}
	for _, m := range d.all() {
		list = append(list, m)
		for _, s := range m.gates.all() {
			asked[m] = append(asked[m], s.ask())
		}
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

// stats are what the container has counted; false if it has ended.
func (m *managed) stats() (api.ContainerStats, bool) {
	connections, denied, ok := m.kernelCounts()
	if !ok {
		return api.ContainerStats{}, false
	}
	c := m.gates.counted()
	g := &c.gates
	s := api.ContainerStats{
		ID: m.id, Name: m.spec.Name, State: stateCreated,
		Connections: api.Connections{Out: connections.Out, In: connections.In},
		Denied: api.Denied{
			Connect: denied.Connect, Bind: denied.Bind, Send: denied.Send, SetSockOpt: denied.SetOption,
			Leave: denied.Leave, Enter: denied.Enter,
		},
		Pool:       api.Pool{Batches: g.Batches, Sockets: g.BatchSockets, Single: g.Single, Misses: g.Misses},
		AskedAgain: g.Again, Delayed: g.Full, Unreported: g.Unreported,
		Memory: residentIn(m.keepers.Path()),
	}
	if m.gates.count() > 0 {
		s.State = stateRunning
	}
	s.Gate = decisions(g, func(c *gate.CallStats) uint64 { return c.Answered })
	s.Agent = decisions(&c.agents, func(c *gate.CallStats) uint64 { return c.Answered })
	// The gates know also of those that an earlier agent has answered.
	s.Agent.Calls = decisions(g, func(c *gate.CallStats) uint64 { return c.Passed }).Calls
	return s, true
}

// kernelCounts are those of the kernel programs; false if the container has ended.
func (c *Container) kernelCounts() (policy.Connections, policy.Denied, bool) {
	c.counting.Lock()
	defer c.counting.Unlock()
	if c.uncounted {
		return policy.Connections{}, policy.Denied{}, false
	}
	connections, err := c.enforced.Connections()
	denied, derr := c.enforced.Denied()
	return connections, denied, err == nil && derr == nil
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

// residentIn is the memory of the processes in a cgroup, in bytes.
func residentIn(cgroup string) uint64 {
	pids, _ := os.ReadFile(filepath.Join(cgroup, "cgroup.procs")) // it may be gone
	var sum uint64
	for text := range strings.FieldsSeq(string(pids)) {
		pid, _ := strconv.Atoi(text)
		n, _ := proc.Resident(pid) // it may have ended
		sum += uint64(n)
	}
	return sum
}

func (d *Daemon) handleStats(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, d.stats())
}
