package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// otherName is the name of a host of the remote's for which there is no rule.
const otherName = "other.example.org"

// The attacked container's virtual addresses of the remote and of the other host.
var virtual, otherVirtual = virtualAddr4, "198.18.0.2"

// translatedModes are the modes of translated containers that are attacked: each attack has one of them
// in its turn.
var translatedModes = []string{"auto", "seccomp"}

// inTurn are the flags of the mode that has its turn.
func inTurn(i int, flags ...string) []string {
	return append([]string{"--mode", translatedModes[i%len(translatedModes)]}, flags...)
}

// addrPort writes an address and a port.
func addrPort(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

// aliasOf is the alias of a virtual address.
func aliasOf(v4 string) string { return "127." + strings.SplitN(v4, ".", 2)[1] }

// newTranslatedArena is an arena whose remote has a resolver. The host has IPv4 too, which is more than
// a translated container should reach.
func newTranslatedArena(t *testing.T) *arena {
	t.Helper()
	a := newArena(t)
	path := filepath.Join(t.TempDir(), "hosts6")
	if err := os.WriteFile(path, []byte(otherRemote6+" "+otherName+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	line := append(dnsmasq(t, 53), "--addn-hosts="+path)
	serve(t, command(t, a.Remote, line[0], line[1:]...), port{a.Remote, "udp", 53})
	return a
}

// attackTranslated prepares the attack in a translated container that may reach one port of the
// remote, and has asked for the names of the remote and of the other host.
func (a *arena) attackTranslated(build string, flags []string, args ...string) *testkit.Cmd {
	a.t.Helper()
	return a.translated(flags, append([]string{attackProgram(a.t, build)}, args...)...)
}

// translated prepares a command in such a container.
func (a *arena) translated(flags []string, program ...string) *testkit.Cmd {
	a.t.Helper()
	const script = `getent ahostsv4 "$1" >/dev/null && getent ahostsv4 "$2" >/dev/null && shift 2 && exec "$@"`
	line := slices.Concat([]string{
		tsugiki, "run", "--run-dir", runDir, "--translate", "--dns", addrPort(remoteAddr6, 53), "-e", portOf(allowed6) + "=::",
	}, flags, []string{"--", "sh", "-euc", script, "sh", serverName, otherName}, program)
	line = resolving(a.t, "192.0.2.53", line...)
	return command(a.t, a.Host, line[0], line[1:]...)
}

// translatedWays are those of ways4 that lead a translated socket to a virtual address.
var translatedWays = []string{
	"tcp connect", "tcp syscall", "tcp reconnect", "udp connect", "udp reconnect", "udp sendto", "udp sendmsg",
	"udp sendmmsg", "udp connected sendto", "udp unspec sendto",
}

// A translated container reaches what its rules name, by the ways that are translated, and nothing
// else by any way: no other port of the host behind a virtual address, no other host behind one, no
// alias, no address of the host or of its loopback.
func TestAttackTranslatedReaches(t *testing.T) {
	t.Parallel()
	a := newTranslatedArena(t)
	good := addrPort(virtual, allowedPort)
	forbidden4, forbidden6 := a.forbidden()
	forbidden4 = append(forbidden4,
		addrPort(virtual, secretPort), addrPort(otherVirtual, allowedPort), addrPort(otherVirtual, secretPort),
		addrPort(aliasOf(virtual), allowedPort), addrPort(aliasOf(virtual), secretPort), addrPort(aliasOf(otherVirtual), allowedPort),
		addrPort("198.18.0.3", allowedPort), addrPort("198.19.0.1", allowedPort), addrPort("127.19.0.1", secretPort),
		addrPort(ownAddr4, secretPort), addrPort("192.0.0.7", secretPort), addrPort("192.0.0.8", secretPort),
		addrPort(remoteAddr4, allowedPort),
	)
	forbidden6 = append(forbidden6, addrPort("64:ff9b::7f00:1", secretPort), addrPort("2002:7f00:1::", secretPort), addrPort("::127.0.0.1", secretPort))
	run := func(build, mode string, flags ...string) {
		flags = append(flags, "--mode", mode)
		t.Run(build+" "+mode, func(t *testing.T) {
			out := succeed(t, a.attackTranslated(build, flags, "reach", good, good))
			allowed, forbidden := a.arrived()
			for _, way := range translatedWays {
				if !slices.Contains(allowed, way) {
					t.Errorf("%s did not arrive", way)
				}
			}
			if len(forbidden) > 0 {
				t.Errorf("also arrived: %v", forbidden)
			}
			if t.Failed() {
				t.Log(out)
			}
			succeed(t, a.attackTranslated(build, flags, append([]string{"reach", good}, forbidden4...)...))
			succeed(t, a.attackTranslated(build, flags, append([]string{"reach", allowed6.String()}, forbidden6...)...))
			succeed(t, a.attackTranslated(build, flags, append([]string{"passed"}, append(forbidden4, forbidden6...)...)...))
			a.unharmed()
		})
	}
	for _, mode := range translatedModes {
		run("dynamic", mode)
		run("static", mode, "-u", "65534:65534")
	}
}

// What changes between the look at a call and the call does not help.
func TestAttackTranslatedRaces(t *testing.T) {
	t.Parallel()
	a := newTranslatedArena(t)
	good := addrPort(virtual, allowedPort)
	for i, kind := range []struct {
		name   string
		rounds int
	}{{"connect", 300}, {"udp-connect", 1000}, {"sendto", 5000}, {"sendmsg", 5000}, {"dup-connect", 300}} {
		for k, bad := range []string{addrPort(virtual, secretPort), addrPort(otherVirtual, allowedPort), addrPort("127.0.0.1", secretPort)} {
			if !testkit.Soaking() && i%3 != k {
				continue
			}
			t.Run(kind.name+" "+bad, func(t *testing.T) {
				h := hold(t, a.attackTranslated("static", inTurn(i), "race", kind.name, fmt.Sprint(testkit.Times(kind.rounds, 10*kind.rounds)), good, bad), "hold")
				h.release()
				a.unharmed()
			})
		}
	}
	// It can hit.
	succeed(t, a.attackTranslated("static", nil, "reach", good, good))
	if allowed, _ := a.arrived(); !slices.Contains(allowed, "tcp connect") || !slices.Contains(allowed, "udp sendto") {
		t.Errorf("where it may arrive, this has: %v", allowed)
	}
}

// Garbage in the calls that are translated breaks nothing: not the supervisor, not another translated
// container, and not the next one.
func TestAttackTranslatedGarbage(t *testing.T) {
	t.Parallel()
	a := newTranslatedArena(t)
	good := addrPort(virtual, allowedPort)
	other := hold(t, a.translated(nil, "sh", "-c", `echo ready; read -r _ || true; exec "$@"`, "sh", attackProgram(t, "static"), "reach", good, good), "ready")
	for i, build := range []string{"dynamic", "static"} {
		flags := inTurn(i, "-i", fmt.Sprintf("0.0.0.0:%d=%s", ingressPort, addrPort(hostAddr6, ingressPort)))
		out := succeed(t, a.attackTranslated(build, flags, "garbage", "3", fmt.Sprint(100*i+1), good))
		if !strings.Contains(out, "survived: ok") {
			t.Errorf("%s printed %q", build, out)
		}
	}
	if _, forbidden := a.arrived(); len(forbidden) > 0 {
		t.Errorf("reached what no rule allows:\n%s", strings.Join(forbidden, "\n"))
	}
	said := other.release()
	allowed, _ := a.arrived()
	succeed(t, a.attackTranslated("static", nil, "reach", good, good))
	next, _ := a.arrived()
	for whose, arrived := range map[string][]string{"the other": allowed, "the next": next} {
		if !slices.Contains(arrived, "tcp connect") || !slices.Contains(arrived, "udp sendto") {
			t.Errorf("of %s container this arrived: %v\n%v", whose, arrived, said)
		}
	}
}

// A client hears whom it has asked, and nobody else: not another host, not another port, not the host
// itself. A datagram goes where its rule says and comes from the container's address, whatever its
// control messages say.
func TestAttackTranslatedDatagrams(t *testing.T) {
	t.Parallel()
	a := newTranslatedArena(t)
	const askedPort = 7777
	asked := netip.AddrPortFrom(testkit.RemoteAddr6, askedPort)
	server := listenUDP(t, a.Remote, asked)
	intruders := []*net.UDPConn{
		listenUDP(t, a.Remote, netip.AddrPortFrom(netip.MustParseAddr(otherRemote6), askedPort)),
		listenUDP(t, a.Remote, netip.AddrPortFrom(asked.Addr(), askedPort+1)),
		listenUDP(t, a.Host, netip.AddrPortFrom(testkit.HostAddr6, 0)),
	}
	onHost := []*net.UDPConn{
		listenUDP(t, a.Host, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)),
		listenUDP(t, a.Host, netip.MustParseAddrPort(addrPort(aliasOf(virtual), askedPort))),
	}
	answerUDP(server, func(from netip.AddrPort) {
		a.hit("source", from.Addr().String())
		for i, c := range intruders {
			_, _ = c.WriteToUDPAddrPort(fmt.Appendf(nil, "intruder %d", i), from)
		}
		// Processes of the host send to the port on the host's loopback, one of them from the alias.
		for _, c := range onHost {
			_, _ = c.WriteToUDPAddrPort([]byte("intruder by IPv4"), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), from.Port()))
		}
		_, _ = server.WriteToUDPAddrPort([]byte("sentinel"), from)
	})
	to := addrPort(virtual, askedPort)
	for i, user := range []string{"root", "other"} {
		flags := inTurn(i, "-e", portOf(asked)+"=::", "-e", fmt.Sprintf("[%s/128]:%d=::", otherRemote6, askedPort))
		flags = append(flags, users[user]...)
		out := succeed(t, a.attackTranslated("static", flags, "packets-message", to, otherRemote6))
		for step, results := range steps(out) {
			want := []string{"EPERM", "EINVAL"}
			if strings.HasPrefix(step, "plain") {
				want = []string{"ok"}
			}
			if len(results) != 1 || !slices.Contains(want, results[0]) {
				t.Errorf("%s: %s: %v, want one of %v", user, step, results, want)
			}
		}
		for _, from := range []string{aliasOf(otherVirtual), hostAddr4} {
			out := steps(succeed(t, a.attackTranslated("static", flags, "packets-source", addrPort(from, 0), to)))
			if got := out["from it"]; !slices.Equal(got, []string{"ok"}) && !slices.Equal(got, []string{"ENETUNREACH"}) {
				t.Errorf("%s: a datagram that says it is from %s: %v", user, from, got)
			}
		}
		// Its last datagram is answered.
		out = succeed(t, a.attackTranslated("static", flags, "packets-ears", to))
		if strings.Contains(out, "intruder") || !strings.Contains(out, "dissolved: sentinel") {
			t.Errorf("%s printed\n%s", user, out)
		}
	}
	if _, arrived := a.arrived(); !slices.Equal(arrived, []string{"source: " + hostAddr6}) {
		t.Errorf("what has arrived is from %v", arrived)
	}
}

// forgedFrames prepares datagrams of IPv6 to a server, in Ethernet frames without their header, from
// sources that no remote host has.
func forgedFrames(to netip.AddrPort) (frames [][]byte) {
	for _, from := range []string{
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:198.18.0.1", "fe80::66", "ff02::1", "ff0e::1",
	} {
		frames = append(frames, frame6(netip.AddrPortFrom(netip.MustParseAddr(from), 4000), to, "forged from "+from))
	}
	return frames
}

// frame6 is a UDP datagram of IPv6 (RFC 8200, RFC 768).
func frame6(from, to netip.AddrPort, payload string) []byte {
	length := uint16(8 + len(payload))
	src, dst := from.Addr().As16(), to.Addr().As16()
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, length)
	udp = append(binary.BigEndian.AppendUint16(udp, 0), payload...)
	pseudo := slices.Concat(src[:], dst[:], []byte{0, 0, byte(length >> 8), byte(length), 0, 0, 0, unix.IPPROTO_UDP}, udp)
	var sum uint32
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(pseudo[i]) << 8
		if i+1 < len(pseudo) {
			sum += uint32(pseudo[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], ^uint16(sum))
	head := []byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), unix.IPPROTO_UDP, 64}
	return slices.Concat(head, src[:], dst[:], udp)
}

// sendFrames sends packets of IPv6 by a link of a namespace to the host at its other end.
func sendFrames(t *testing.T, ns, other *testkit.Namespace, link, otherLink string, frames [][]byte) {
	t.Helper()
	to := &unix.SockaddrLinklayer{Protocol: 0xdd86, Halen: 6} // ETH_P_IPV6 in network order
	err := other.Do(func() error {
		l, err := net.InterfaceByName(otherLink)
		if err == nil {
			copy(to.Addr[:], l.HardwareAddr)
		}
		return err
	})
	if err == nil {
		err = ns.Do(func() error {
			l, err := net.InterfaceByName(link)
			if err != nil {
				return err
			}
			to.Ifindex = l.Index
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			for _, frame := range frames {
				if err := unix.Sendto(fd, frame, 0, to); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A published UDP server hears no datagram whose source is no single remote host's.
func TestAttackTranslatedForged(t *testing.T) {
	t.Parallel()
	a := newTranslatedArena(t)
	at := netip.AddrPortFrom(testkit.HostAddr6, ingressPort)
	const listen = `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 8000))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(1000)
    print(peer[0], data.decode(), flush=True)
`
	h := hold(t, a.translated([]string{"-i", fmt.Sprintf("0.0.0.0:%d=%s", ingressPort, at)}, python(t), "-u", "-c", listen), "ready")
	sentinel := otherVirtual + " sentinel"
	frames := forgedFrames(at)
	good := frame6(netip.AddrPortFrom(netip.MustParseAddr(otherRemote6), 4000), at, "sentinel")
	for range 3 {
		sendFrames(t, a.Remote, a.Host, "h", "srv", append(slices.Clone(frames), good))
		h.await(sentinel)
	}
	_ = h.Process.Signal(unix.SIGTERM)
	_ = h.Wait()
	want := []string{"ready", sentinel, sentinel, sentinel}
	if !slices.Equal(h.said, want) {
		t.Errorf("the server has heard %q, want %q", h.said, want)
	}
}
