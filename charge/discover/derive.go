package discover

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// found is a container during a scan, with the facts that are kept between scans.
type found struct {
	Container
	group string // init's group in the cpu hierarchy
	stdio []File // init's first three descriptors, read once
	pod   pod    // read once
}

func sortedKeys[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }

// derive makes the containers from the table and returns the changes.
func (s *Scanner) derive() Changes {
	next := map[string]*found{}
	children := map[int][]*proc{}
	for _, pid := range sortedKeys(s.table) {
		p := s.table[pid]
		if parent := s.table[p.ppid]; !p.ended && parent != nil && (parent.role == shim || parent.role == monitor) {
			children[p.ppid] = append(children[p.ppid], p)
		}
	}
	for _, pid := range sortedKeys(s.table) {
		if p := s.table[pid]; p.role == shim || p.role == monitor {
			s.serve(p, children[pid], next)
		}
	}
	for id, f := range next {
		init := s.table[f.Init.PID]
		init.watch()
		old := s.containers[id]
		s.stale = s.stale || !init.settled || old == nil || old.Init != f.Init
	}
	s.addFiles(next)
	return s.replace(next)
}

// serve finds the containers of a shim or monitor, and its other children.
func (s *Scanner) serve(p *proc, children []*proc, next map[string]*found) {
	own, err := s.groupsOf(p)
	if err != nil {
		return
	}
	var ids []string
	var rest []*proc
	for _, c := range children {
		g, err := s.groupsOf(c)
		if err != nil {
			continue
		}
		id := containerOf(c.PID, g, own, p.id)
		if id == "" {
			rest = append(rest, c)
			continue
		}
		if f := next[id]; f == nil {
			next[id] = &found{Container: Container{ID: id, Init: c.Process}, group: g.cpu}
		} else if c.Start < f.Init.Start { // the younger process entered the container by exec
			f.Init, f.group = c.Process, g.cpu
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	kind := Shim
	if p.role == monitor {
		kind = Monitor
	}
	help(next, Helper{p.Process, kind, p.name, ids})
	for _, c := range rest {
		s.log(c, ids, next)
	}
}

// containerOf returns the id of the container that a shim's child is in. It is empty if the child
// is in the shim's own groups. A child's cpu group does not count if the child was placed as a
// helper.
func containerOf(pid int, g, own groups, shimID string) string {
	for _, path := range g.telling(pid) {
		if id := idIn(path, shimID); id != "" {
			return id
		}
	}
	// Whoever started the container may have chosen any name for its group.
	if !slices.Equal(g.others, own.others) || len(g.others) == 0 && g.cpu != own.cpu && !placed(g.cpu, pid) {
		return shimID
	}
	return ""
}

// log adds a child of a shim as a logger, if it is one.
func (s *Scanner) log(c *proc, ids []string, next map[string]*found) {
	if !c.settled || !s.isHosts(c) {
		return
	}
	environ, err := s.read(c.path("environ"))
	if err != nil {
		return
	}
	// The runtime is a child of the shim, too. It stays for long if the container is held.
	id := loggedID(environ)
	if !slices.Contains(ids, id) {
		return
	}
	help(next, Helper{c.Process, Logger, c.name, []string{id}})
	c.watch()
}

func help(next map[string]*found, h Helper) {
	for _, id := range h.Containers {
		next[id].Helpers = append(next[id].Helpers, h)
	}
}

// replace stores the new containers and returns the changes.
func (s *Scanner) replace(next map[string]*found) Changes {
	var c Changes
	for _, id := range slices.Sorted(maps.Keys(next)) {
		f := next[id]
		slices.SortFunc(f.Helpers, func(a, b Helper) int { return cmp.Compare(a.PID, b.PID) })
		old := s.containers[id]
		switch {
		case old == nil:
			c.Started = append(c.Started, f.Container)
		case old.Init != f.Init:
			c.Ended = append(c.Ended, old.Container)
			c.Started = append(c.Started, f.Container)
		case !reflect.DeepEqual(old.Container, f.Container):
			c.Changed = append(c.Changed, f.Container)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		if next[id] == nil {
			c.Ended = append(c.Ended, s.containers[id].Container)
		}
	}
	s.containers = next
	return c
}

// Containers returns the containers that the last scan found, sorted by id.
func (s *Scanner) Containers() []Container {
	var all []Container
	for _, f := range s.containers {
		all = append(all, f.Container)
	}
	slices.SortFunc(all, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
	return all
}
