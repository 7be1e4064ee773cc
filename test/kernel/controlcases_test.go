package kernel

import (
	"encoding/binary"
	"net"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Numbers that x/sys does not have.
const (
	ipRetopts = 7  // IP_RETOPTS of linux/in.h
	soTxtime  = 61 // SO_TXTIME and SCM_TXTIME of asm-generic/socket.h
)

// controlMessage is a control message of any kind.
func controlMessage(level, typ int32, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

func controlNumber(level, typ int32, n uint32) []byte {
	return controlMessage(level, typ, binary.NativeEndian.AppendUint32(nil, n))
}

// who says whose control messages take effect: the error for a caller without
// capabilities, with CAP_NET_RAW alone, and with CAP_NET_ADMIN alone.
type who struct{ none, raw, admin error }

var (
	everyone = who{}
	rawOnly  = who{none: unix.EPERM, admin: unix.EPERM}
	either   = who{none: unix.EPERM}
	invalid  = who{unix.EINVAL, unix.EINVAL, unix.EINVAL}
	noRoute  = who{unix.ENETUNREACH, unix.ENETUNREACH, unix.ENETUNREACH}
)

type option struct {
	level, name int
	value       []byte
}

type controlCase struct {
	name     string
	domain   int
	options  []option // set with all capabilities
	message  []byte
	who      who
	effect   func(left) bool
	absent   error // of a kernel that was built without it
	ofSocket bool  // of SOL_SOCKET, which TCP looks at too
}

// set is an option that is on.
func set(level, name int) []option { return []option{{level, name, []byte{1, 0, 0, 0}}} }

// sourceRoute is an IPv4 option that leads by the second wire. It ends with one
// byte more, as the length has to be a multiple of four.
func sourceRoute(kind byte) []byte {
	return controlMessage(unix.SOL_IP, ipRetopts, []byte{kind, 7, 4, 198, 51, 100, 9, 0})
}

func routed(l left) bool {
	return l.second && l.destination() == "198.51.100.9" && l.headers() == 28
}

func spoofed(source string) func(left) bool {
	return func(l left) bool { return l.source() == source }
}

func controlCases4(second int) []controlCase {
	foreign := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{192, 0, 2, 77}})
	all := []controlCase{
		{name: "IP_RETOPTS, LSRR", message: sourceRoute(131), who: rawOnly, effect: routed},
		{name: "IP_RETOPTS, SSRR", message: sourceRoute(137), who: rawOnly, effect: routed},
		{
			name: "IP_RETOPTS, no operation", message: controlMessage(unix.SOL_IP, ipRetopts, []byte{1, 1, 1, 1}),
			effect: func(l left) bool { return l.headers() == 24 },
		},
		{
			name: "IP_TTL", message: controlNumber(unix.SOL_IP, unix.IP_TTL, 3),
			effect: func(l left) bool { return l.packet[8] == 3 },
		},
		{
			name: "IP_TOS", message: controlNumber(unix.SOL_IP, unix.IP_TOS, 0x10),
			effect: func(l left) bool { return l.packet[1] == 0x10 && l.priority == 6 },
		},
		{
			name: "IP_PKTINFO, interface", message: unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(second)}),
			effect: func(l left) bool { return l.second && l.destination() == "203.0.113.9" },
		},
		{
			name:    "IP_PKTINFO, address of the host",
			message: unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{198, 51, 100, 1}}),
			effect:  spoofed("198.51.100.1"),
		},
		{name: "IP_PKTINFO, foreign address", message: foreign, who: noRoute},
		{
			name: "IP_PKTINFO, foreign address, IP_FREEBIND", message: foreign, who: noRoute,
			options: set(unix.SOL_IP, unix.IP_FREEBIND),
		},
		{
			name: "IP_PKTINFO, foreign address, IP_TRANSPARENT", message: foreign,
			options: set(unix.SOL_IP, unix.IP_TRANSPARENT), effect: spoofed("192.0.2.77"),
		},
		{
			name: "IP_ORIGDSTADDR", who: invalid,
			message: controlMessage(unix.SOL_IP, unix.IP_ORIGDSTADDR, make([]byte, unix.SizeofSockaddrInet4)),
		},
	}
	for i := range all {
		all[i].domain = unix.AF_INET
	}
	return all
}

func controlCases6(second int) []controlCase {
	foreign := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte{0x20, 1, 0xd, 0xb8, 0, 0xff, 15: 7}})
	routing := func(kind, left byte) []byte {
		return controlMessage(unix.SOL_IPV6, unix.IPV6_RTHDR,
			append([]byte{0, 2, kind, left, 0, 0, 0, 0}, net.ParseIP("2001:db8:2::9")...))
	}
	padding := func(typ int32) []byte { // extension header with an option that means nothing
		return controlMessage(unix.SOL_IPV6, typ, []byte{0, 0, 1, 4, 0, 0, 0, 0})
	}
	next := func(header byte) func(left) bool {
		return func(l left) bool { return l.packet[6] == header }
	}
	all := []controlCase{
		{
			name: "IPV6_PKTINFO, interface", message: unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(second)}),
			effect: func(l left) bool { return l.second && l.destination() == "2001:db8:1::9" },
		},
		{name: "IPV6_PKTINFO, foreign address", message: foreign, who: invalid},
		{
			name: "IPV6_PKTINFO, foreign address, IPV6_FREEBIND", message: foreign,
			options: set(unix.SOL_IPV6, unix.IPV6_FREEBIND), effect: spoofed("2001:db8:ff::7"),
		},
		{
			name: "IPV6_PKTINFO, foreign address, IP_FREEBIND", message: foreign,
			options: set(unix.SOL_IP, unix.IP_FREEBIND), effect: spoofed("2001:db8:ff::7"),
		},
		{
			name: "IPV6_HOPLIMIT", message: controlNumber(unix.SOL_IPV6, unix.IPV6_HOPLIMIT, 3),
			effect: func(l left) bool { return l.packet[7] == 3 },
		},
		{
			name: "IPV6_TCLASS", message: controlNumber(unix.SOL_IPV6, unix.IPV6_TCLASS, 0x10),
			effect: func(l left) bool { return l.packet[0]&15 == 1 && l.packet[1]>>4 == 0 },
		},
		{
			name: "IPV6_RTHDR, type 2", message: routing(2, 1), absent: unix.EINVAL,
			effect: func(l left) bool { return l.second && l.destination() == "2001:db8:2::9" },
		},
		{name: "IPV6_RTHDR, type 0", message: routing(0, 1), who: invalid},
		{name: "IPV6_RTHDR, type 4", message: routing(4, 0), who: invalid},
		{name: "IPV6_HOPOPTS", message: padding(unix.IPV6_HOPOPTS), who: rawOnly, effect: next(unix.IPPROTO_HOPOPTS)},
		{name: "IPV6_DSTOPTS", message: padding(unix.IPV6_DSTOPTS), who: rawOnly, effect: next(unix.IPPROTO_DSTOPTS)},
		{
			name: "IPV6_RTHDRDSTOPTS, alone", message: padding(unix.IPV6_RTHDRDSTOPTS), who: rawOnly,
			effect: next(unix.IPPROTO_UDP),
		}, // left out without a routing header
		{
			name: "IPV6_ORIGDSTADDR", who: invalid,
			message: controlMessage(unix.SOL_IPV6, unix.IPV6_ORIGDSTADDR, make([]byte, unix.SizeofSockaddrInet6)),
		},
	}
	for i := range all {
		all[i].domain = unix.AF_INET6
	}
	return all
}

// controlCasesOfSockets are those of SOL_SOCKET, for both families.
func controlCasesOfSockets(t *testing.T) (all []controlCase) {
	marking, high, low := either, either, everyone
	if !linuxIs(t, 5, 17) {
		marking.raw = unix.EPERM
	}
	if !linuxIs(t, 6, 14) {
		high, low = invalid, invalid
	}
	priority := func(n uint32) []byte { return controlNumber(unix.SOL_SOCKET, unix.SO_PRIORITY, n) }
	at := controlMessage(unix.SOL_SOCKET, soTxtime, []byte{7, 0, 0, 0, 0, 0, 0, 0})
	for _, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, c := range []controlCase{
			{name: "SO_MARK", message: markMessage(7), who: marking, effect: func(l left) bool { return l.mark == 7 }},
			{name: "SO_PRIORITY 5", message: priority(5), who: low, effect: func(l left) bool { return l.priority == 5 }},
			{
				name: "SO_PRIORITY 15", message: priority(15), who: high,
				effect: func(l left) bool { return l.priority == 15 },
			},
			{name: "SCM_TXTIME alone", message: at, who: invalid},
			{
				name: "SCM_TXTIME, SO_TXTIME", message: at, effect: func(l left) bool { return l.tstamp == 7 },
				options: []option{{unix.SOL_SOCKET, soTxtime, []byte{unix.CLOCK_MONOTONIC, 7: 0}}},
			},
		} {
			c.domain, c.ofSocket = domain, true
			all = append(all, c)
		}
	}
	return all
}

// twoWires makes a namespace with two interfaces. A default route of IPv6 leads by
// the second.
func twoWires(t *testing.T) (first, second *wire) {
	t.Helper()
	enterNetns(t)
	first = newWire(t, "first", "203.0.113.1/24", "2001:db8:1::1/64", "203.0.113.9")
	second = newWire(t, "second", "198.51.100.1/24", "2001:db8:2::1/64", "198.51.100.9")
	first.neighbour(t, "2001:db8:1::9")
	second.neighbour(t, "203.0.113.9", "2001:db8:1::9", "2001:db8:2::9")
	_, all, err := net.ParseCIDR("::/0")
	try(t, "parse prefix", err)
	try(t, "add default route", netlink.RouteAdd(&netlink.Route{LinkIndex: second.ifindex, Dst: all, Priority: 5000}))
	return first, second
}
