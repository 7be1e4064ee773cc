package sip

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// # Media
//
// A program's UDP socket hears hosts to which it has sent. But a peer may send media first, or be the
// only one that does. So the relay notes for each call (Call-ID) the ports that the program's session
// descriptions name, and the addresses that its peer's name. The program's ports are then open for those
// addresses, as far as the rules let the program send to them.

// Media is a port of a program that waits for what a host sends.
type Media struct {
	Port uint16 // as the program knows it
	Host netip.Addr
}

// CallLifetime is how long a call is known after its last session description, and a host after a message
// has named it: longer than a call may ring (timer C, RFC 3261 section 16.6).
const CallLifetime = 5 * time.Minute

const (
	// callsMax is how many calls of one container are known at a time.
	callsMax = 256
	// mediaMax is how many ports, and how many addresses, are known of one call.
	mediaMax = 8
	// callIDMax is the length of a Call-ID in bytes.
	callIDMax = 256
)

// call is what is known of one call.
type call struct {
	until time.Time
	ports []uint16
	hosts []netip.Addr
}

// calls are the calls of one container, by Call-ID.
type calls map[string]*call

// note takes a message, and returns what its call has open.
func (c calls) note(s *side, lines []string, body string, now time.Time) (open []Media) {
	ports, hosts := s.described(body)
	id := callID(lines)
	if len(ports)+len(hosts) == 0 || id == "" || len(id) > callIDMax {
		return nil
	}
	is := c[id]
	if is == nil || now.After(is.until) {
		c.makeRoom(now)
		is = &call{}
		c[id] = is
	}
	is.until = now.Add(CallLifetime)
	is.ports, is.hosts = added(is.ports, ports), added(is.hosts, hosts)
	for _, port := range is.ports {
		for _, host := range is.hosts {
			open = append(open, Media{port, host})
		}
	}
	return open
}

// makeRoom makes room for another call.
func (c calls) makeRoom(now time.Time) {
	if len(c) < callsMax {
		return
	}
	maps.DeleteFunc(c, func(_ string, is *call) bool { return now.After(is.until) })
	if len(c) >= callsMax {
		delete(c, first(c, lessNeeded))
	}
}

// lessNeeded tells whether a call makes room for a new one rather than another. A call of which the
// program has described ports stays rather than one that only peers know of: anybody can invent those.
func lessNeeded(a, b *call) bool {
	if invented := len(a.ports) == 0; invented != (len(b.ports) == 0) {
		return invented
	}
	return a.until.Before(b.until)
}

// added adds to a list what it lacks. Of a full list the oldest go.
func added[T comparable](list, more []T) []T {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list[max(0, len(list)-mediaMax):]
}

// callID returns the Call-ID of a message; empty: it has none.
func callID(lines []string) string {
	for _, line := range lines[1:] {
		if name, value := header(line); name == "call-id" {
			return strings.TrimSpace(line[value:])
		}
	}
	return ""
}

// described returns what a session description names: the program's own ports, or the addresses of
// its peer's.
func (s *side) described(body string) (ports []uint16, hosts []netip.Addr) {
	if !strings.HasPrefix(body, "v=0") {
		return nil, nil
	}
	for line := range strings.Lines(body) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		switch {
		case s.outwards && strings.HasPrefix(line, "m="):
			if port, err := strconv.ParseUint(fields[1], 10, 16); err == nil && port != 0 {
				ports = append(ports, uint16(port), uint16(port|1)) // of RTCP (RFC 3550 section 11)
			}
		case s.outwards && strings.HasPrefix(line, "a=rtcp:"):
			port, err := strconv.ParseUint(strings.TrimPrefix(fields[0], "a=rtcp:"), 10, 16)
			if err == nil && port != 0 {
				ports = append(ports, uint16(port))
			}
		case !s.outwards && strings.HasPrefix(line, "c=IN"):
			addr, err := netip.ParseAddr(strings.Trim(fields[2], "[]"))
			if err == nil && addr.Is6() && !addr.Is4In6() && addr.Zone() == "" && addr != s.Own6 {
				hosts = append(hosts, addr)
			}
		}
	}
	return ports, hosts
}
