package container

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/internal/sys/proc"
	"github.com/tsugiki/tsugiki/policy"
)

// Counts are the counters of a container.
type Counts struct {
	Connections policy.Connections
	Denied      policy.Denied
	Decided     policy.Decided
	Gates       gate.Stats // including those that have ended
	Agent       gate.Stats // only its Calls
	Running     bool       // there is a gate
	Memory      uint64     // of gates and keepers, in bytes
	// Translation is nil if IPv4 is not translated.
	Translation *api.TranslationStats
}

// Counts returns the counters of the container; false if it has ended. Those of its gates are from
// the last AskGates.
func (c *Container) Counts() (*Counts, bool) {
	counts := &Counts{}
	if !c.countKernel(counts) {
		return nil, false
	}
	sum := c.gates.counted()
	counts.Gates, counts.Agent = sum.gates, sum.agents
	counts.Translation = c.translationCounts()
	counts.Running, counts.Memory = c.gates.count() > 0, residentIn(c.keepers.Path())
	return counts, true
}

// AskGates asks all gates for their counters. Each channel is closed when a gate has answered.
func (c *Container) AskGates() []<-chan struct{} {
	var asked []<-chan struct{}
	for _, s := range c.gates.all() {
		asked = append(asked, s.ask())
	}
	return asked
}

// countKernel fills in the counters of the kernel programs; false if the container has ended.
func (c *Container) countKernel(n *Counts) bool {
	c.counting.Lock()
	defer c.counting.Unlock()
	if c.uncounted {
		return false
	}
	var errs [3]error
	n.Connections, errs[0] = c.enforced.Connections()
	n.Denied, errs[1] = c.enforced.Denied()
	n.Decided, errs[2] = c.enforced.Decided()
	return errors.Join(errs[:]...) == nil
}

// counted has the counters of gates and of the agent's answers to them. They take 6 KiB, so a
// lasting counted has them only if a gate has counted something.
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

// ask asks a gate for its counters. The channel is closed when the gate has answered.
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

// counted returns the gate's last answer.
func (s *supervised) counted() counted {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := counted{&sums{agents: s.supervisor.Stats()}}
	if s.stats != nil {
		c.gates = *s.stats
	}
	return c
}

// counted returns the sums over all gates, including those that have ended.
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

// residentIn returns the memory of the processes in a cgroup, in bytes.
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
