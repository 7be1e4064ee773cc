package enforcer

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// setNet sets an option of the thread's network namespace, net.ipv4.NAME.
func setNet(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// chosen is a TCP socket that is bound to port 0 of an address, until the kernel chooses a port.
func chosen(t *testing.T, c *contained, at netip.AddrPort) int {
	t.Helper()
	for range 200 {
		s := of(t, c, unix.AF_INET, unix.SOCK_STREAM)
		if err := unix.Bind(s, sockaddr.Of(netip.AddrPortFrom(at.Addr(), 0))); err != nil {
			t.Fatal(err)
		}
		if sa, err := unix.Getsockname(s); err == nil && nameOf(sa) == at.String() {
			return s
		}
		closeSocket(t, s)
	}
	t.Fatalf("the kernel does not choose %s", at)
	return -1
}

// connected tells whether a socket gets a connection, having begun one to an address. The loopback
// delivers the packets that one CPU sends in their order.
func connected(t *testing.T, s int, to netip.AddrPort) bool {
	t.Helper()
	onOneCPU(t)
	_ = unix.SetNonblock(s, true)
	if err := unix.Connect(s, sockaddr.Of(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Errorf("connect to %s: %v", to, err)
	}
	sentinel := netip.MustParseAddrPort("127.0.0.8:30000") // not of ip_local_port_range
	own := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
	if err := unix.Bind(own, sockaddr.Of(sentinel)); err != nil {
		t.Fatal(err)
	}
	defer closeSocket(t, own)
	for _, behind := range []string{"SYN", "SYN and ACK", "ACK"} {
		if err := unix.Sendto(own, []byte(behind), 0, sockaddr.Of(sentinel)); err != nil {
			t.Fatal(err)
		}
		reads(t, own, behind)
	}
	_, err := unix.Getpeername(s)
	return err == nil
}

// onOneCPU keeps the calling thread, which is the test's own, on one CPU.
func onOneCPU(t *testing.T) {
	t.Helper()
	var all, one unix.CPUSet
	err := unix.SchedGetaffinity(0, &all)
	for cpu := 0; err == nil && one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err == nil {
		err = unix.SchedSetaffinity(0, &one)
	}
	if err != nil {
		t.Fatalf("stay on one CPU: %v", err)
	}
}

// A socket that connects on the loopback, and has no answer yet, is not connected by who connects to
// it from there.
func TestSimultaneousOpen(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		setNet(t, "ip_local_port_range", "40000 40003")
		port := uint16(40001) // the kernel prefers odd ones
		for who, stranger := range strangers(list) {
			own, theirs := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port)
			port += 2
			// What listens there has the SYN dropped, which is sent again after a second.
			l, client := of(t, nil, unix.AF_INET, unix.SOCK_STREAM), chosen(t, list[0], own)
			if err := errors.Join(unix.Bind(l, sockaddr.Of(theirs)), unix.Listen(l, 1)); err != nil {
				t.Fatal(err)
			}
			if connected(t, client, theirs) {
				t.Fatal("a listener of the host's is reached")
			}
			closeSocket(t, l)
			if connected(t, chosen(t, stranger, theirs), own) {
				t.Errorf("%s has a connection", who)
			}
			if _, err := unix.Getpeername(client); err == nil {
				t.Errorf("%s is the peer of the container's socket", who)
			}
		}
	})
}

// A listener answers by SYN cookies, which no program sees leave: to who is of its loopback.
func TestSYNCookies(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		setNet(t, "tcp_syncookies", "2")
		for i, way := range ways {
			host, to := uint16(20000+i), netip.AddrPortFrom(netip.MustParseAddr(way.to), uint16(80+i))
			l := of(t, list[0], way.family, unix.SOCK_STREAM)
			list[0].private(t, l, unix.IPPROTO_TCP, netip.AddrPortFrom(netip.MustParseAddr(way.bind), to.Port()), host)
			if err := unix.Listen(l, 16); err != nil {
				t.Fatal(err)
			}
			for _, c := range list[:2] {
				if err := unix.Connect(of(t, c, way.family, unix.SOCK_STREAM), sockaddr.Of(to)); err != nil {
					t.Errorf("%v: %v", way, err)
				}
			}
		}
	})
}

// Nobody connects to a listener whose container has ended, and that somebody still has; also not by
// SYN cookies, which no program sees leave.
func TestListenerOfEndedContainer(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		setNet(t, "tcp_syncookies", "2")
		onHost, published := list[0], list[1]
		if err := onHost.UseLoopback(7); err != nil {
			t.Fatal(err)
		}
		private := of(t, onHost, unix.AF_INET, unix.SOCK_STREAM)
		onHost.private(t, private, unix.IPPROTO_TCP, netip.MustParseAddrPort("0.0.0.0:80"), 20000)
		if err := unix.Listen(private, 4); err != nil {
			t.Fatal(err)
		}
		served := policy.Binding{Host: netip.MustParseAddrPort("127.0.0.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
		published.listen(t, served)
		if err := unix.Connect(of(t, nil, unix.AF_INET, unix.SOCK_STREAM), sockaddr.Of(served.Host)); err != nil {
			t.Errorf("a server that a rule has bound is not reached: %v", err)
		}
		for at, c := range map[netip.AddrPort]*contained{netip.MustParseAddrPort("127.0.0.1:20000"): onHost, served.Host: published} {
			c.End()
			if connected(t, of(t, nil, unix.AF_INET, unix.SOCK_STREAM), at) {
				t.Errorf("%s is reached", at)
			}
		}
	}, nil, nil)
}
