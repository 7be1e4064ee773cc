// Package ports knows which ports of the host are whose: those that a container's rules reserve for
// it, and those that containers have bound.
//
// It opens no socket: whoever asks for a port says how the kernel is to be asked. It needs no
// privilege.
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

// Table has the ports of the host that containers have reserved, and those that they have bound
// by a rule. A holding says who was the last to bind a port, not that it still does: when
// another container asks for the port, a socket of ours finds out.
//
// Holdings of two containers do not overlap, so a container's own sockets never are in the
// way of its next one.
type Table struct {
	mu       sync.Mutex // guards what follows; no system call is made while it is held
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
	// unknown says that the container may have ports that ports does not know of.
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

// Reserve reserves for a container ports instead of those that it has reserved, unless
// one is another's.
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

// Forget takes back all that a container has reserved, and all that it has had.
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

// bindAlone is for a socket that shares its port with none: the kernel knows whether it is
// free. Whoever had it has it no more.
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

// take makes a port the container's for the time of a bind, or fails with EADDRINUSE. To try
// whether it is free can take a moment, in which others may have been faster.
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

// contest finds the holdings of others that a port is in, each with its binds so far. It is
// not open if one of them is being bound, or if it is reserved. With mu held.
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

// isReserved tells whether a port is reserved for another container. With mu held.
func (ps *Table) isReserved(o *Holder, p graft.Port) bool {
	return ps.reservesOne(o, p, endpoint.PortRange{First: p.At.Port(), Last: p.At.Port()})
}

// reservesOne tells whether a port of the range is reserved for another container, at the
// address of p. With mu held.
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

// hold returns the container's holding of a port, which it makes if there is none. With mu
// held.
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

// drop drops holdings of a port. With mu held.
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

// Has tells whether the container was the last to bind a port. That of both wildcards is
// one of them.
func (o *Holder) Has(p graft.Port) bool {
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.ContainsFunc(ps.held[slotOf(p)], func(h *holding) bool {
		return h.owner == o && h.bound && overlap(h.port, p)
	})
}

// Found notes a port that a container had before there was somebody who knew.
func (o *Holder) Found(p graft.Port) {
	ps := o.ports
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.hold(o, p).bound = true
}

// overlap tells whether the kernel counts one address as the other's, of the same port.
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

// narrower is what two ports that overlap have in common.
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

// Reservation is a port of the host's that a container shall get when it asks for it.
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

// SetUnknown says that the container may have ports that nobody has noted.
func (o *Holder) SetUnknown() { o.unknown = true }

// Unknown tells whether the container may have ports that nobody has noted.
func (o *Holder) Unknown() bool { return o.unknown }
