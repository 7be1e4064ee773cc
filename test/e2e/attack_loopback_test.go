package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// privateServers are servers of a container that no rule publishes, as loop-serve of
// testdata/attack has them. The last one is published.
var privateServers = []string{
	"tcp/127.0.0.1:9100", "tcp/0.0.0.0:9101", "tcp/[::1]:9102", "tcp/[::]:9103", "tcp/127.0.0.1:0", "unbound/0.0.0.0:0",
	"udp/127.0.0.1:9104", "udp/0.0.0.0:9105", "udp/[::1]:9106", "udp/127.0.0.1:0", published,
}

var published = fmt.Sprintf("tcp/0.0.0.0:%d", ingressPort)

// private is a container with servers on its own loopback.
type private struct {
	*held
	a      *arena
	rounds int
	calls  map[string]int // that servers are to take, besides the rounds
	ports  []string       // that the container has for its servers
}

// servePrivate starts one. Its rules publish ingressPort.
func (a *arena) servePrivate(build string, flags ...string) *private {
	a.t.Helper()
	rules := append(hostFirst(), "--endpoint", fmt.Sprintf("in type ipv4 addr 0.0.0.0 port %d", ingressPort), "-i", fmt.Sprintf("0.0.0.0:%d=in", ingressPort))
	p := &private{a: a, calls: map[string]int{}, held: hold(a.t, a.attack(build, append(rules, flags...), append([]string{"loop-serve"}, privateServers...)...), "ready")}
	for _, l := range p.said {
		if at, ok := strings.CutPrefix(l, "at: "); ok && !strings.HasPrefix(at, published) {
			p.ports = append(p.ports, strings.Fields(at)[1])
		}
	}
	if len(p.ports) != len(privateServers)-1 {
		a.t.Fatalf("the container's servers are\n%s", strings.Join(p.said, "\n"))
	}
	p.round()
	return p
}

// round has a new client of the container's own ask each server.
func (p *private) round() {
	p.t.Helper()
	p.rounds++
	fmt.Fprintf(p.stdin, "own own-%d\n", p.rounds)
	p.await(fmt.Sprintf("round: own-%d:", p.rounds))
	if end := p.said[len(p.said)-1]; !strings.HasSuffix(end, ": 0 failed") {
		p.t.Errorf("the container's own clients fail:\n%s", strings.Join(p.said, "\n"))
	}
}

// unharmed fails the test for everything that the private servers and the UDP client have heard
// of others. The clients of a last round come after it.
func (p *private) unharmed() {
	p.t.Helper()
	p.round()
	accepted := map[string]int{}
	for _, l := range p.said {
		switch kind, what, _ := strings.Cut(l, ": "); kind {
		case "accepted":
			accepted[what]++
		case "heard":
			if at, text, _ := strings.Cut(what, " "); at != published && !strings.HasPrefix(text, "own") {
				p.t.Errorf("the server %s has heard %q", at, text)
			}
		case "ear":
			if what != "answer" {
				p.t.Errorf("the UDP client has heard %q", what)
			}
		}
	}
	for at, n := range accepted {
		if own := p.rounds + p.calls[at]; n != own {
			p.t.Errorf("the server %s has accepted %d connections, want %d", at, n, own)
		}
	}
}

// hostPorts are the ports of the host at which somebody listens or, over UDP, hears. The traps'
// and the published one are left out.
func (a *arena) hostPorts() []string {
	a.t.Helper()
	var ports []string
	for _, l := range slices.Concat(sockets(a.t, a.Host, "tcp", "0A"), sockets(a.t, a.Host, "udp", "07")) {
		if l.Port() != secretPort && l.Port() != ingressPort {
			ports = append(ports, fmt.Sprint(l.Port()))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// doors are all addresses by which somebody could try the container's private servers: each port
// that it has for them, and each that the host has.
func (p *private) doors() []string {
	p.t.Helper()
	var doors []string
	for _, port := range append(slices.Clone(p.ports), p.a.hostPorts()...) {
		for _, addr := range []string{"127.0.0.1", "127.0.0.53", hostAddr4, "[::1]", "[" + hostAddr6 + "]"} {
			doors = append(doors, "tcp/"+addr+":"+port, "udp/"+addr+":"+port)
		}
	}
	return doors
}

// hostTrap begins what datagrams to a service of the host are noted by.
var hostTrap = fmt.Sprintf("h [::]:%d: ", secretPort)

// secret is an address of the host's own service.
func secret(network, addr string) string { return fmt.Sprintf("%s/%s:%d", network, addr, secretPort) }

// knock has somebody try all doors and then a service of the host and the published server. It
// returns when those have been reached: they were tried last, from the same CPU.
func (p *private) knock(who func(args ...string) *testkit.Cmd, source string, open ...string) {
	p.t.Helper()
	args := append([]string{"loop-knock", source}, p.doors()...)
	if from, err := netip.ParseAddrPort(source); err == nil && from.Addr() == loopback4 {
		// At an address that is none of the loopback's, a rule's server would take it for its own.
		args = append(args, fmt.Sprintf("tcp/%s:%d", hostAddr4, ingressPort))
	}
	h := hold(p.t, who(append(args, open...)...), "knocked")
	for _, at := range open {
		if strings.HasPrefix(at, "tcp/") {
			h.awaits(at + ": ok")
			if strings.HasSuffix(at, fmt.Sprintf(":%d", ingressPort)) {
				p.calls[published]++
			}
			continue
		}
		p.a.awaitHit(hostTrap + "intruder") // it is bound to all addresses
	}
	p.unharmed()
	h.release()
	p.unharmed()
	p.a.arrived() // what the host's service has heard is no fault
}

// awaits is await for a line that may have come already.
func (h *held) awaits(l string) {
	h.t.Helper()
	if !slices.Contains(h.said, l) {
		h.await(l)
	}
}

// bare is a process of the host that attacks.
func (a *arena) bare(args ...string) *testkit.Cmd {
	return command(a.t, a.Host, attackProgram(a.t, "static"), args...)
}

// A container's own loopback is its own, whichever program has it and whichever way its calls are
// intercepted: no process of the host gets in, from whatever address and port. Nor does it pass for
// one of the container's at a server that a rule has bound to another address.
func TestAttackPrivateServersFromHost(t *testing.T) {
	t.Parallel()
	for mode, build := range map[string]string{"auto": "dynamic", "seccomp": "static"} {
		a := newArena(t)
		p := a.servePrivate(build, "--mode", mode)
		open := []string{secret("tcp", "127.0.0.1"), secret("tcp", "[::1]"), secret("udp", "127.0.0.1"), fmt.Sprintf("tcp/127.0.0.1:%d", ingressPort)}
		for _, source := range []string{"127.0.0.1:0", "127.0.0.1:9104", "127.0.0.1:9100"} {
			p.knock(a.bare, source, open...)
		}
		open = append(open, fmt.Sprintf("tcp/%s:%d", hostAddr4, ingressPort))
		for _, source := range []string{"-", hostAddr4 + ":0", "[::1]:9106", "[::1]:9102"} {
			p.knock(a.bare, source, open...)
		}
		p.release()
	}
}

// Nor does another container, whatever its rules open of the host.
func TestAttackPrivateServersFromContainer(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	p := a.servePrivate("static")
	at := fmt.Sprintf("tcp/%s:%d", hostAddr4, ingressPort)
	for _, tt := range []struct {
		rules []string
		open  []string
	}{
		{hostFirst(), []string{secret("tcp", hostAddr4), secret("udp", hostAddr4), at}},
		{append(hostFirst(), "-e", "127.0.0.0/8=0.0.0.0", "-e", "::1/128=::"), []string{secret("tcp", "127.0.0.1"), secret("tcp", "[::1]"), secret("udp", "127.0.0.1"), at}},
	} {
		for _, build := range []string{"static", "dynamic"} {
			p.knock(func(args ...string) *testkit.Cmd { return a.attack(build, tt.rules, args...) }, "-", tt.open...)
		}
	}
	p.release()
}

const thiefPort = 8001 // at which the thief may listen

// robbed has a thief bind all ports that the container's servers have, with the options of those, and
// asks each server some times. Then the thief hears a client of its own.
func (a *arena) robbed(thief func(args ...string) *testkit.Cmd) {
	a.t.Helper()
	p := a.servePrivate("static")
	args := []string{"loop-thief"}
	for _, port := range append(slices.Clone(p.ports), a.hostPorts()...) {
		for _, addr := range []string{"127.0.0.1", "0.0.0.0", "[::1]", "[::]"} {
			args = append(args, "tcp/"+addr+":"+port, "udp/"+addr+":"+port)
		}
	}
	own := fmt.Sprintf("tcp/0.0.0.0:%d", thiefPort)
	h := hold(a.t, thief(append(args, own)...), "ready")
	for range 3 {
		p.unharmed()
	}
	client := hold(a.t, a.bare("loop-knock", "-", fmt.Sprintf("tcp/%s:%d", hostAddr4, thiefPort)), "knocked")
	h.await("accepted: " + own)
	client.release()
	for _, l := range h.release() {
		if kind, what, _ := strings.Cut(l, ": "); (kind == "accepted" || kind == "heard") && !strings.HasPrefix(what, own) {
			a.t.Errorf("the thief has %s", l)
		}
	}
	p.release()
}

// Servers that share their ports (SO_REUSEADDR, SO_REUSEPORT) share them with no other container of
// the same user.
func TestAttackPrivateServersShared(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rules := append(hostFirst(), "--endpoint", fmt.Sprintf("own type ipv4 addr %s port %d", hostAddr4, thiefPort), "-i", fmt.Sprintf("0.0.0.0:%d=own", thiefPort))
	a.robbed(func(args ...string) *testkit.Cmd { return a.attack("static", rules, args...) })
}

// Nor with a process of the host that another user has.
func TestAttackPrivateServersSharedWithHost(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.robbed(func(args ...string) *testkit.Cmd {
		c := a.bare(args...)
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		return c
	})
}

// The containers of a pod share its loopback. Those of another pod have another.
func TestAttackPrivateServersFromPods(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	pod := func() []string {
		ns := testkit.NewLoopback(t)
		return append(hostFirst(), "--netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd()))
	}
	one, other := pod(), pod()
	p := a.servePrivate("static", one[len(one)-2:]...)
	outside := fmt.Sprintf("tcp/%s:%d", hostAddr4, ingressPort)
	p.knock(func(args ...string) *testkit.Cmd { return a.attack("static", other, args...) }, "-", secret("tcp", hostAddr4), outside)
	beside := hold(t, a.attack("dynamic", one, "loop-knock", "-", "tcp/127.0.0.1:9100", "tcp/[::1]:9102", "tcp/127.0.0.1:9999"), "knocked")
	for _, want := range []string{"tcp/127.0.0.1:9100: ok", "tcp/[::1]:9102: ok", "tcp/127.0.0.1:9999: ECONNREFUSED"} {
		beside.awaits(want)
	}
	for _, at := range []string{"tcp/127.0.0.1:9100", "tcp/[::1]:9102"} {
		p.calls[at]++
		p.awaits("heard: " + at + " intruder")
	}
	p.said = slices.DeleteFunc(p.said, func(l string) bool { return strings.HasSuffix(l, " intruder") })
	p.unharmed()
	beside.release()
	p.release()
}

// Nobody else fills the queue of a private server: half open connections and those that nobody
// accepts, from a process of the host, from another container and by a link, leave room for its own
// clients. The same flood keeps a client of the host from a service of the host.
func TestAttackPrivateServersFlooded(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	s := a.newSpoofer()
	succeed(t, command(t, a.Host, "ip", "neigh", "replace", "198.51.100.77", "lladdr", "02:00:00:00:00:77", "dev", "srv", "nud", "permanent"))
	if err := a.Host.SetSysctl("net.ipv4.tcp_syncookies", "0"); err != nil {
		t.Fatal(err)
	}
	p := a.servePrivate("static")
	var full uint16
	err := a.Host.Do(func() (err error) { full, err = smallServer(t); return err })
	if err != nil {
		t.Fatal(err)
	}
	var syns [][]byte
	for _, port := range append(portNumbers(t, append(slices.Clone(p.ports), a.hostPorts()...)), full, secretPort) {
		for i := range uint16(32) {
			source := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.77"), 20000+i)
			for _, addr := range []netip.Addr{loopback4, testkit.HostAddr4} {
				to := netip.AddrPortFrom(addr, port)
				syns = append(syns, s.packets(source, to, segment(source, to, ""), 1, 1480)...)
			}
		}
	}
	answered := s.answers(func() { s.send(syns) }, secretPort)
	if !answered[full] {
		t.Error("the service of the host has answered no SYN of the flood")
	}
	if err := a.Host.Do(func() error { return waitsHalfOpen(full) }); err != nil {
		t.Error(err)
	}
	p.unharmed()
	flood := slices.DeleteFunc(p.doors(), func(at string) bool { return !strings.HasPrefix(at, "tcp/") })
	flood = append(slices.Repeat(flood, 4), secret("tcp", hostAddr4))
	for _, who := range []*testkit.Cmd{
		a.bare(append([]string{"loop-knock", "-"}, flood...)...),
		a.attack("static", hostFirst(), append([]string{"loop-knock", "-"}, flood...)...),
	} {
		h := hold(t, who, "knocked")
		h.awaits(flood[len(flood)-1] + ": ok")
		p.unharmed()
		h.release()
	}
	p.release()
}

// smallServer listens with a short queue and accepts nobody.
func smallServer(t *testing.T) (port uint16, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return 0, err
	}
	if err := unix.Listen(fd, 1); err != nil {
		return 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return uint16(name.(*unix.SockaddrInet4).Port), nil
}

// waitsHalfOpen connects to a full server: the kernel has dropped the SYN when connect(2) returns.
func waitsHalfOpen(port uint16) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: loopback4.As4()})
	if !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to the flooded server: %w, want %w", err, unix.EINPROGRESS)
	}
	const synSent = 2
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != synSent {
		return fmt.Errorf("a client of the flooded server is in the state %d (%w), want %d", info.State, err, synSent)
	}
	return nil
}
