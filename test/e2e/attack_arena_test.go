package e2e

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// arena is a host and a remote, with traps on all that must not be reached.
type arena struct {
	*testkit.Topology
	t      *testing.T
	remote netip.Addr // the remote's link-local IPv6 address, as the host sees it
	index  int        // of the host's link to it

	rounds int             // of sentinels
	sent   map[string]bool // sentinels

	mu        sync.Mutex      // guards what follows
	hits      map[string]bool // what has arrived: "WHERE: PAYLOAD"
	sentinels map[string]bool // that have arrived
	reading   int             // connections that are read from
}

// newArena builds an arena. What arrives at the allowed addresses is recorded
// with "allowed" as the place.
func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{Topology: testkit.Build(t, testkit.Options{}), t: t, sent: map[string]bool{}, hits: map[string]bool{}, sentinels: map[string]bool{}}
	for ns, addrs := range map[*testkit.Namespace][]string{
		a.Host:   {linkLocal4 + "/16"},
		a.Remote: {otherRemote4 + "/24", otherLinkLocal + "/16", otherRemote6 + "/64"},
	} {
		link := map[*testkit.Namespace]string{a.Host: "srv", a.Remote: "h"}[ns]
		for _, addr := range addrs {
			args := []string{"addr", "add", addr, "dev", link}
			if strings.Contains(addr, ":") {
				args = append(args, "nodad")
			}
			succeed(t, command(t, ns, "ip", args...))
		}
	}
	a.findLinkLocal()
	for _, port := range []uint16{allowedPort, secretPort} {
		a.trapTCP(a.Remote, port)
		a.trapUDP(a.Remote, "", port)
	}
	a.trapUDP(a.Remote, testkit.RemoteAddr4.String(), allowedPort)
	a.trapUDP(a.Remote, testkit.RemoteAddr6.String(), allowedPort)
	a.trapTCP(a.Host, secretPort)
	a.trapUDP(a.Host, "", secretPort)
	return a
}

func (a *arena) findLinkLocal() {
	a.t.Helper()
	err := a.Remote.Do(func() error {
		link, err := net.InterfaceByName("h")
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		for _, addr := range addrs {
			if p, err := netip.ParsePrefix(addr.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				a.remote = p.Addr()
			}
		}
		return err
	})
	if err == nil {
		err = a.Host.Do(func() error {
			link, err := net.InterfaceByName("srv")
			if err == nil {
				a.index = link.Index
			}
			return err
		})
	}
	if err != nil || !a.remote.IsValid() {
		a.t.Fatalf("find link-local address: %v", err)
	}
}

// forbidden are destinations that the rule for one address and port leaves out.
func (a *arena) forbidden() (ip4, ip6 []string) {
	for _, s := range []string{
		"127.0.0.1", "127.5.5.5", "0.0.0.0", hostAddr4, linkLocal4, otherLinkLocal, remoteAddr4,
		"239.1.2.3", "224.0.0.251", "255.255.255.255", "198.51.100.255",
	} {
		ip4 = append(ip4, fmt.Sprintf("%s:%d", s, secretPort))
	}
	ip4 = append(ip4, fmt.Sprintf("%s:%d", otherRemote4, allowedPort))
	for _, s := range []string{
		"::1", "::", hostAddr6, remoteAddr6, "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:" + hostAddr4,
		fmt.Sprintf("%s%%%d", a.remote, a.index), fmt.Sprintf("ff02::1%%%d", a.index),
	} {
		ip6 = append(ip6, fmt.Sprintf("[%s]:%d", s, secretPort))
	}
	return ip4, append(ip6, fmt.Sprintf("[%s]:%d", otherRemote6, allowedPort))
}

func (a *arena) hit(where, payload string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.HasPrefix(payload, sentinel) {
		a.sentinels[payload] = true
		return
	}
	a.hits[where+": "+payload] = true
}

// read counts the connections that are read from.
func (a *arena) read(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reading += more
}

// place names where something arrived.
func (a *arena) place(ns *testkit.Namespace, local net.Addr) string {
	at := netip.MustParseAddrPort(local.String())
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if ns == a.Remote && (at == allowed4 || at == allowed6) {
		return "allowed"
	}
	return ns.Name() + " " + at.String()
}

// reuse lets a socket for one address stand beside one for all.
func reuse(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
}

// alone keeps a port from all others, as Go's listeners do not.
func alone(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	})
}

// trapTCP listens on all addresses of a namespace.
func (a *arena) trapTCP(ns *testkit.Namespace, port uint16) {
	a.t.Helper()
	if err := a.listenTrap(ns, port, reuse); err != nil {
		a.t.Fatal(err)
	}
}

func (a *arena) listenTrap(ns *testkit.Namespace, port uint16, control func(_, _ string, c syscall.RawConn) error) error {
	var l net.Listener
	config := net.ListenConfig{Control: control}
	err := ns.Do(func() (err error) {
		l, err = config.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", port))
		return err
	})
	if err != nil {
		return err
	}
	a.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			a.read(1)
			go func() {
				defer a.read(-1)
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(testkit.Patience)) // until the other end is closed
				payload, _ := io.ReadAll(io.LimitReader(conn, 256))
				a.hit(a.place(ns, conn.LocalAddr()), string(payload))
			}()
		}
	}()
	return nil
}

// trapUDP is bound to one address of a namespace, or to all and to two
// multicast groups.
func (a *arena) trapUDP(ns *testkit.Namespace, addr string, port uint16) {
	a.t.Helper()
	var c net.PacketConn
	config := net.ListenConfig{Control: func(network, address string, raw syscall.RawConn) error {
		err := reuse(network, address, raw)
		if err != nil || addr != "" {
			return err
		}
		return raw.Control(func(fd uintptr) { joinGroups(int(fd)) })
	}}
	err := ns.Do(func() (err error) {
		c, err = config.ListenPacket(context.Background(), "udp", net.JoinHostPort(addr, strconv.Itoa(int(port))))
		return err
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			a.hit(a.place(ns, c.LocalAddr()), string(buf[:n]))
		}
	}()
}

// joinGroups joins the groups on every link. A link that cannot is none of
// those that datagrams come by.
func joinGroups(fd int) {
	for index := 1; index < 8; index++ {
		for _, group := range [][4]byte{{239, 1, 2, 3}, {224, 0, 0, 251}} {
			_ = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
				&unix.IPMreqn{Multiaddr: group, Ifindex: int32(index)})
		}
	}
}

// arrived returns what arrived somewhere else than where it may, and what did
// where it may, and forgets it.
func (a *arena) arrived() (allowed, forbidden []string) {
	a.t.Helper()
	a.settle()
	a.mu.Lock()
	defer a.mu.Unlock()
	for hit := range a.hits {
		if payload, ok := strings.CutPrefix(hit, "allowed: "); ok {
			allowed = append(allowed, payload)
		} else {
			forbidden = append(forbidden, hit)
		}
	}
	clear(a.hits)
	slices.Sort(allowed)
	slices.Sort(forbidden)
	return allowed, forbidden
}

// unharmed fails the test for everything that arrived where it must not.
func (a *arena) unharmed() {
	a.t.Helper()
	if _, forbidden := a.arrived(); len(forbidden) > 0 {
		a.t.Errorf("reached what no rule allows:\n%s", strings.Join(forbidden, "\n"))
	}
}

// sockets are the local addresses of a namespace's sockets in a state, in hexadecimal.
func sockets(t *testing.T, ns *testkit.Namespace, network, state string) []netip.AddrPort {
	t.Helper()
	var found []netip.AddrPort
	err := ns.Do(func() error {
		for _, file := range []string{network, network + "6"} {
			table, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			for l := range strings.Lines(string(table)) {
				fields := strings.Fields(l)
				if len(fields) > 3 && fields[3] == state {
					found = append(found, parseProcAddr(t, fields[1]))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// parseProcAddr reads an address of /proc/net/tcp: words of the machine's order
// in hexadecimal.
func parseProcAddr(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	addr, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	number, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil {
		t.Fatalf("socket address %q", s)
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip, uint16(number))
}

// noListeners fails the test for every listener of the host that the remote can
// reach, other than the traps and one for which there is a rule. The remote reaches a
// trap after it has tried all of them from the same CPU.
func (a *arena) noListeners() {
	a.t.Helper()
	var doors []string
	for _, l := range sockets(a.t, a.Host, "tcp", "0A") {
		if l.Port() == secretPort || l.Port() == ingressPort {
			continue
		}
		host := testkit.HostAddr4
		if l.Addr().Is6() {
			host = testkit.HostAddr6
		}
		doors = append(doors, "tcp/"+netip.AddrPortFrom(host, l.Port()).String())
	}
	open := secret("tcp", hostAddr4)
	h := hold(a.t, command(a.t, a.Remote, attackProgram(a.t, "static"), slices.Concat([]string{"loop-knock", "-"}, doors, []string{open})...), "knocked")
	h.awaits(open + ": ok")
	for _, at := range doors {
		if slices.Contains(h.said, at+": ok") {
			a.t.Errorf("the remote can connect to a listener at %s, for which there is no rule", at)
		}
	}
	h.release()
	hit := fmt.Sprintf("h %s:%d: intruder", hostAddr4, secretPort)
	a.awaitHit(hit)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.hits, hit)
}

// taken tells whether a port of the host is in use: whether a process of the
// host cannot have it.
func (a *arena) taken(network string, port uint16) bool {
	a.t.Helper()
	err := a.Host.Do(func() error {
		addr := fmt.Sprintf("0.0.0.0:%d", port)
		if network == "udp" {
			c, err := net.ListenPacket("udp4", addr)
			if err == nil {
				c.Close()
			}
			return err
		}
		l, err := net.Listen("tcp4", addr)
		if err == nil {
			l.Close()
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.EADDRINUSE) {
		a.t.Fatal(err)
	}
	return err != nil
}
