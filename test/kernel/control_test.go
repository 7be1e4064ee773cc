// Relied upon: which control messages of sendmsg(2) on a UDP socket take effect,
// and for whom. No capability is needed for the interface (IP_PKTINFO,
// IPV6_PKTINFO), for another source address of the host, for IPv4 options that are
// no source route, nor, where the socket is IP_FREEBIND or IPV6_FREEBIND, for any
// IPv6 source. So none of those is kept from programs by taking capabilities.
//
// Two depend on the kernel. An IPv4 source route (IP_RETOPTS) needs CAP_NET_RAW on
// 6.18, and on the newest releases of 5.10, 6.1 and 6.12; on earlier releases of
// those everyone may send one. A routing header of type 2 (IPV6_RTHDR) needs no
// capability anywhere if the kernel has CONFIG_IPV6_MIP6, as Debian's have. Both
// lead a datagram to where no sendmsg program has judged. A cgroup_skb/egress
// program sees both (egress_test.go), and the mark, priority, time and interface of
// all others.
//
// Of TCP, the mark and priority of a control message have no effect, and those of
// IP and IPv6 are ignored; SO_MARK wants the capability all the same. Its error is
// EPERM on 6.18, EINVAL before.
//
// Since: SO_MARK 5.10, by CAP_NET_RAW 5.17; SO_PRIORITY 6.14.
// By: bpf (the egress program), oci (CAP_NET_RAW).

package kernel

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Offsets in struct __sk_buff.
const (
	skbMark     = 8
	skbPriority = 32
	skbIfindex  = 40
	skbTstamp   = 152
)

// left is a datagram that left, as the egress program and the wire show it.
type left struct {
	packet
	mark, priority, ifindex, tstamp uint32
	second                          bool // by the second wire
}

// controlRig is what control messages are tried on.
type controlRig struct {
	first, second *wire
	cg            *cgroup
	egress        record
	outside       int // a socket outside of the cgroup
}

func newControlRig(t *testing.T) *controlRig {
	t.Helper()
	first, second := twoWires(t)
	cg, egress := newCgroup(t), newRecord(t)
	attach(t, cg, ebpf.AttachCGroupInetEgress, program(1, egress.note(skbMark, skbPriority, skbIfindex),
		asm.Instructions{asm.LoadMem(asm.R7, asm.R6, skbTstamp, asm.DWord)}, egress.keep(4, asm.R7)))
	return &controlRig{first, second, cg, egress, socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)}
}

// remote is the address that the cases' datagrams are sent to.
func remote(domain int) string {
	if domain == unix.AF_INET6 {
		return "[2001:db8:1::9]:9"
	}
	return "203.0.113.9:9"
}

// send sends a datagram with the control message and these capabilities, and finds
// what has left, if anything has.
func (r *controlRig) send(t *testing.T, c controlCase, capabilities ...int) (l *left, sent error) {
	t.Helper()
	fd := r.cg.socket(t, c.domain, unix.SOCK_DGRAM, 0)
	for _, o := range c.options {
		try(t, "set option", unix.SetsockoptString(fd, o.level, o.name, string(o.value)))
	}
	r.egress.runs(t)
	withCapabilities(t, capabilities, func() {
		sent = unix.Sendmsg(fd, []byte("x"), c.message, sockaddr(remote(c.domain)), 0)
	})
	for _, w := range []*wire{r.first, r.second} {
		for p := w.until(t, r.outside); p != nil; p = w.until(t, -1) {
			word := func(i int) uint32 { return r.egress.word(t, i) }
			l = &left{p, word(1), word(2), word(3), word(4), w == r.second}
		}
	}
	return l, sent
}

// ifindex is the interface that a datagram left by.
func (r *controlRig) ifindex(l *left) uint32 {
	if l.second {
		return uint32(r.second.ifindex)
	}
	return uint32(r.first.ifindex)
}

func TestControlMessages(t *testing.T) {
	r := newControlRig(t)
	cases := append(controlCases4(r.second.ifindex), controlCases6(r.second.ifindex)...)
	for _, c := range append(cases, controlCasesOfSockets(t)...) {
		for _, by := range []struct {
			name         string
			capabilities []int
			want         error
		}{
			{"without capabilities", nil, c.who.none},
			{"with CAP_NET_RAW", []int{unix.CAP_NET_RAW}, c.who.raw},
			{"with CAP_NET_ADMIN", []int{unix.CAP_NET_ADMIN}, c.who.admin},
		} {
			what := c.name + " " + by.name
			l, sent := r.send(t, c, by.capabilities...)
			if c.absent != nil && errors.Is(sent, c.absent) {
				continue // for all or for nobody: the kernel was built so
			}
			want(t, what, sent, by.want)
			if (sent == nil) != (l != nil) {
				t.Errorf("%s: %v, and what left is %v", what, sent, l)
			} else if l != nil && (!c.effect(*l) || l.ifindex != r.ifindex(l)) {
				t.Errorf("%s has no effect: %+v", what, *l)
			}
		}
	}
}

// TestControlMessagesOfConnectedSockets relies on the same programs as unconnected
// sockets do: a control message is enough for sendmsg4 and sendmsg6 to run.
func TestControlMessagesOfConnectedSockets(t *testing.T) {
	r := newControlRig(t)
	runs := map[int]record{
		unix.AF_INET:  watch(t, r.cg, ebpf.AttachCGroupUDP4Sendmsg),
		unix.AF_INET6: watch(t, r.cg, ebpf.AttachCGroupUDP6Sendmsg),
	}
	cases := append(controlCases4(r.second.ifindex), controlCases6(r.second.ifindex)...)
	for _, c := range append(cases, controlCasesOfSockets(t)...) {
		fd := r.cg.socket(t, c.domain, unix.SOCK_DGRAM, 0)
		for _, o := range c.options {
			try(t, "set option", unix.SetsockoptString(fd, o.level, o.name, string(o.value)))
		}
		try(t, "connect", unix.Connect(fd, sockaddr(remote(c.domain))))
		runs[c.domain].runs(t)
		sendmsg(t, fd, nil, "")
		want(t, c.name+": runs without a control message", runs[c.domain].runs(t), 0)
		if unix.Sendmsg(fd, []byte("x"), c.message, nil, 0) == nil {
			want(t, c.name+": runs", runs[c.domain].runs(t), 1)
		}
	}
}

func TestControlMessagesOfTCP(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			r := newTCPRig(t, l.domain, l.address)
			second := newWire(t, "second", "198.51.100.1/24", "2001:db8:2::1/64", "198.51.100.9")
			egress := newRecord(t)
			attach(t, r.ofClient, ebpf.AttachCGroupInetEgress, program(1, egress.note(skbMark, skbPriority, skbLen)))
			fd, conn := r.connect(t)
			egress.runs(t)
			_, err := unix.Write(fd, []byte("x"))
			try(t, "write", err)
			plain := egress.word(t, 3)

			cases := append(controlCases4(second.ifindex), controlCases6(second.ifindex)...)
			for _, c := range append(cases, controlCasesOfSockets(t)...) {
				if c.domain != l.domain || len(c.options) > 0 {
					continue
				}
				egress.runs(t)
				sent := unix.Sendmsg(fd, []byte("x"), c.message, nil, 0)
				if !c.ofSocket {
					want(t, c.name, sent, nil)
				}
				if sent == nil {
					_, err := unix.Read(conn, make([]byte, 1))
					try(t, "read", err)
					want(t, c.name+": mark", egress.word(t, 1), 0)
					want(t, c.name+": priority", egress.word(t, 2), 0)
					want(t, c.name+": length", egress.word(t, 3), plain)
				}
			}
			withCapabilities(t, nil, func() {
				if unix.Sendmsg(fd, []byte("x"), markMessage(7), nil, 0) == nil {
					t.Error("SO_MARK without capabilities is taken")
				}
			})
		})
	}
}
