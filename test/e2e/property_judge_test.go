package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// judge compares what was captured, and what drivers have heard, with the model.
type judge struct {
	host       modelHost
	services   []netip.AddrPort
	containers map[int]*propertyContainer // by the number of their marks
	ephemeral  modelPorts

	asked   map[asker]bool
	opened  map[[2]netip.AddrPort]int  // by whom connections were allowed, each of their ends
	bridged map[string]bool            // payloads that have left a container's own namespace
	passed  map[[2]netip.AddrPort]bool // what the bridge has passed on to its ports
	found   []breach
	ports   map[uint16]*propertyContainer // of UDP sockets that containers have had on the host
	seen    map[string]int                // what was allowed, by kind
}

// asker is who has sent a datagram to a port of the host: a server on all addresses may
// answer from another than was asked.
type asker struct {
	from netip.AddrPort
	port uint16
}

// breach is something that the rules do not let happen.
type breach struct {
	key  string // of those of a kind, the first is shown
	text string
	by   int    // the container whose driver has called
	line string // part of the line that its driver has printed of the call, if that is known
}

func newJudge(w *propertyWorld, containers []*propertyContainer) *judge {
	j := &judge{
		host: w.model, services: w.services, ephemeral: w.ephemeral, containers: map[int]*propertyContainer{},
		asked: map[asker]bool{}, opened: map[[2]netip.AddrPort]int{}, bridged: map[string]bool{},
		passed: map[[2]netip.AddrPort]bool{}, ports: map[uint16]*propertyContainer{}, seen: map[string]int{},
	}
	for _, c := range containers {
		j.containers[c.number] = c
	}
	return j
}

// find notes something that the rules do not let happen to a packet, once for each source or
// destination.
func (j *judge) find(c *propertyContainer, f frame, end netip.AddrPort, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if c != nil {
		what = c.String() + " " + what
	}
	found := breach{key: what + end.String(), text: what + ": " + f.String(), by: f.container()}
	if call := callPattern.FindStringSubmatch(f.payload); call != nil {
		found.by, _ = strconv.Atoi(call[1])
		found.line = " " + call[2] + " "
	} else if f.protocol == unix.IPPROTO_TCP && f.flags&tcpACK == 0 {
		found.line = " " + f.to.String() + "/"
	} else if f.protocol == unix.IPPROTO_TCP {
		found.line = " listen "
	}
	if !slices.ContainsFunc(j.found, func(o breach) bool { return o.key == found.key }) {
		j.found = append(j.found, found)
	}
}

var (
	payloadPattern = regexp.MustCompile(`^[@=!][^;]*;`)
	callPattern    = regexp.MustCompile(`^@(\d+)\.(\w+\.\d+)[^;]*;`) // see driver_payload
)

// sent judges all packets that have passed, in their order.
func (j *judge) sent(frames []frame) {
	for _, f := range frames {
		if f.container() == 0 {
			j.unowned(f)
		} else if f.outgoing { // else it has been judged when it left
			j.owned(f)
		}
		if f.whole && f.protocol != unix.IPPROTO_TCP {
			j.asked[asker{f.from, f.to.Port()}] = true
		}
	}
}

// unowned judges a packet that has left no container's host socket. A driver's payload may
// only be in it if it comes from the container's own namespace.
func (j *judge) unowned(f frame) {
	call := callPattern.FindStringSubmatch(f.payload)
	if call == nil {
		return
	}
	if bridgePort(f.link) && !f.outgoing {
		j.bridged[call[0]] = true
	}
	if !j.bridged[call[0]] {
		j.find(nil, f, f.to, "what a driver sent left by a socket of nobody's")
	}
}

// owned judges a packet that leaves a container's host socket.
func (j *judge) owned(f frame) {
	c := j.containers[f.container()]
	ends, back := [2]netip.AddrPort{f.from, f.to}, [2]netip.AddrPort{f.to, f.from}
	switch {
	case c == nil:
		j.find(nil, f, f.to, "a packet has the mark %#x of no container", f.mark)
		return
	case !f.whole:
		j.find(c, f, f.to, "sent what the model does not know")
		return
	case f.mark&markHadMark != 0 && !c.mayMark():
		j.find(c, f, f.to, "marked a packet")
	case f.mark&markHadPriority != 0 && !c.mayMark():
		j.find(c, f, f.to, "gave a packet a priority that needs a right")
	}
	if f.link == "br0" {
		j.passed[ends] = true
	} else if bridgePort(f.link) && j.passed[ends] {
		return // which was judged on the bridge
	}
	p := modelPacket{from: f.from, to: f.to, via: f.via, link: f.link, tcp: f.protocol == unix.IPPROTO_TCP}
	switch {
	case f.protocol == unix.IPPROTO_ICMP || f.protocol == unix.IPPROTO_ICMPV6:
		j.find(c, f, f.to, "sent ICMP")
	case !p.tcp || f.flags&(tcpSYN|tcpACK) == tcpSYN:
		verdict, why := c.sends(j.host, p)
		asked := j.asked[asker{f.to, f.from.Port()}]
		if f.onLoopback() && verdict != modelAllowed && c.onLoopback(j.host, p, asked) && !j.serves(p.to) {
			verdict = modelOwn
		}
		if verdict == modelForbidden || verdict == modelAnswer && !asked {
			j.find(c, f, f.to, "sent what its rules do not let it send: %s", why)
			return
		}
		j.opened[ends] = c.number
		j.seen[kindOf(p, verdict)]++
	case f.flags&tcpSYN != 0:
		own := f.onLoopback() && j.opened[back] == c.number
		if !own && !c.accepts(j.host, f.from) {
			j.find(c, f, f.from, "accepted a connection where no rule lets it be reached")
			return
		}
		j.opened[ends] = c.number
		j.seen["connections accepted"]++
	case j.opened[ends] == 0 && j.opened[back] != c.number: // the answer with a SYN cookie is of no socket

		j.find(c, f, f.to, "sent a segment of a connection that it may not have")
	}
}

// kindOf is what a packet is to propertyKinds.
func kindOf(p modelPacket, verdict modelVerdict) string {
	family, protocol := "IPv6", "datagrams"
	if p.to.Addr().Is4() {
		family = "IPv4"
	}
	switch verdict {
	case modelAnswer:
		return "answers"
	case modelOwn:
		return "what stays on a loopback"
	}
	if p.tcp {
		protocol = "connections"
	}
	return protocol + " by " + family
}

// propertyKinds are what several seeds have to show: a judge that sees none of a kind
// could find nothing of it.
var propertyKinds = []string{
	"datagrams by IPv4", "datagrams by IPv6", "connections by IPv4", "connections by IPv6", "answers",
	"connections accepted", "datagrams heard", "datagrams kept out", "what stays on a loopback",
}

// bridgePort tells whether a link of the host leads from the bridge to a container.
func bridgePort(link string) bool { return strings.HasPrefix(link, "c") }

// heard judges the datagrams that a driver has received. Those of which no packet has passed
// the host's interfaces have not left the container's own namespace.
func (j *judge) heard(frames []frame, c *propertyContainer, payloads []string) {
	passed := map[string][]frame{}
	for _, f := range frames {
		if key := payloadPattern.FindString(f.payload); key != "" {
			passed[key] = append(passed[key], f)
		}
	}
	for _, payload := range payloads {
		ways := passed[payload]
		if len(ways) == 0 {
			continue
		}
		may := func(f frame) bool {
			return slices.ContainsFunc(c.sharing, func(by *propertyContainer) bool { return j.mayHear(by, f) })
		}
		if !slices.ContainsFunc(ways, may) {
			j.find(c, ways[0], ways[0].to, "heard what its rules do not let it hear")
			continue
		}
		j.seen["datagrams heard"]++
	}
}

// keptOut counts the host's and the remote's datagrams that were sent to a container's socket,
// were none that it may hear, and that it has not heard.
func (j *judge) keptOut(frames []frame) {
	for _, f := range frames {
		c := j.ports[f.to.Port()]
		if c != nil && strings.HasPrefix(f.payload, "!") && !f.outgoing && !j.mayHear(c, f) &&
			!slices.Contains(c.payloads(), payloadPattern.FindString(f.payload)) {
			j.seen["datagrams kept out"]++
		}
	}
}

// mayHear tells whether a container may receive a datagram that has passed so.
func (j *judge) mayHear(c *propertyContainer, f frame) bool {
	if c.veth != "" && f.link == c.veth && f.outgoing {
		return true // by the bridge, in its own namespace
	}
	if f.onLoopback() && f.container() == c.number {
		return true
	}
	taken := slices.ContainsFunc(j.services, func(s netip.AddrPort) bool {
		return s.Port() == f.to.Port() && (s.Addr() == f.to.Addr() || s.Addr().IsUnspecified() && j.host.owns(f.to.Addr()))
	})
	if taken && !c.serves(j.host, f.to) {
		return false
	}
	return c.hears(j.host, modelPacket{from: f.from, to: f.to, link: f.link})
}

// serves tells whether one of the host's services is at an address, which may be of the loopback.
func (j *judge) serves(at netip.AddrPort) bool {
	return slices.ContainsFunc(j.services, func(s netip.AddrPort) bool {
		return s.Port() == at.Port() && (s.Addr() == at.Addr() || s.Addr().IsUnspecified())
	})
}

// holding judges the ports that sockets of containers have on the host.
func (j *judge) holding(sockets []hostSocket) {
	for _, s := range sockets {
		for _, c := range j.containers {
			if c.cgroup != s.cgroup {
				continue
			}
			if s.protocol == unix.IPPROTO_UDP {
				j.ports[s.at.Port()] = c
			}
			if j.shares(s) || !c.holds(j.host, s.at, j.ephemeral) {
				f := frame{protocol: s.protocol, from: s.at}
				j.find(c, f, s.at, "holds a port of the host that no rule gives it")
			}
		}
	}
}

// shares tells whether a socket is at the address of one of the host's services, and would
// take what is sent to that.
func (j *judge) shares(s hostSocket) bool {
	if s.protocol == unix.IPPROTO_TCP && s.peer.Port() != 0 {
		return false
	}
	return slices.ContainsFunc(j.services, func(o netip.AddrPort) bool {
		return o.Port() == s.at.Port() &&
			(o.Addr() == s.at.Addr() || o.Addr().IsUnspecified() || s.at.Addr().IsUnspecified() && o.Addr().Is4() == s.at.Addr().Is4())
	})
}

// joined judges the multicast groups of drivers that are joined on the host: none may be.
func (j *judge) joined(groups []string) {
	for _, group := range groups {
		j.find(nil, frame{}, netip.AddrPort{}, "the group %s was joined on the host", group)
	}
}
