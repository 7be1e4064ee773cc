package container

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/policy"
)

// Counts are what a container has counted.
type Counts struct {
	Connections policy.Connections
	Denied      policy.Denied
	Gates       gate.Stats // those that have ended included
	Agent       gate.Stats // only its Calls
	Running     bool       // there is a gate
	Memory      uint64     // of gates and keepers, in bytes
}

// Counts are what the container has counted, its gates when they were last asked; false if it has
// ended.
func (c *Container) Counts() (*Counts, bool) {
	connections, denied, ok := c.kernelCounts()
	if !ok {
		return nil, false
	}
	sum := c.gates.counted()
	return &Counts{
		Connections: connections, Denied: denied, Gates: sum.gates, Agent: sum.agents,
		Running: c.gates.count() > 0, Memory: residentIn(c.keepers.Path()),
	}, true
}

// AskGates makes all gates say what they have counted. Each channel is closed when a gate has.
func (c *Container) AskGates() []<-chan struct{} {
	var asked []<-chan struct{}
	for _, s := range c.gates.all() {
		asked = append(asked, s.ask())
	}
	return asked
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
