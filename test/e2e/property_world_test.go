package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	otherHostAddr6   = "2001:db8:2::1"
	otherRemoteAddr6 = "2001:db8:2::2"
	localPort        = 7102  // a service on the host's loopback alone
	reusedPort       = 40000 // a service of the host that lets others share its port
	otherReusedPort  = 51820
	watchPort        = 7990 // where sentinels arrive
)

// propertyDestinations are what drivers try to reach.
var propertyDestinations = []string{
	remoteAddr4, otherRemote4, otherRemoteAddr4, hostAddr4, sourceAddr4, otherHostAddr4,
	"127.0.0.1", "127.5.5.5", "0.0.0.0", linkLocal4, otherLinkLocal, "239.1.2.3", "224.0.0.251",
	"255.255.255.255", "198.51.100.255", "203.0.113.255", "10.88.0.1", "10.88.0.11", "10.88.0.12",
	remoteAddr6, otherRemote6, otherRemoteAddr6, hostAddr6, sourceAddr6, otherHostAddr6, "::1", "::", "ff15::7",
}

// propertyWorld is a host with two links to a remote and a bridge, services on the host and
// the remote, and a capture on every interface of the host.
type propertyWorld struct {
	*testkit.Topology
	model     modelHost
	capture   *capture
	ephemeral modelPorts
	services  []netip.AddrPort // of the host; the unspecified address is any
	probers   map[*testkit.Namespace][]*net.UDPConn
	watch     *net.UDPConn
	others    []string // destinations with scopes
	links     []int
	sentinels int
}

func newPropertyWorld(t *testing.T) *propertyWorld {
	t.Helper()
	w := &propertyWorld{Topology: testkit.Build(t, testkit.Options{Containers: 2}), probers: map[*testkit.Namespace][]*net.UDPConn{}}
	succeed(t, command(t, w.Host, "ip", "link", "add", "alt", "type", "veth", "peer", "name", "alt", "netns", w.Remote.Path()))
	for _, ns := range []*testkit.Namespace{w.Host, w.Remote} {
		succeed(t, command(t, ns, "ip", "link", "set", "alt", "up"))
	}
	for _, addr := range []string{sourceAddr4 + "/24", sourceAddr6 + "/64", linkLocal4 + "/16"} {
		addAddr(t, w.Host, addr, "srv")
	}
	for _, addr := range []string{otherRemote4 + "/24", otherRemote6 + "/64", otherLinkLocal + "/16"} {
		addAddr(t, w.Remote, addr, "h")
	}
	for ns, addrs := range map[*testkit.Namespace][]string{
		w.Host:   {otherHostAddr4 + "/24", otherHostAddr6 + "/64"},
		w.Remote: {otherRemoteAddr4 + "/24", otherRemoteAddr6 + "/64"},
	} {
		for _, addr := range addrs {
			addAddr(t, ns, addr, "alt")
		}
	}
	w.learn(t)
	w.serve(t)
	w.capture = newCapture(t, w.Host)
	return w
}

// learn reads what the model and the drivers have to know of the host.
func (w *propertyWorld) learn(t *testing.T) {
	t.Helper()
	err := w.Host.Do(func() error {
		list, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, l := range list {
			w.links = append(w.links, l.Index)
			if l.Name == "srv" {
				w.others = append(w.others, fmt.Sprintf("ff02::1%%%d", l.Index), fmt.Sprintf("%s%%%d", linkLocalOf(t, w.Remote, "h"), l.Index))
			}
			addrs, err := l.Addrs()
			if err != nil {
				return err
			}
			for _, a := range addrs {
				p := netip.MustParsePrefix(a.String())
				if p.Addr().IsLoopback() {
					continue
				}
				w.model.own = append(w.model.own, p.Addr())
				if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() {
					w.model.links = append(w.model.links, modelLink{l.Name, p.Masked()})
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := w.Host.Sysctl("net.ipv4.ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(text)
	w.ephemeral = modelPorts{uint16(atoi(t, fields[0])), uint16(atoi(t, fields[1]))}
}

// linkLocalOf is the IPv6 address that a link has of itself.
func linkLocalOf(t *testing.T, ns *testkit.Namespace, name string) (found netip.Addr) {
	t.Helper()
	err := ns.Do(func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				found = p.Addr()
			}
		}
		return err
	})
	if err != nil || !found.IsValid() {
		t.Fatalf("find the link-local address of %s: %v", name, err)
	}
	return found
}

// serve starts what containers may find: services that answer, on the host and the remote.
func (w *propertyWorld) serve(t *testing.T) {
	t.Helper()
	for _, s := range []struct {
		ns   *testkit.Namespace
		addr string
		port uint16
	}{
		{w.Host, "::", secretPort},
		{w.Host, "127.0.0.1", localPort},
		{w.Host, "::1", localPort},
		{w.Host, "::", reusedPort},
		{w.Host, hostAddr4, otherReusedPort},
		{w.Remote, "::", allowedPort},
		{w.Remote, "::", allowedPort + 1},
		{w.Remote, "::", secretPort},
	} {
		at := netip.AddrPortFrom(netip.MustParseAddr(s.addr), s.port)
		if s.ns == w.Host {
			w.services = append(w.services, at)
		}
		c := sharedUDP(t, s.ns, at)
		go echoUDP(c)
		if s.addr == "::" && s.port != reusedPort {
			w.probers[s.ns] = append(w.probers[s.ns], c)
		}
		answerTCP(t, s.ns, at)
	}
	for _, ns := range []*testkit.Namespace{w.Host, w.Remote} {
		w.probers[ns] = append(w.probers[ns], listenUDP(t, ns, netip.MustParseAddrPort("[::]:7999")))
	}
	w.watch = listenUDP(t, w.Host, netip.AddrPortFrom(netip.IPv6Unspecified(), watchPort))
}

// sharedUDP opens a socket of a namespace whose port others may share.
func sharedUDP(t *testing.T, ns *testkit.Namespace, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		config := net.ListenConfig{Control: reuse}
		c, err = config.ListenPacket(context.Background(), "udp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// echoUDP answers what drivers have sent with the same, marked as an answer.
func echoUDP(c *net.UDPConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		if n > 0 && buf[0] == '@' {
			_, _ = c.WriteToUDPAddrPort(append([]byte("="), buf[:n]...), from)
		}
	}
}

// answerTCP accepts connections, and closes each when its peer has said something or ended.
func answerTCP(t *testing.T, ns *testkit.Namespace, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = (&net.ListenConfig{Control: reuse}).Listen(context.Background(), "tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for c := range open {
			c.Close()
		}
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			go func() {
				_, _ = c.Read(make([]byte, 256))
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			}()
		}
	}()
}

// propertyDriver is the driver's path, built once, static or dynamic.
func propertyDriver(t *testing.T, build string) string {
	t.Helper()
	testkit.Program(t, "gcc")
	dir, err := buildDriver()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, build)
}

var buildDriver = sync.OnceValues(func() (string, error) { return buildSources("property", staticAndDynamic) })

// probe sends to each socket that a container has on the host, from sources that its rules
// cover and from others, and to the host's services. What was sent is there when it returns.
func (w *propertyWorld) probe(t *testing.T, sockets []hostSocket) {
	t.Helper()
	udp, tcp := w.targets(sockets)
	for ns, from := range w.probers {
		w.onOneCPU(t, ns, func() error {
			for _, c := range from {
				for _, to := range udp {
					w.sentinels++
					_, _ = c.WriteToUDPAddrPort([]byte(fmt.Sprintf("!%d;", w.sentinels)), to) // not all can be reached
				}
			}
			return w.knock(tcp)
		})
	}
}

// targets are where the sockets can be reached, and the services.
func (w *propertyWorld) targets(sockets []hostSocket) (udp, tcp []netip.AddrPort) {
	for _, s := range sockets {
		var addrs []netip.Addr
		switch {
		case s.at.Port() == 0 || s.peer.Port() != 0 && s.protocol == unix.IPPROTO_TCP:
			continue
		case s.at.Addr() == netip.IPv6Unspecified():
			addrs = []netip.Addr{testkit.HostAddr6, testkit.HostAddr4, netip.IPv6Loopback()}
		case s.at.Addr().IsUnspecified():
			addrs = []netip.Addr{testkit.HostAddr4, netip.MustParseAddr("127.0.0.1")}
		default:
			addrs = []netip.Addr{s.at.Addr()}
		}
		for _, a := range addrs {
			to := netip.AddrPortFrom(a, s.at.Port())
			list := &udp
			if s.protocol == unix.IPPROTO_TCP {
				list = &tcp
			}
			if !slices.Contains(*list, to) {
				*list = append(*list, to)
			}
		}
	}
	for _, s := range w.services {
		if s.Addr() == netip.IPv6Unspecified() {
			s = netip.AddrPortFrom(testkit.HostAddr4, s.Port())
		}
		udp = append(udp, s)
	}
	return udp, tcp
}

// knock sends a SYN to each address.
func (w *propertyWorld) knock(at []netip.AddrPort) error {
	for _, to := range at {
		family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
		if to.Addr().Is4() {
			family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Connect(fd, sa) // whether it is answered, the capture tells
		unix.Close(fd)
	}
	return nil
}

// onOneCPU runs f in a namespace on one CPU, whose queue of packets is in the order in which
// f sends them, and then sends a sentinel on each road and waits for them.
func (w *propertyWorld) onOneCPU(t *testing.T, ns *testkit.Namespace, f func() error) {
	t.Helper()
	roads := []string{hostAddr4, otherHostAddr4, hostAddr6, otherHostAddr6}
	if ns == w.Host {
		roads = append(roads, "127.0.0.1", "::1")
	}
	var wanted []string
	err := ns.Do(func() error {
		runtime.LockOSThread() // and the thread ends with Do
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		first := 0
		for !set.IsSet(first) {
			first++
		}
		set.Zero()
		set.Set(first)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		for _, to := range roads {
			w.sentinels++
			text := fmt.Sprintf("!%d;", w.sentinels)
			wanted = append(wanted, text)
			to := net.JoinHostPort(to, strconv.Itoa(watchPort))
			if _, err := w.probers[ns][0].WriteToUDPAddrPort([]byte(text), netip.MustParseAddrPort(to)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, wanted)
}

// await waits until all of some sentinels have arrived.
func (w *propertyWorld) await(t *testing.T, wanted []string) {
	t.Helper()
	if err := w.watch.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	for len(wanted) > 0 {
		n, _, err := w.watch.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("sentinels %v did not arrive: %v", wanted, err)
		}
		wanted = slices.DeleteFunc(wanted, func(s string) bool { return s == string(buf[:n]) })
	}
}

// flush returns what has passed the host's interfaces since the last call, all that was sent
// before this call included.
func (w *propertyWorld) flush(t *testing.T) []frame {
	t.Helper()
	for _, ns := range []*testkit.Namespace{w.Remote, w.Host} {
		w.onOneCPU(t, ns, func() error { return nil })
	}
	frames := w.capture.take(t, fmt.Sprintf("!%d;", w.sentinels))
	if n := w.capture.lost(t); n != 0 {
		t.Fatalf("the capture lost %d packets: this run shows nothing", n)
	}
	return frames
}

// groups are the multicast groups of drivers that somebody has joined on the host.
func (w *propertyWorld) groups(t *testing.T) []string {
	t.Helper()
	var found []string
	for file, groups := range map[string]map[string]string{
		"igmp":  {"030201EF": "239.1.2.3", "EF010203": "239.1.2.3"}, // by the machine's order
		"igmp6": {"ff150000000000000000000000000007": "ff15::7"},
	} {
		joined := strings.Fields(readIn(t, w.Host, "/proc/thread-self/net/"+file))
		for text, group := range groups {
			if slices.Contains(joined, text) {
				found = append(found, group)
			}
		}
	}
	return found
}
