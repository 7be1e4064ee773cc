package container

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/translate"
)

// namedHosts opens the addresses in the DNS proxy's answers for names that match the name rules of a
// container, and closes them when their time is over. The kernel has a row for each address.
//
// Names and answers are hostile: who owns a name that matches a pattern can answer any number of
// addresses. A container has room for policy.OpenedMax of them, and nobody's address gives way to
// another one. A rule gets room for one more address only while it has fewer than there are free. So
// one rule alone takes half of the room at most, and leaves some for the names of each other rule.
type namedHosts struct {
	rules     []policy.NameRule
	kernel    opener
	log       *slog.Logger
	decisions *slog.Logger

	mu     sync.Mutex                       // guards what follows
	hosts  map[netip.Addr]map[int]time.Time // until when each rule opens an address, by the rule's index
	used   []int                            // addresses of each rule
	next   *time.Timer                      // for the first address whose time is over; nil: there is none
	due    time.Time                        // when next fires
	full   uint64                           // addresses for which there was no room
	said   time.Time                        // when that was last logged
	closed bool
}

// opener is an *enforcer.Enforcement.
type opener interface {
	SetOpened(addr netip.Addr, openings []policy.Opening) error
	Opened() map[netip.Addr][]policy.Opening
}

const (
	// sweepPause is the shortest time between two searches for addresses whose time is over.
	sweepPause = time.Second
	// sayPause is the shortest time between two messages that say the same.
	sayPause = time.Minute
)

// newNamedHosts also takes over the addresses that an earlier process has opened. They stay open for
// translate.Grace.
func newNamedHosts(rules []policy.NameRule, kernel opener, log, decisions *slog.Logger) *namedHosts {
	n := &namedHosts{
		rules: rules, kernel: kernel, log: log, decisions: decisions,
		hosts: map[netip.Addr]map[int]time.Time{}, used: make([]int, len(rules)),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	until := time.Now().Add(translate.Grace)
	for addr, openings := range kernel.Opened() {
		for i, r := range rules {
			for _, o := range openings {
				if o == r.Opening() {
					n.extend(addr, i, until)
				}
			}
		}
		n.wakeAt(until)
	}
	return n
}

// answered returns the function for dns.Options.Answered; nil if there are no name rules.
func (n *namedHosts) answered() func(name string, addr netip.Addr, ttl time.Duration) {
	if n == nil {
		return nil
	}
	return n.open
}

// open opens an address that is about to be answered for a name. ttl is the TTL of the answer.
func (n *namedHosts) open(name string, addr netip.Addr, ttl time.Duration) {
	var matching []int
	for i, r := range n.rules {
		if r.Matches(name) {
			matching = append(matching, i)
		}
	}
	if len(matching) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	until := time.Now().Add(max(0, min(ttl, translate.MaxTTL)) + translate.Grace)
	changed := false
	for _, i := range matching {
		_, has := n.hosts[addr][i]
		if !has && n.used[i] >= policy.OpenedMax-len(n.hosts) {
			n.noRoom(name, addr, n.rules[i])
			continue
		}
		n.extend(addr, i, until)
		changed = changed || !has
	}
	if len(n.hosts[addr]) == 0 { // there is no room
		return
	}
	if changed && n.put(addr) {
		n.decisions.Debug("opened by its name", "name", name, "host", addr, "ttl", ttl)
	}
	n.wakeAt(until)
}

// The callers of the methods below hold mu.

// extend notes that a rule opens an address until a time, or longer.
func (n *namedHosts) extend(addr netip.Addr, rule int, until time.Time) {
	if n.hosts[addr] == nil {
		n.hosts[addr] = map[int]time.Time{}
	}
	was, has := n.hosts[addr][rule]
	if !has {
		n.used[rule]++
	}
	if was.Before(until) {
		n.hosts[addr][rule] = until
	}
}

// put has the kernel open an address as the rules say. It tells whether the kernel has done so. If not,
// the address is closed, and sweep tries so again.
func (n *namedHosts) put(addr netip.Addr) bool {
	var by []policy.NameRule
	for i := range n.hosts[addr] {
		by = append(by, n.rules[i])
	}
	err := n.kernel.SetOpened(addr, policy.Openings(by))
	if err != nil {
		n.log.Error("a host is not reached by its name", "host", addr, "err", err)
		for i := range n.hosts[addr] {
			n.used[i]--
		}
		n.hosts[addr] = map[int]time.Time{}
		n.wakeAt(time.Now().Add(sweepPause))
	}
	return err == nil
}

// noRoom says that there is no room for an address.
func (n *namedHosts) noRoom(name string, addr netip.Addr, r policy.NameRule) {
	n.full++
	if now := time.Now(); n.said.IsZero() || now.Sub(n.said) >= sayPause {
		n.said = now
		n.log.Error("a host is not reached by its name, because the rule has opened too many addresses",
			"name", name, "host", addr, "rule", r.String(), "opened", len(n.hosts), "most", policy.OpenedMax, "refused", n.full)
	}
}

// wakeAt has sweep called at a time, or earlier.
func (n *namedHosts) wakeAt(at time.Time) {
	if n.closed || n.next != nil && !at.Before(n.due) {
		return
	}
	if n.next != nil {
		n.next.Stop()
	}
	n.due = at
	n.next = time.AfterFunc(time.Until(at), n.sweep)
}

// sweep closes the addresses whose time is over.
func (n *namedHosts) sweep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, next := time.Now(), time.Time{}
	if n.closed || n.next == nil || now.Before(n.due) { // it has been set anew since
		return
	}
	n.next = nil
	for addr, rules := range n.hosts {
		over := len(rules) == 0
		for i, until := range rules {
			switch {
			case !now.Before(until):
				delete(rules, i)
				n.used[i]--
				over = true
			case next.IsZero() || until.Before(next):
				next = until
			}
		}
		if over && n.put(addr) && len(rules) == 0 {
			delete(n.hosts, addr)
		}
	}
	if next.IsZero() {
		return
	}
	if soonest := now.Add(sweepPause); next.Before(soonest) {
		next = soonest
	}
	n.wakeAt(next)
}

// close ends the search for addresses whose time is over.
func (n *namedHosts) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.next != nil {
		n.next.Stop()
	}
}
