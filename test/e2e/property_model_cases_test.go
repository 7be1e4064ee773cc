package e2e

import (
	"net/netip"
	"testing"
)

// The host and the containers of the model's own tests.
var (
	caseHost = modelHost{
		own: []netip.Addr{
			netip.MustParseAddr(hostAddr4), netip.MustParseAddr(sourceAddr4), netip.MustParseAddr(otherHostAddr4),
			netip.MustParseAddr(hostAddr6), netip.MustParseAddr("fe80::1"), netip.MustParseAddr(linkLocal4),
		},
		links: []modelLink{
			{"srv", netip.MustParsePrefix("198.51.100.0/24")},
			{"srv", netip.MustParsePrefix("2001:db8:1::/64")},
			{"srv", netip.MustParsePrefix("169.254.0.0/16")},
			{"alt", netip.MustParsePrefix("203.0.113.0/24")},
		},
	}
	caseContainers = map[string]modelContainer{
		"nothing": {},
		"all":     {egress: []modelEgress{caseEgress("0.0.0.0/0", modelPorts{}, "0.0.0.0"), caseEgress("::/0", modelPorts{}, "::")}},
		"narrow": {egress: []modelEgress{
			caseEgress("198.51.100.0/24", modelPorts{}, sourceAddr4),
			caseEgress("198.51.100.2/32", modelPorts{7001, 7001}, hostAddr4),
			caseEgress("198.51.100.2/32", modelPorts{7000, 7009}, otherHostAddr4),
		}},
		"special": {egress: []modelEgress{
			caseEgress("127.0.0.1/32", modelPorts{}, "0.0.0.0"), caseEgress("169.254.7.0/24", modelPorts{}, "0.0.0.0"),
			caseEgress("198.51.100.255/32", modelPorts{}, "0.0.0.0"), caseEgress("224.0.0.0/4", modelPorts{}, hostAddr4),
		}},
		"broadcast": {egress: []modelEgress{
			caseEgress("198.51.100.0/24", modelPorts{}, "0.0.0.0"), caseEgress("255.255.255.255/32", modelPorts{}, "0.0.0.0"),
		}},
		"server":   {ingress: []modelEndpoint{caseEndpoint(hostAddr4, 8100), caseEndpoint("::", 8101)}},
		"nameable": {nameable: []modelEndpoint{{addr: netip.MustParseAddr(sourceAddr4)}}},
		"relay":    {relay: []uint16{50001}},
	}
)

func caseEndpoint(addr string, port uint16) modelEndpoint {
	return modelEndpoint{netip.MustParseAddr(addr), modelPorts{port, port}}
}

func caseEgress(prefix string, ports modelPorts, from string) modelEgress {
	return modelEgress{netip.MustParsePrefix(prefix), ports, modelEndpoint{addr: netip.MustParseAddr(from)}}
}

func casePacket(from, to, link string) modelPacket {
	return modelPacket{from: netip.MustParseAddrPort(from), to: netip.MustParseAddrPort(to), link: link}
}

func TestPropertyModelSends(t *testing.T) {
	t.Parallel()
	const no, yes, answer = modelForbidden, modelAllowed, modelAnswer
	for _, tt := range []struct {
		container      string
		from, to, link string
		want           modelVerdict
	}{
		{"nothing", "198.51.100.1:5000", "198.51.100.2:7001", "srv", no},
		{"all", "198.51.100.1:5000", "198.51.100.2:7001", "srv", yes},
		{"all", "198.51.100.9:5000", "198.51.100.2:7001", "srv", yes},
		{"all", "198.51.100.77:5000", "198.51.100.2:7001", "srv", no}, // not the host's
		{"all", "127.0.0.1:5000", "198.51.100.1:7001", "lo", no},
		{"all", "198.51.100.1:5000", "198.51.100.1:7001", "lo", yes},
		{"all", "198.51.100.1:5000", "198.51.100.2:7001", "alt", yes}, // a datagram, by another road
		{"all", "198.51.100.1:5000", "203.0.113.2:7001", "alt", yes},
		{"all", "127.0.0.1:5000", "127.0.0.1:7001", "lo", no},
		{"all", "198.51.100.1:5000", "198.51.100.255:7001", "srv", no},
		{"all", "198.51.100.1:5000", "198.51.100.255:7001", "alt", yes}, // where it is nobody's broadcast
		{"all", "198.51.100.1:5000", "255.255.255.255:7001", "srv", no},
		{"all", "198.51.100.1:5000", "224.0.0.251:7001", "srv", no},
		{"all", "169.254.7.1:5000", "169.254.7.2:7001", "srv", no},
		{"all", "[2001:db8:1::1]:5000", "[2001:db8:1::2]:7001", "srv", yes},
		{"all", "[::1]:5000", "[2001:db8:1::2]:7001", "srv", no},
		{"all", "[2001:db8:1::1]:5000", "[ff02::1]:7001", "srv", no},
		{"all", "[fe80::1]:5000", "[fe80::2]:7001", "srv", no},
		{"narrow", "198.51.100.1:5000", "198.51.100.2:7001", "srv", yes},
		{"narrow", "203.0.113.1:5000", "198.51.100.2:7001", "srv", no},
		{"narrow", "203.0.113.1:5000", "198.51.100.2:7002", "srv", yes},
		{"narrow", "198.51.100.9:5000", "198.51.100.2:80", "srv", yes}, // the wider prefix has that port
		{"narrow", "198.51.100.1:5000", "198.51.100.2:80", "srv", no},
		{"narrow", "198.51.100.9:5000", "203.0.113.2:7001", "alt", no},
		{"narrow", "198.51.100.9:5000", "198.51.100.255:7001", "srv", no},
		{"special", "127.0.0.1:5000", "127.0.0.1:7001", "lo", yes},
		{"special", "127.0.0.1:5000", "127.0.0.2:7001", "lo", no},
		{"special", "169.254.7.1:5000", "169.254.7.2:7001", "srv", yes},
		{"special", "198.51.100.1:5000", "198.51.100.255:7001", "srv", no},
		{"broadcast", "198.51.100.1:5000", "198.51.100.255:7001", "srv", yes},
		{"broadcast", "198.51.100.1:5000", "255.255.255.255:7001", "srv", yes},
		{"broadcast", "198.51.100.1:5000", "203.0.113.255:7001", "alt", no},
		{"special", "127.0.0.1:5000", "224.0.0.251:7001", "lo", no}, // the rule says from where
		{"special", "198.51.100.1:5000", "224.0.0.251:7001", "alt", yes},
		{"server", "198.51.100.1:8100", "203.0.113.2:7001", "alt", answer},
		{"server", "198.51.100.1:8101", "203.0.113.2:7001", "alt", answer}, // of [::], which has IPv4 too
		{"server", "198.51.100.1:8102", "203.0.113.2:7001", "alt", no},
		{"server", "198.51.100.9:8100", "203.0.113.2:7001", "alt", no},
		{"server", "127.0.0.1:5000", "198.51.100.1:8100", "lo", yes}, // its own
		{"server", "198.51.100.1:5000", "198.51.100.1:8102", "lo", no},
		{"nameable", "198.51.100.9:5000", "203.0.113.2:7001", "alt", yes},
		{"nameable", "198.51.100.1:5000", "203.0.113.2:7001", "alt", no},
		{"nameable", "198.51.100.9:5000", "224.0.0.251:7001", "srv", answer}, // only to who has asked
		{"relay", "127.9.9.9:5000", "127.1.0.53:50001", "lo", yes},
		{"relay", "127.9.9.9:5000", "127.1.0.53:50002", "lo", no},
		{"relay", "127.9.9.9:5000", "127.1.0.53:50001", "srv", no},
	} {
		if got, why := caseContainers[tt.container].sends(caseHost, casePacket(tt.from, tt.to, tt.link)); got != tt.want {
			t.Errorf("%s, %s to %s by %s: %d, want %d; %s", tt.container, tt.from, tt.to, tt.link, got, tt.want, why)
		}
	}
}

func TestPropertyModelSourceRoutes(t *testing.T) {
	t.Parallel()
	p := casePacket("198.51.100.1:5000", "198.51.100.2:7001", "srv")
	p.via = []netip.Addr{netip.MustParseAddr("198.51.100.3")}
	if got, _ := caseContainers["all"].sends(caseHost, p); got != modelForbidden {
		t.Errorf("a source route: %d", got)
	}
}

// A connection goes the host's way.
func TestPropertyModelRoads(t *testing.T) {
	t.Parallel()
	p := casePacket("198.51.100.1:5000", "198.51.100.2:7001", "alt")
	p.tcp = true
	if got, _ := caseContainers["all"].sends(caseHost, p); got != modelForbidden {
		t.Errorf("a SYN by another road: %d", got)
	}
	if caseContainers["nothing"].accepts(caseHost, p.from) {
		t.Error("a listener without a rule accepts")
	}
}

// A TCP connection is not opened because somebody has asked for something.
func TestPropertyModelServersOpenNothing(t *testing.T) {
	t.Parallel()
	p := casePacket("198.51.100.1:8100", "203.0.113.2:7001", "alt")
	p.tcp = true
	if got, _ := caseContainers["server"].sends(caseHost, p); got != modelForbidden {
		t.Errorf("a SYN from a server's port: %d", got)
	}
}

func TestPropertyModelHears(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		container      string
		from, to, link string
		want           bool
	}{
		{"nothing", "198.51.100.2:7001", "198.51.100.1:5000", "srv", false},
		{"all", "198.51.100.2:7001", "198.51.100.1:5000", "srv", true},
		{"all", "127.0.0.1:7001", "127.0.0.1:5000", "lo", false},
		{"narrow", "198.51.100.2:7001", "198.51.100.1:5000", "srv", true},
		{"narrow", "203.0.113.2:7001", "198.51.100.1:5000", "alt", false},
		{"server", "203.0.113.2:9", "198.51.100.1:8100", "alt", true},
		{"server", "203.0.113.2:9", "198.51.100.1:8102", "alt", false},
		{"server", "198.51.100.2:9", "198.51.100.255:8101", "srv", true},
		{"server", "[fe80::2]:9", "[ff02::1]:8101", "srv", true},
		{"server", "[fe80::2]:9", "[ff02::1]:8100", "srv", false},
		{"server", "198.51.100.1:8100", "198.51.100.1:5000", "lo", true},   // its own server's answer
		{"server", "198.51.100.1:8100", "198.51.100.1:5000", "srv", false}, // which does not come from there
		{"relay", "127.1.0.53:50001", "127.0.0.1:5000", "lo", true},
		{"nameable", "203.0.113.2:9", "198.51.100.9:5000", "alt", true},
	} {
		if got := caseContainers[tt.container].hears(caseHost, casePacket(tt.from, tt.to, tt.link)); got != tt.want {
			t.Errorf("%s, %s to %s by %s: %v, want %v", tt.container, tt.from, tt.to, tt.link, got, tt.want)
		}
	}
}

func TestPropertyModelHolds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		container, at string
		want          bool
	}{
		{"nothing", "0.0.0.0:0", true},
		{"nothing", "0.0.0.0:40000", true}, // ephemeral
		{"nothing", "0.0.0.0:61000", true}, // private
		{"nothing", "0.0.0.0:9091", false},
		{"server", "198.51.100.1:8100", true},
		{"server", "198.51.100.9:8100", false},
		{"server", "198.51.100.9:8101", true},
		{"nameable", "198.51.100.9:9091", false}, // the kernel chooses
	} {
		if got := caseContainers[tt.container].holds(caseHost, netip.MustParseAddrPort(tt.at), modelPorts{32768, 60999}); got != tt.want {
			t.Errorf("%s, %s: %v, want %v", tt.container, tt.at, got, tt.want)
		}
	}
}
