package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// spoofer sends packets of any source from the remote to the host's link, whose namespace takes
// them: its loopback is routed from links, as where net.ipv4.conf.*.route_localnet is set for the
// ports of nodes, and nothing filters sources.
type spoofer struct {
	a        *arena
	from, to net.HardwareAddr
	link     int // the remote's
}

func (a *arena) newSpoofer() *spoofer {
	a.t.Helper()
	for _, link := range []string{"all", "default", "srv", "lo"} {
		for name, value := range map[string]string{"route_localnet": "1", "rp_filter": "0", "accept_local": "1"} {
			if err := a.Host.SetSysctl("net.ipv4.conf."+link+"."+name, value); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	s := &spoofer{a: a}
	address := func(ns *testkit.Namespace, name string, into *net.HardwareAddr) {
		err := ns.Do(func() error {
			link, err := net.InterfaceByName(name)
			if err == nil {
				*into = link.HardwareAddr
				if ns == a.Remote {
					s.link = link.Index
				}
			}
			return err
		})
		if err != nil {
			a.t.Fatal(err)
		}
	}
	address(a.Remote, "h", &s.from)
	address(a.Host, "srv", &s.to)
	return s
}

// checksum is that of RFC 1071, over some parts one after the other, each of even length but the last.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for i, b := range slices.Concat(parts...) {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// segment makes a TCP SYN or, with a text, a UDP datagram.
func segment(source, to netip.AddrPort, text string) []byte {
	b := make([]byte, 8, 20+len(text))
	protocol := byte(unix.IPPROTO_UDP)
	if text == "" {
		b, protocol = b[:20], unix.IPPROTO_TCP
		copy(b[4:], []byte{1, 2, 3, 4, 0, 0, 0, 0, 5 << 4, 2, 0xff, 0xff})
	}
	binary.BigEndian.PutUint16(b, source.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	b = append(b, text...)
	if text != "" {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	}
	pseudo := append(slices.Concat(source.Addr().AsSlice(), to.Addr().AsSlice()), 0, protocol)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(b)))
	at := 6
	if text == "" {
		at = 16
	}
	binary.BigEndian.PutUint16(b[at:], checksum(pseudo, b))
	return b
}

// packets makes the IPv4 packets of a segment, of at most so many bytes of it each.
func (s *spoofer) packets(source, to netip.AddrPort, payload []byte, id uint16, most int) [][]byte {
	var all [][]byte
	protocol := byte(unix.IPPROTO_UDP)
	if len(payload) >= 20 && payload[12] == 5<<4 && payload[13] == 2 {
		protocol = unix.IPPROTO_TCP
	}
	for at := 0; at < len(payload); at += most {
		part := payload[at:min(at+most, len(payload))]
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(part)))
		binary.BigEndian.PutUint16(h[4:], id)
		fragment := uint16(at / 8)
		if at+most < len(payload) {
			fragment |= 0x2000 // more follow
		}
		binary.BigEndian.PutUint16(h[6:], fragment)
		copy(h[12:], source.Addr().AsSlice())
		copy(h[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		all = append(all, slices.Concat(s.to, s.from, []byte{8, 0}, h, part))
	}
	return all
}

// send sends packets, all from the CPU on which it begins.
func (s *spoofer) send(packets [][]byte) {
	s.a.t.Helper()
	err := s.a.Remote.Do(func() error {
		var set unix.CPUSet
		set.Set(s.a.cpus()[0])
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrLinklayer{Ifindex: s.link}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.a.t.Fatal(err)
	}
}

// answers are the ports whose listeners have answered a SYN, until the one that is asked for has. A
// SYN of whatever source is answered on the loopback or on the link.
func (s *spoofer) answers(send func(), until uint16) map[uint16]bool {
	s.a.t.Helper()
	seen := map[uint16]bool{}
	err := s.a.Host.Do(func() error {
		// ETH_P_ALL, of which only this hears what the host sends.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(uint16(unix.ETH_P_ALL)<<8))
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		limit := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
			return err
		}
		send()
		buf := make([]byte, 2048)
		for !seen[until] {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return fmt.Errorf("no SYN is answered at port %d: %w", until, err)
			}
			const synAck = 0x12
			if n >= 40 && buf[0] == 0x45 && buf[9] == unix.IPPROTO_TCP && buf[33] == synAck {
				seen[binary.BigEndian.Uint16(buf[20:])] = true
			}
		}
		return nil
	})
	if err != nil {
		s.a.t.Fatal(err)
	}
	return seen
}

func portNumbers(t *testing.T, ports []string) []uint16 {
	t.Helper()
	var numbers []uint16
	for _, p := range ports {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, uint16(n))
	}
	return numbers
}

var loopback4 = netip.MustParseAddr("127.0.0.1")

// sources are those that the container could trust: the loopback and the host, at the port of each
// of its servers and of each socket that it has on the host.
func (p *private) sources() []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range append(portNumbers(p.t, append(slices.Clone(p.ports), p.a.hostPorts()...)), 40000) {
		for _, addr := range []netip.Addr{loopback4, testkit.HostAddr4} {
			all = append(all, netip.AddrPortFrom(addr, port))
		}
	}
	return all
}

// spoofed are packets from all sources to all private ports of one kind, and then to the host's service.
func (p *private) spoofed(s *spoofer, text string, most int) [][]byte {
	p.t.Helper()
	var all [][]byte
	var id uint16
	ports := append(portNumbers(p.t, append(slices.Clone(p.ports), p.a.hostPorts()...)), secretPort)
	for _, port := range ports {
		for _, addr := range []netip.Addr{loopback4, testkit.HostAddr4} {
			for _, source := range p.sources() {
				to := netip.AddrPortFrom(addr, port)
				id++
				all = append(all, s.packets(source, to, segment(source, to, text), id, most)...)
			}
		}
	}
	return all
}

// Packets that come by a link, from the loopback's address or the host's, reach nothing of the
// container's loopback, whole or in fragments, though the host takes them.
func TestAttackSpoofedPackets(t *testing.T) {
	t.Parallel()
	for mode, build := range map[string]string{"auto": "dynamic", "seccomp": "static"} {
		a := newArena(t)
		s := a.newSpoofer()
		p := a.servePrivate(build, "--mode", mode)
		for text, most := range map[string]int{"intruder": 1480, "intruder in fragments": 16} {
			s.send(p.spoofed(s, text, most))
			a.awaitHit(hostTrap + text)
			p.unharmed()
		}
		answered := s.answers(func() { s.send(p.spoofed(s, "", 1480)) }, secretPort)
		for _, port := range portNumbers(t, append(slices.Clone(p.ports), a.hostPorts()...)) {
			if answered[port] {
				t.Errorf("%s: a spoofed SYN to the port %d is answered", mode, port)
			}
		}
		p.unharmed()
		p.release()
	}
}

// A server that a rule has bound to an address of the host's loopback is for those on the host: what
// comes by a link does not reach it, though the host takes it and its own services hear it.
func TestAttackRoutedLoopback(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	s := a.newSpoofer()
	rules := []string{"--endpoint", fmt.Sprintf("in type ipv4 addr 127.0.0.1 port %d", ingressPort), "-i", fmt.Sprintf("0.0.0.0:%d=in", ingressPort)}
	tcp, udp := fmt.Sprintf("tcp/0.0.0.0:%d", ingressPort), fmt.Sprintf("udp/0.0.0.0:%d", ingressPort)
	h := hold(t, a.attack("static", rules, "loop-serve", tcp, udp), "ready")
	spoofed := func(text string) (all [][]byte) {
		for _, port := range []uint16{ingressPort, secretPort} {
			for _, from := range []netip.Addr{loopback4, testkit.HostAddr4, testkit.RemoteAddr4} {
				source, to := netip.AddrPortFrom(from, 40000), netip.AddrPortFrom(loopback4, port)
				all = append(all, s.packets(source, to, segment(source, to, text), 1, 1480)...)
			}
		}
		return all
	}
	s.send(spoofed("intruder"))
	a.awaitHit(hostTrap + "intruder")
	if s.answers(func() { s.send(spoofed("")) }, secretPort)[ingressPort] {
		t.Error("a SYN that came by a link is answered")
	}
	client := hold(t, a.bare("loop-knock", "-", "udp/"+loopbackAt(ingressPort), "tcp/"+loopbackAt(ingressPort)), "knocked")
	h.awaits("heard: " + tcp + " intruder")
	client.release()
	fmt.Fprintln(h.stdin, "own last")
	h.await("round: last:")
	heard := map[string]int{}
	for _, l := range h.said {
		heard[l]++
	}
	for l, want := range map[string]int{"heard: " + udp + " intruder": 1, "accepted: " + tcp: 2, "round: last: 0 failed": 1} {
		if heard[l] != want {
			t.Errorf("%q was said %d times, want %d:\n%s", l, heard[l], want, strings.Join(h.said, "\n"))
		}
	}
	h.release()
}

func loopbackAt(port uint16) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// A container that may give its packets any priority passes for no other's program. A process of the
// host's administrator does.
func TestAttackForgedPriority(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	p := a.servePrivate("static")
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", child(p.Process.Pid, "static")))
	if err != nil {
		t.Fatal(err)
	}
	source := fmt.Sprintf("priority:%d", uint32(ns.Cookie())|1<<31)
	ns.Close()
	rules := append(hostFirst(), "--cap-add", "NET_RAW", "-e", "127.0.0.0/8=0.0.0.0", "-e", "::1/128=::")
	trapped := append(rules, "--endpoint", "far type ipv4 addr 0.0.0.0 port dynamic netns "+a.Remote.Path(), "-e", "203.0.113.99/32=far")
	for _, rules := range [][]string{rules, trapped} {
		p.knock(func(args ...string) *testkit.Cmd { return a.attack("static", rules, args...) },
			source, secret("tcp", "127.0.0.1"), secret("udp", "127.0.0.1"))
	}
	server := "tcp/127.0.0.1:0"
	host := "tcp/127.0.0.1:" + p.ports[slices.Index(privateServers, server)]
	h := hold(t, a.bare("loop-knock", source, host), "knocked")
	h.awaits(host + ": ok")
	p.calls[server]++
	p.awaits("heard: " + server + " intruder")
	p.said = slices.DeleteFunc(p.said, func(l string) bool { return strings.HasSuffix(l, " intruder") })
	p.unharmed()
	h.release()
	p.release()
}

// awaitHit waits until something has arrived.
func (a *arena) awaitHit(hit string) {
	a.t.Helper()
	testkit.Eventually(a.t, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.hits[hit] {
			return fmt.Errorf("%q has not arrived, but %v", hit, a.hits)
		}
		return nil
	})
}
