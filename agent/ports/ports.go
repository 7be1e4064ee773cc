// Package ports knows which container has which port of the host: a container's rules reserve
// ports, and containers bind ports.
//
// It opens no socket: the caller that asks for a port brings the function that asks the kernel. It
// needs no privilege.
package ports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/policy"
)

// Table has the ports of the host that containers have reserved, and those that they have bound by
// a rule. A holding says which container was the last to bind a port, not that the port is still
// bound. When another container asks for the port, a socket of ours finds out.
//
// Holdings of two containers do not overlap, so a container's own sockets never block its next one.
type Table struct {
	mu       sync.Mutex // guards what follows; its holder makes no system call
	reserved map[string][]Reservation
	held     map[slot][]*holding
}

// slot is a port without its address.
type slot struct {
	netns    uint64
	protocol int
	port     uint16
}

// holding is a port with its address, of one container.
type holding struct {
	owner   *Holder
	port    graft.Port
	binding int    // binds that are being made
	began   uint64 // binds that were begun
	bound   bool   // one of them has succeeded
}

// Holder is a container that asks for ports. It implements graft.Ports.
type Holder struct {
	ports *Table
	name  string
	// unknown says that the container may have ports that the table does not know.
	unknown bool
}

// ReservedError says that a port is reserved for another container.
type ReservedError struct{ text string }

func (e *ReservedError) Error() string { return e.text }

// New makes a table without ports.
func New() *Table {
	return &Table{reserved: map[string][]Reservation{}, held: map[slot][]*holding{}}
}

// Holder returns the holder of a container's ports.
func (ps *Table) Holder(name string) *Holder { return &Holder{ports: ps, name: name} }

func slotOf(p graft.Port) slot { return slot{p.Netns, p.Protocol, p.At.Port()} }

// Reserve replaces the reserved ports of a container, unless another container has reserved one of
// the new ports.
func (ps *Table) Reserve(name string, list []Reservation) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for other, theirs := range ps.reserved {
		for _, t := range theirs {
			for _, p := range list {
				if other != name && p.breaks(t) {
					return &ReservedError{fmt.Sprintf("port %d of %s is reserved for container %s (%s); stop that one, or choose another port",
						p.At.Port(), p.At.Addr(), other, t.At)}
				}
			}
		}
	}
	ps.reserved[name] = list
	return nil
}

// Forget removes all reservations and all holdings of a container.
func (ps *Table) Forget(name string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.reserved, name)
	for _, s := range slices.Collect(maps.Keys(ps.held)) {
		ps.drop(s, func(h *holding) bool { return h.owner.name == name })
	}
}

// Bind implements graft.Ports.
func (o *Holder) Bind(p graft.Port, taken func(graft.Port) (bool, error), bind func() error) error {
	if taken == nil {
		return o.bindAlone(p, bind)
	}
	h, err := o.take(p, taken)
	if err != nil {
		return err
	}
	err = bind()
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	h.binding--
	h.bound = h.bound || err == nil
	if !h.bound && h.binding == 0 {
		ps.drop(slotOf(p), func(other *holding) bool { return other == h })
	}
	return err
}

// bindAlone binds a socket that shares its port with no other: the kernel knows whether the port is
// free. If the bind succeeds, other containers lose their holdings of the port.
func (o *Holder) bindAlone(p graft.Port, bind func() error) error {
	ps := o.ports
	ps.mu.Lock()
	reserved := ps.isReserved(o, p)
	ps.mu.Unlock()
	if reserved {
		return unix.EADDRINUSE
	}
	if err := bind(); err != nil {
		return err
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.drop(slotOf(p), func(h *holding) bool { return h.owner != o && overlap(h.port, p) })
	ps.hold(o, p).bound = true
	return nil
}

// take holds a port for the container during a bind, or fails with EADDRINUSE. The check whether
// the port is free takes a moment, in which another container may be faster.
func (o *Holder) take(p graft.Port, taken func(graft.Port) (bool, error)) (*holding, error) {
	ps := o.ports
	ps.mu.Lock()
	others, open := ps.contest(o, p)
	own := slices.ContainsFunc(ps.held[slotOf(p)], func(h *holding) bool { return h.owner == o && overlap(h.port, p) })
	ps.mu.Unlock()
	if !open {
		return nil, unix.EADDRINUSE
	}
	var try []graft.Port
	for h := range others {
		try = append(try, narrower(h.port, p))
	}
	if !own && !o.unknown {
		try = append(try, p)
	}
	for _, t := range try {
		if is, err := taken(t); err != nil {
			return nil, err
		} else if is {
			return nil, unix.EADDRINUSE
		}
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	now, open := ps.contest(o, p)
	for h, began := range now {
		open = open && others[h] == began
	}
	if !open {
		return nil, unix.EADDRINUSE
	}
	ps.drop(slotOf(p), func(h *holding) bool { return h.owner != o && overlap(h.port, p) })
	h := ps.hold(o, p)
	h.binding++
	h.began++
	return h, nil
}

// contest finds the holdings of others that overlap a port, each with its number of binds so far.
// The port is not open if one of these is being bound, or if the port is reserved. The caller holds
// mu.
func (ps *Table) contest(o *Holder, p graft.Port) (others map[*holding]uint64, open bool) {
	open = !ps.isReserved(o, p)
	others = map[*holding]uint64{}
	for _, h := range ps.held[slotOf(p)] {
		if h.owner != o && overlap(h.port, p) {
			others[h] = h.began
			open = open && h.binding == 0
		}
	}
	return others, open
}

// isReserved tells whether a port is reserved for another container. The caller holds mu.
func (ps *Table) isReserved(o *Holder, p graft.Port) bool {
	return ps.reservesOne(o, p, endpoint.PortRange{First: p.At.Port(), Last: p.At.Port()})
}

// reservesOne tells whether a port of the range is reserved for another container, at the address
// of p. The caller holds mu.
func (ps *Table) reservesOne(o *Holder, p graft.Port, of endpoint.PortRange) bool {
	for name, list := range ps.reserved {
		if name == o.name {
			continue
		}
		for _, t := range list {
			p.At = netip.AddrPortFrom(p.At.Addr(), t.At.Port())
			if t.Netns == p.Netns && t.Protocol.Meets(policy.Protocol(p.Protocol)) && of.Contains(t.At.Port()) && overlap(graft.Port{At: t.At}, p) {
				return true
			}
		}
	}
	return false
}

// Reserved implements graft.Ports.
func (o *Holder) Reserved(p graft.Port, of endpoint.PortRange) bool {
	o.ports.mu.Lock()
	defer o.ports.mu.Unlock()
	return o.ports.reservesOne(o, p, of)
}

// hold returns the container's holding of a port, and makes one if there is none. The caller holds
// mu.
func (ps *Table) hold(o *Holder, p graft.Port) *holding {
	s := slotOf(p)
	for _, h := range ps.held[s] {
		if h.owner == o && h.port == p {
			return h
		}
	}
	h := &holding{owner: o, port: p}
	ps.held[s] = append(ps.held[s], h)
	return h
}

// drop drops the holdings of a port that the function which selects. The caller holds mu.
func (ps *Table) drop(s slot, which func(*holding) bool) {
	if left := slices.DeleteFunc(ps.held[s], which); len(left) > 0 {
		ps.held[s] = left
	} else {
		delete(ps.held, s)
	}
}

// Others implements graft.Ports.
func (o *Holder) Others(p graft.Port) bool {
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.ContainsFunc(ps.held[slotOf(p)], func(h *holding) bool { return h.owner != o && overlap(h.port, p) })
}

// Has tells whether the container was the last to bind a port. A port of both wildcards counts as a
// port of each.
func (o *Holder) Has(p graft.Port) bool {
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.ContainsFunc(ps.held[slotOf(p)], func(h *holding) bool {
		return h.owner == o && h.bound && overlap(h.port, p)
	})
}

// Found notes a port that a container had bound before this table existed.
func (o *Holder) Found(p graft.Port) {
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.hold(o, p).bound = true
}

// overlap tells whether two addresses of the same port conflict for the kernel.
func overlap(a, b graft.Port) bool {
	x, y := a.At.Addr(), b.At.Addr()
	switch {
	case a.At.Port() != b.At.Port():
		return false
	case x.Is4() == y.Is4():
		return x == y || x.IsUnspecified() || y.IsUnspecified()
	}
	return a.Dual || b.Dual
}

// narrower returns the part that two overlapping ports have in common.
func narrower(a, b graft.Port) graft.Port {
	x, y := a.At.Addr(), b.At.Addr()
	switch {
	case a.Dual != b.Dual:
		if a.Dual {
			return b
		}
		return a
	case x.IsUnspecified() && !y.IsUnspecified():
		return b
	}
	return a
}

// Reservation is a port of the host that is kept for one container.
type Reservation struct {
	Netns    uint64
	Protocol policy.Protocol
	At       netip.AddrPort
}

func (p Reservation) breaks(other Reservation) bool {
	a, b := p.At.Addr(), other.At.Addr()
	return p.Netns == other.Netns && p.Protocol.Meets(other.Protocol) && p.At.Port() == other.At.Port() && a.Is4() == b.Is4() &&
		(a == b || a.IsUnspecified() || b.IsUnspecified())
}

// SetUnknown notes that the container may have ports that are not in the table.
func (o *Holder) SetUnknown() { o.unknown = true }

// Unknown tells whether the container may have ports that are not in the table.
func (o *Holder) Unknown() bool { return o.unknown }
