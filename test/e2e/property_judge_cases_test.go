package e2e

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// caseFrame is a packet that leaves by a link, of the container of a number or of nobody.
func caseFrame(number int, from, to, link, payload string, flags uint8) frame {
	f := frame{
		link: link, outgoing: true, protocol: unix.IPPROTO_UDP, whole: true, payload: payload, flags: flags,
		from: netip.MustParseAddrPort(from), to: netip.MustParseAddrPort(to),
	}
	if number != 0 {
		f.mark = markOfContainer(number)
	}
	if flags != 0 {
		f.protocol = unix.IPPROTO_TCP
	}
	return f
}

// into is the frame as it comes in.
func (f frame) into() frame {
	f.outgoing = false
	return f
}

func caseJudge() *judge {
	w := &propertyWorld{model: caseHost, ephemeral: modelPorts{32768, 60999}, services: []netip.AddrPort{
		netip.MustParseAddrPort("[::]:7101"), netip.MustParseAddrPort("198.51.100.1:51820"),
	}}
	var containers []*propertyContainer
	for i, name := range []string{"narrow", "server", "nothing"} {
		c := &propertyContainer{propertyRules: &propertyRules{modelContainer: caseContainers[name]}, number: i + 1, cgroup: uint64(100 + i)}
		c.sharing = []*propertyContainer{c}
		containers = append(containers, c)
	}
	containers[2].veth = "c3"
	return newJudge(w, containers)
}

// The judge finds each kind of what must not be, and nothing else.
func TestPropertyJudgeSent(t *testing.T) {
	t.Parallel()
	const client, remote = "198.51.100.1:5000", "198.51.100.2:7001"
	syn := caseFrame(1, client, remote, "srv", "", tcpSYN)
	marked := caseFrame(1, client, remote, "srv", "", 0)
	marked.mark |= markHadMark
	loud := caseFrame(1, client, remote, "srv", "", 0)
	loud.mark |= markHadPriority
	routed := caseFrame(1, client, remote, "srv", "", 0)
	routed.via = []netip.Addr{netip.MustParseAddr("203.0.113.2")}
	odd := caseFrame(1, client, remote, "srv", "", 0)
	odd.whole = false
	ping := caseFrame(1, client, remote, "srv", "", 0)
	ping.protocol = unix.IPPROTO_ICMP
	own := func(from, to string, flags uint8) frame {
		f := caseFrame(1, from, to, "lo", "", flags)
		f.mark |= markOnLoopback
		return f
	}
	asks := caseFrame(0, "203.0.113.2:9", "198.51.100.1:8100", "alt", "!1;", 0).into()
	for _, tt := range []struct {
		name   string
		frames []frame
		finds  string // "" for nothing
	}{
		{"allowed", []frame{syn, caseFrame(1, client, remote, "srv", "", tcpACK)}, ""},
		{"not allowed", []frame{caseFrame(1, client, "203.0.113.2:7001", "alt", "", tcpSYN)}, "do not let it send"},
		{"wrong source", []frame{caseFrame(1, "203.0.113.1:5000", remote, "srv", "", 0)}, "source"},
		{"no SYN", []frame{caseFrame(1, client, remote, "srv", "", tcpACK)}, "may not have"},
		{"mark", []frame{marked}, "marked"},
		{"priority", []frame{loud}, "priority"},
		{"source route", []frame{routed}, "source route"},
		{"fragment", []frame{odd}, "does not know"},
		{"ping", []frame{ping}, "ICMP"},
		{"nobody's", []frame{caseFrame(9, client, remote, "srv", "", 0)}, "no container"},
		{"the host's", []frame{caseFrame(0, client, "203.0.113.2:7001", "alt", "hello", 0)}, ""},
		{"its loopback", []frame{own("127.0.0.1:5000", "127.5.5.5:40000", tcpSYN), own("127.5.5.5:40000", "127.0.0.1:5000", tcpSYN|tcpACK)}, ""},
		{"its loopback, for nobody", []frame{own("127.0.0.1:5000", "127.0.0.1:0", tcpSYN), own("[::1]:5000", "[::1]:51820", 0)}, ""},
		{"its loopback, from outside", []frame{own("198.51.100.1:5000", "127.0.0.1:40000", 0), own("127.0.0.1:40000", "198.51.100.1:5000", 0)}, ""},
		{"its loopback, to outside", []frame{own("127.0.0.1:40000", "203.0.113.1:5000", 0)}, "do not let it send"},
		{"its loopback, to a service", []frame{own("127.0.0.1:5000", "127.0.0.1:7101", 0)}, "do not let it send"},
		{"another's loopback", []frame{caseFrame(1, "127.0.0.1:5000", "127.0.0.1:40000", "lo", "", 0)}, "do not let it send"},
		{"accepted on another's", []frame{caseFrame(2, "127.0.0.1:5000", "127.0.0.1:40000", "lo", "", tcpSYN|tcpACK)}, "accepted"},
		{"accepted of nobody on its loopback", []frame{own("127.0.0.1:40000", "127.0.0.1:5000", tcpSYN|tcpACK)}, "accepted"},
		{"answer", []frame{asks, caseFrame(2, "198.51.100.1:8100", "203.0.113.2:9", "alt", "", 0)}, ""},
		{"answer before", []frame{caseFrame(2, "198.51.100.1:8100", "203.0.113.2:9", "alt", "", 0), asks}, "nobody has asked"},
		{"accepted", []frame{caseFrame(2, "198.51.100.1:8100", "203.0.113.2:9", "alt", "", tcpSYN|tcpACK)}, ""},
		{"accepted elsewhere", []frame{caseFrame(2, "198.51.100.1:8102", "203.0.113.2:9", "alt", "", tcpSYN|tcpACK)}, "accepted"},
		{"escaped", []frame{caseFrame(0, client, remote, "srv", "@1.m.7;", 0)}, "socket of nobody's"},
		{"its own namespace", []frame{
			caseFrame(0, "10.88.0.11:5000", remote, "c3", "@3.m.7;", 0).into(),
			caseFrame(0, client, remote, "srv", "@3.m.7;", 0),
		}, ""},
		{"answer of a service", []frame{caseFrame(0, remote, client, "srv", "=@1.m.7;", 0)}, ""},
	} {
		j := caseJudge()
		j.sent(tt.frames)
		if tt.finds == "" && len(j.found) > 0 || tt.finds != "" && (len(j.found) != 1 || !strings.Contains(j.found[0].text, tt.finds)) {
			t.Errorf("%s: found %+v, want %q", tt.name, j.found, tt.finds)
		}
	}
}

func TestPropertyJudgeHeard(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		frame frame
		by    int
		finds bool
	}{
		{"covered", caseFrame(0, "198.51.100.2:7001", "198.51.100.1:5000", "srv", "!1;", 0).into(), 1, false},
		{"not covered", caseFrame(0, "203.0.113.2:7001", "198.51.100.1:5000", "alt", "!1;", 0).into(), 1, true},
		{"served", caseFrame(0, "203.0.113.2:7001", "198.51.100.1:8100", "alt", "!1;", 0).into(), 2, false},
		{"a service's", caseFrame(0, "198.51.100.2:7001", "198.51.100.1:51820", "srv", "!1;", 0).into(), 1, true},
		{"by the bridge", caseFrame(0, "203.0.113.2:7001", "10.88.0.11:5000", "c3", "!1;", 0), 3, false},
		{"another", caseFrame(0, "203.0.113.2:7001", "198.51.100.1:5000", "alt", "!2;", 0).into(), 1, false},
	} {
		j := caseJudge()
		j.heard([]frame{tt.frame}, j.containers[tt.by], []string{"!1;"})
		if (len(j.found) > 0) != tt.finds {
			t.Errorf("%s: found %+v", tt.name, j.found)
		}
	}
}

func TestPropertyJudgeHolding(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at     string
		cgroup uint64
		finds  bool
	}{
		{"0.0.0.0:40000", 100, false},
		{"0.0.0.0:9091", 100, true},
		{"0.0.0.0:9091", 7, false}, // the host's
		{"198.51.100.1:51820", 100, true},
		{"198.51.100.9:51820", 100, false},
		{"0.0.0.0:51820", 100, true},
		{"198.51.100.1:8100", 101, false},
	} {
		j := caseJudge()
		j.holding([]hostSocket{{protocol: unix.IPPROTO_UDP, at: netip.MustParseAddrPort(tt.at), cgroup: tt.cgroup}})
		if (len(j.found) > 0) != tt.finds {
			t.Errorf("%s: found %+v", tt.at, j.found)
		}
	}
}

// casePacket4 is an IPv4 header with options, and what follows.
func casePacket4(protocol uint8, fragment uint16, options, rest []byte) []byte {
	b := make([]byte, 20, 60)
	b[0], b[9] = 0x45+byte(len(options)/4), protocol
	binary.BigEndian.PutUint16(b[6:], fragment)
	copy(b[12:], []byte{198, 51, 100, 1, 198, 51, 100, 2})
	return append(append(b, options...), rest...)
}

func casePacket6(next uint8, rest ...[]byte) []byte {
	b := make([]byte, 40, 200)
	from, to := netip.MustParseAddr(hostAddr6).As16(), netip.MustParseAddr(remoteAddr6).As16()
	b[0], b[6] = 0x60, next
	copy(b[8:], from[:])
	copy(b[24:], to[:])
	for _, r := range rest {
		b = append(b, r...)
	}
	return b
}

func TestPropertyParse(t *testing.T) {
	t.Parallel()
	udp := []byte("\x13\x88\x1b\x59\x00\x0c\x00\x00@1.m;")
	tcp := append([]byte("\x13\x88\x1b\x59\x00\x00\x00\x00\x00\x00\x00\x00\x50\x02\x00\x00\x00\x00\x00\x00"), "@1.m;"...)
	via := netip.MustParseAddr(otherRemote6).As16()
	for _, tt := range []struct {
		name  string
		type_ uint16
		b     []byte
		want  string // of the frame
		via   int
		whole bool
	}{
		{"UDP", unix.ETH_P_IP, casePacket4(17, 0, nil, udp), "198.51.100.1:5000 198.51.100.2:7001 @1.m;", 0, true},
		{"TCP", unix.ETH_P_IP, casePacket4(6, 0, nil, tcp), "198.51.100.1:5000 198.51.100.2:7001 @1.m;", 0, true},
		{"unfragmentable", unix.ETH_P_IP, casePacket4(17, 0x4000, nil, udp), "198.51.100.1:5000 198.51.100.2:7001 @1.m;", 0, true},
		{"loose route", unix.ETH_P_IP, casePacket4(17, 0, []byte{1, 131, 7, 4, 203, 0, 113, 2}, udp), "198.51.100.1:5000 198.51.100.2:7001 @1.m;", 1, true},
		{"strict route", unix.ETH_P_IP, casePacket4(17, 0, []byte{1, 137, 11, 4, 1, 2, 3, 4, 5, 6, 7, 8}, udp), "198.51.100.1:5000 198.51.100.2:7001 @1.m;", 2, true},
		{"bad option", unix.ETH_P_IP, casePacket4(17, 0, []byte{131, 77, 4, 0}, udp), "198.51.100.1:0 198.51.100.2:0 ", 0, false},
		{"first fragment", unix.ETH_P_IP, casePacket4(17, 0x2000, nil, udp), "198.51.100.1:0 198.51.100.2:0 ", 0, false},
		{"later fragment", unix.ETH_P_IP, casePacket4(17, 0x0010, nil, udp), "198.51.100.1:0 198.51.100.2:0 ", 0, false},
		{"cut off", unix.ETH_P_IP, casePacket4(17, 0, nil, udp[:4]), "198.51.100.1:0 198.51.100.2:0 ", 0, false},
		{"ping", unix.ETH_P_IP, casePacket4(1, 0, nil, udp), "198.51.100.1:0 198.51.100.2:0 ", 0, true},
		{"no header", unix.ETH_P_IP, udp, "invalid AddrPort invalid AddrPort ", 0, false},
		{"ARP", unix.ETH_P_ARP, casePacket4(17, 0, nil, udp), "invalid AddrPort invalid AddrPort ", 0, false},
		{"UDP over IPv6", unix.ETH_P_IPV6, casePacket6(17, udp), "[2001:db8:1::1]:5000 [2001:db8:1::2]:7001 @1.m;", 0, true},
		{"padding", unix.ETH_P_IPV6, casePacket6(60, []byte{17, 0, 1, 4, 0, 0, 0, 0}, udp), "[2001:db8:1::1]:5000 [2001:db8:1::2]:7001 @1.m;", 0, true},
		{"routing header", unix.ETH_P_IPV6, casePacket6(43, []byte{17, 2, 2, 1, 0, 0, 0, 0}, via[:], udp), "[2001:db8:1::1]:5000 [2001:db8:1::2]:7001 @1.m;", 2, true},
		{"fragment of IPv6", unix.ETH_P_IPV6, casePacket6(44, []byte{17, 0, 0, 1, 0, 0, 0, 0}, udp), "[2001:db8:1::1]:0 [2001:db8:1::2]:0 ", 0, false},
		{"header cut off", unix.ETH_P_IPV6, casePacket6(0, []byte{17, 9, 0, 0, 0, 0, 0, 0}), "[2001:db8:1::1]:0 [2001:db8:1::2]:0 ", 0, false},
	} {
		f := parsePacket(tt.type_, tt.b)
		if got := f.from.String() + " " + f.to.String() + " " + f.payload; got != tt.want || len(f.via) != tt.via || f.whole != tt.whole {
			t.Errorf("%s: %q, %d via, whole %v; want %q, %d, %v", tt.name, got, len(f.via), f.whole, tt.want, tt.via, tt.whole)
		}
	}
}
