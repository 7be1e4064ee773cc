package enforcer

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// onLoopback is containers with the loopback on the host: the first two share one, the third
// has another; the last may send to 127.0.0.1:5353 of the host's.
func onLoopback(t *testing.T, fn func(list []*contained)) {
	t.Helper()
	containers(t, func(_ uint64, list []*contained) {
		for i, netns := range []uint64{7, 7, 8, 9} {
			if err := list[i].UseLoopback(netns); err != nil {
				t.Fatal(err)
			}
		}
		fn(list)
	}, nil, nil, nil, []string{"127.0.0.1/32:5353=any", "198.51.100.1/32=any"})
}

// of makes a socket of a container's, or of the host's if that is nil. It gives up after a minute.
func of(t *testing.T, c *contained, family, typ int) (s int) {
	t.Helper()
	make := func() { s = socketOf(t, family, typ) }
	if c == nil {
		make()
	} else if err := inGroup(c.group, make); err != nil {
		t.Fatal(err)
	}
	patience := unix.NsecToTimeval(testkit.Patience.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, option, &patience); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// private binds a socket to an address, whose port the host's has another for.
func (c *contained) private(t *testing.T, s, protocol int, view netip.AddrPort, port uint16) {
	t.Helper()
	if have, err := c.PrivatePort(protocol, view.Port(), 0, port, nil); err != nil || have != port {
		t.Fatalf("private port of %v: %d, %v", view, have, err)
	}
	b := policy.Binding{Host: netip.AddrPortFrom(view.Addr(), port), View: view, Private: true}
	if err := errors.Join(c.AllowBind(s, b), unix.Bind(s, sockaddr.Of(b.Host))); err != nil {
		t.Fatal(err)
	}
}

// closeSocket closes a socket, whose number stays open.
func closeSocket(t *testing.T, s int) {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Dup2(null, s), unix.Close(null))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func nameOf(sa unix.Sockaddr) string {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)).String()
	}
	return fmt.Sprint(sa)
}

func names2(t *testing.T, s int) (local, peer string) {
	t.Helper()
	l, lerr := unix.Getsockname(s)
	p, perr := unix.Getpeername(s)
	if err := errors.Join(lerr, perr); err != nil {
		t.Fatal(err)
	}
	return nameOf(l), nameOf(p)
}

// accept takes a connection and says who both ends are for the server, and who the client is by
// accept.
func accept(t *testing.T, l int) (local, peer, from string) {
	t.Helper()
	conn, sa, err := unix.Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(conn)
	local, peer = names2(t, conn)
	return local, peer, nameOf(sa)
}

// ways are the addresses by which a server is reached.
var ways = []struct {
	family   int
	bind, to string
	at       string // the address that both ends see
}{
	{unix.AF_INET, "127.0.0.1", "127.0.0.1", "127.0.0.1"},
	{unix.AF_INET, "127.0.0.53", "127.0.0.53", "127.0.0.53"},
	{unix.AF_INET, "0.0.0.0", "127.0.0.1", "127.0.0.1"},
	{unix.AF_INET, "0.0.0.0", "0.0.0.0", "127.0.0.1"},
	{unix.AF_INET6, "::1", "::1", "::1"},
	{unix.AF_INET6, "::", "::", "::1"},
	{unix.AF_INET6, "::", "::ffff:127.0.0.1", "::ffff:127.0.0.1"},
}

// strangers are who must not reach the port of a loopback.
func strangers(list []*contained) map[string]*contained {
	return map[string]*contained{"the host": nil, "another loopback": list[2]}
}

// A server is reached at the port that its program has bound, by the containers of its
// loopback only, and each end has the names that it has on a loopback of its own.
func TestPrivatePortOfTCP(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		for i, way := range ways {
			host := uint16(20000 + i)
			to := netip.AddrPortFrom(netip.MustParseAddr(way.to), uint16(80+i))
			l := of(t, list[0], way.family, unix.SOCK_STREAM)
			list[0].private(t, l, unix.IPPROTO_TCP, netip.AddrPortFrom(netip.MustParseAddr(way.bind), to.Port()), host)
			if err := unix.Listen(l, 16); err != nil {
				t.Fatal(err)
			}
			for who, c := range strangers(list) {
				// To the host's port, from where no policy is, or to the program's.
				s := of(t, c, way.family, unix.SOCK_STREAM)
				if c == nil {
					_ = unix.SetNonblock(s, true)
					if err := unix.Connect(s, sockaddr.Of(netip.AddrPortFrom(to.Addr(), host))); !errors.Is(err, unix.EINPROGRESS) {
						t.Errorf("%v: %s: %v", way, who, err)
					}
					continue
				}
				for _, port := range []uint16{to.Port(), host} {
					if err := unix.Connect(s, sockaddr.Of(netip.AddrPortFrom(to.Addr(), port))); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%v: %s to port %d: %v, want ECONNREFUSED", way, who, port, err)
					}
				}
			}
			for _, c := range list[:2] {
				s := of(t, c, way.family, unix.SOCK_STREAM)
				if err := unix.Connect(s, sockaddr.Of(to)); err != nil {
					t.Fatalf("%v: %v", way, err)
				}
				local, peer := names2(t, s)
				theirs, client, from := accept(t, l)
				at := netip.AddrPortFrom(netip.MustParseAddr(way.at), to.Port()).String()
				if peer != at || theirs != at || client != local || from != local {
					t.Errorf("%v: the client is %s and sees %s; the server is %s and sees %s, by accept %s", way, local, peer, theirs, client, from)
				}
			}
		}
	})
}

// The same of datagrams, and of their answers, with and without connect.
func TestPrivatePortOfUDP(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		for i, way := range ways {
			host := uint16(20000 + i)
			at := netip.MustParseAddr(way.to)
			to := netip.AddrPortFrom(at, uint16(80+i))
			server := of(t, list[0], way.family, unix.SOCK_DGRAM)
			list[0].private(t, server, unix.IPPROTO_UDP, netip.AddrPortFrom(netip.MustParseAddr(way.bind), to.Port()), host)
			for who, c := range strangers(list) {
				for _, port := range []uint16{to.Port(), host} {
					if err := unix.Sendto(of(t, c, way.family, unix.SOCK_DGRAM), []byte("stranger"), 0, sockaddr.Of(netip.AddrPortFrom(at, port))); err != nil {
						t.Errorf("%v: %s to port %d: %v", way, who, port, err)
					}
				}
			}
			for _, connects := range []bool{false, true} {
				client := of(t, list[1], way.family, unix.SOCK_DGRAM)
				// Its own port is a private one too.
				list[1].private(t, client, unix.IPPROTO_UDP, netip.AddrPortFrom(netip.MustParseAddr(way.bind), uint16(300+i)), uint16(21000+2*i))
				var err error
				if connects {
					if err = unix.Connect(client, sockaddr.Of(to)); err == nil {
						_, err = unix.Write(client, []byte("ask"))
					}
				} else {
					err = unix.Sendto(client, []byte("ask"), 0, sockaddr.Of(to))
				}
				if err != nil {
					t.Fatalf("%v: %v", way, err)
				}
				heard(t, server, "ask", netip.AddrPortFrom(netip.MustParseAddr(way.at), uint16(300+i)))
				if err := unix.Sendto(server, []byte("answer"), 0, sockaddr.Of(netip.AddrPortFrom(netip.MustParseAddr(way.at), uint16(300+i)))); err != nil {
					t.Fatalf("%v: answer: %v", way, err)
				}
				heard(t, client, "answer", netip.AddrPortFrom(netip.MustParseAddr(way.at), to.Port()))
				closeSocket(t, client)
			}
		}
	})
}

// heard receives the next datagram.
func heard(t *testing.T, s int, text string, from netip.AddrPort) {
	t.Helper()
	var buf [32]byte
	n, sa, err := unix.Recvfrom(s, buf[:], 0)
	if err != nil || string(buf[:n]) != text || nameOf(sa) != from.String() {
		t.Errorf("%q from %s, %v; want %q from %s", buf[:max(n, 0)], nameOf(sa), err, text, from)
	}
}

// Sockets share a private port of UDP if they set SO_REUSEADDR. The kernel knows it as SO_REUSEPORT,
// so that nobody shares the port who sets SO_REUSEADDR alone.
func TestPrivatePortShared(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		at := netip.MustParseAddrPort("127.0.0.1:53")
		var own [2]int
		for i := range own {
			own[i] = of(t, list[i], unix.AF_INET, unix.SOCK_DGRAM)
			list[i].share(t, own[i], at, 20000)
			for option, want := range map[int]int{unix.SO_REUSEADDR: 1, unix.SO_REUSEPORT: 0} {
				if is, err := unix.GetsockoptInt(own[i], unix.SOL_SOCKET, option); err != nil || is != want {
					t.Errorf("option %d of socket %d is %d, %v, want %d", option, i, is, err, want)
				}
			}
		}
		host := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
		err := unix.SetsockoptInt(host, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := errors.Join(err, unix.Bind(host, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:20000")))); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a socket of the host: %v, want EADDRINUSE", err)
		}
		closeSocket(t, own[0])
		if err := unix.Sendto(of(t, list[0], unix.AF_INET, unix.SOCK_DGRAM), []byte("ask"), 0, sockaddr.Of(at)); err != nil {
			t.Fatal(err)
		}
		var buf [8]byte
		if n, _, err := unix.Recvfrom(own[1], buf[:], 0); err != nil || string(buf[:n]) != "ask" {
			t.Errorf("%q, %v", buf[:max(n, 0)], err)
		}
	})
}

// share is private for a UDP socket that sets SO_REUSEADDR.
func (c *contained) share(t *testing.T, s int, view netip.AddrPort, port uint16) {
	t.Helper()
	if _, err := c.PrivatePort(unix.IPPROTO_UDP, view.Port(), 0, port, nil); err != nil {
		t.Fatal(err)
	}
	b := policy.Binding{Host: netip.AddrPortFrom(view.Addr(), port), View: view, Private: true}
	err := c.AllowBind(s, b)
	if err := errors.Join(err, unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(s, sockaddr.Of(b.Host))); err != nil {
		t.Fatal(err)
	}
}

// A port that the kernel chose, at bind or at listen, stands for itself, and is as private.
func TestPortOfTheKernelsChoice(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		for _, bind := range []string{"127.0.0.1:0", "0.0.0.0:0", ""} {
			l := of(t, list[0], unix.AF_INET, unix.SOCK_STREAM)
			if bind != "" {
				if err := unix.Bind(l, sockaddr.Of(netip.MustParseAddrPort(bind))); err != nil {
					t.Fatalf("bind %s: %v", bind, err)
				}
			}
			if err := unix.Listen(l, 16); err != nil {
				t.Fatal(err)
			}
			sa, _ := unix.Getsockname(l)
			to := &unix.SockaddrInet4{Port: sa.(*unix.SockaddrInet4).Port, Addr: [4]byte{127, 0, 0, 1}}
			if err := unix.Connect(of(t, list[2], unix.AF_INET, unix.SOCK_STREAM), to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%q: another loopback: %v", bind, err)
			}
			host := of(t, nil, unix.AF_INET, unix.SOCK_STREAM)
			_ = unix.SetNonblock(host, true)
			_ = unix.Connect(host, to)
			own := of(t, list[1], unix.AF_INET, unix.SOCK_STREAM)
			if err := unix.Connect(own, to); err != nil {
				t.Fatal(err)
			}
			local, _ := names2(t, own)
			if _, _, from := accept(t, l); from != local {
				t.Errorf("%q: the first is %s, not %s", bind, from, local)
			}
		}
	})
}

// What listens on the host's own loopback is nobody's there, unless a rule names it.
func TestHostsLoopbackIsAnothers(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		at := sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:5353"))
		any := sockaddr.Of(netip.MustParseAddrPort("0.0.0.0:5353"))
		l, u := of(t, nil, unix.AF_INET, unix.SOCK_STREAM), of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
		if err := errors.Join(unix.Bind(l, at), unix.Listen(l, 4), unix.Bind(u, at)); err != nil {
			t.Fatal(err)
		}
		for _, to := range []unix.Sockaddr{at, any} {
			if err := unix.Connect(of(t, list[0], unix.AF_INET, unix.SOCK_STREAM), to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("connect: %v, want ECONNREFUSED", err)
			}
			if err := unix.Sendto(of(t, list[0], unix.AF_INET, unix.SOCK_DGRAM), []byte("stranger"), 0, to); err != nil {
				t.Errorf("send: %v", err)
			}
			s := of(t, list[0], unix.AF_INET, unix.SOCK_DGRAM)
			if err := unix.Connect(s, to); err != nil {
				t.Errorf("connect UDP: %v", err)
			}
			if _, err := unix.Write(s, []byte("stranger")); err != nil {
				t.Errorf("write: %v", err)
			}
			if _, err := unix.Read(s, make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("read: %v, want ECONNREFUSED", err)
			}
		}
		ruled := of(t, list[3], unix.AF_INET, unix.SOCK_DGRAM)
		if err := errors.Join(unix.Connect(of(t, list[3], unix.AF_INET, unix.SOCK_STREAM), at), unix.Sendto(ruled, []byte("ask"), 0, at)); err != nil {
			t.Fatal(err)
		}
		var buf [32]byte
		n, from, err := unix.Recvfrom(u, buf[:], 0)
		if err != nil || string(buf[:n]) != "ask" {
			t.Fatalf("%q, %v", buf[:max(n, 0)], err)
		}
		if err := unix.Sendto(u, []byte("answer"), 0, from); err != nil {
			t.Fatal(err)
		}
		heard(t, ruled, "answer", netip.MustParseAddrPort("127.0.0.1:5353"))
	})
}

// A datagram socket whose peer has gone hears nobody who has taken the peer's port.
func TestPeerThatHasGone(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		server := of(t, list[0], unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Bind(server, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
			t.Fatal(err)
		}
		at, _ := unix.Getsockname(server)
		client := of(t, list[0], unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Connect(client, at); err != nil {
			t.Fatal(err)
		}
		name, _ := unix.Getsockname(client)
		closeSocket(t, server)
		host := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
		if err := errors.Join(unix.Bind(host, at), unix.Sendto(host, []byte("stranger"), 0, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(client, []byte("lost")); err != nil {
			t.Errorf("write: %v", err)
		}
		closeSocket(t, host)
		again := of(t, list[1], unix.AF_INET, unix.SOCK_DGRAM)
		list[1].private(t, again, unix.IPPROTO_UDP, netip.MustParseAddrPort(nameOf(at)), uint16(at.(*unix.SockaddrInet4).Port))
		if err := unix.Sendto(again, []byte("sentinel"), 0, name); err != nil {
			t.Fatal(err)
		}
		heard(t, client, "sentinel", netip.MustParseAddrPort(nameOf(at)))
	})
}

// A server that a rule has bound to an address of the host's is reached on the loopback by
// names of that, by its own; others reach it at its address, but not from a loopback one.
func TestPublishedOnLoopback(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		testkit.AddToLoopback(t, "198.51.100.1/32")
		for typ, protocol := range map[int]int{unix.SOCK_STREAM: unix.IPPROTO_TCP, unix.SOCK_DGRAM: unix.IPPROTO_UDP} {
			b := policy.Binding{Host: netip.MustParseAddrPort("198.51.100.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
			server := of(t, list[0], unix.AF_INET, typ)
			if err := errors.Join(list[0].AllowBind(server, b), unix.Bind(server, sockaddr.Of(b.Host)), list[0].Serve(protocol, b, 0)); err != nil {
				t.Fatal(err)
			}
			if typ == unix.SOCK_STREAM {
				if err := unix.Listen(server, 4); err != nil {
					t.Fatal(err)
				}
			}
			pretends := of(t, nil, unix.AF_INET, typ)
			_ = unix.SetNonblock(pretends, true)
			if err := unix.Bind(pretends, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:0"))); err != nil {
				t.Fatal(err)
			}
			_ = unix.Connect(pretends, sockaddr.Of(b.Host))
			_, _ = unix.Write(pretends, []byte("stranger"))

			own, host := of(t, list[1], unix.AF_INET, typ), of(t, nil, unix.AF_INET, typ)
			for s, to := range map[int]netip.AddrPort{own: netip.MustParseAddrPort("127.0.0.1:80"), host: b.Host} {
				if err := unix.Connect(s, sockaddr.Of(to)); err != nil {
					t.Fatal(err)
				}
				if _, err := unix.Write(s, []byte("ask")); err != nil {
					t.Fatal(err)
				}
				local, peer := names2(t, s)
				if peer != to.String() {
					t.Errorf("the server is %s for the client, want %s", peer, to)
				}
				if typ == unix.SOCK_DGRAM {
					heard(t, server, "ask", netip.MustParseAddrPort(local))
					if err := unix.Sendto(server, []byte("answer"), 0, sockaddr.Of(netip.MustParseAddrPort(local))); err != nil {
						t.Fatal(err)
					}
					heard(t, s, "answer", to)
					continue
				}
				want := netip.AddrPortFrom(to.Addr(), 80).String()
				if theirs, _, from := accept(t, server); from != local || theirs != want {
					t.Errorf("the server is %s for itself, want %s; its client is %s, want %s", theirs, want, from, local)
				}
			}
		}
	})
}
