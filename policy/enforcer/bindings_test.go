package enforcer

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

// What was allowed to a socket is told of it, of no other socket and to no other container,
// until it is forgotten.
func TestBindings(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		a, b := list[0], list[1]
		host := netip.MustParseAddrPort("127.0.0.1:8080")
		s, other := a.socket(t, unix.SOCK_STREAM), a.socket(t, unix.SOCK_STREAM)
		if err := a.AllowBind(s, policy.Binding{Host: host, View: host, Ingress: true, Call: 7}); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name string
			e    *Enforcement
			sock int
			want bool
		}{{"its own", a.Enforcement, s, true}, {"another socket", a.Enforcement, other, false}, {"another container", b.Enforcement, s, false}} {
			at, known := tt.e.BoundTo(tt.sock)
			if tt.e.Bound(tt.sock) != tt.want || known != tt.want || known && at != netip.AddrPortFrom(netip.AddrFrom16(host.Addr().As16()), 8080) {
				t.Errorf("%s: bound to %v, %v", tt.name, at, known)
			}
			if tt.e.BoundBy(tt.sock, 7) != tt.want || tt.e.BoundBy(tt.sock, 8) || tt.e.BoundByIngress(tt.sock) != tt.want {
				t.Errorf("%s: bound by the call 7: %v, 8: %v", tt.name, tt.e.BoundBy(tt.sock, 7), tt.e.BoundBy(tt.sock, 8))
			}
		}
		for range 2 { // a second time changes nothing
			if err := a.ForgetBind(s); err != nil {
				t.Fatal(err)
			}
		}
		if a.Bound(s) {
			t.Error("it is not forgotten")
		}
		if err := unix.Bind(s, sockaddr.Of(host)); !errors.Is(err, unix.EPERM) {
			t.Errorf("bind that was forgotten: %v, want EPERM", err)
		}
	}, nil, nil)
}

// Who chose a socket's port is told of that socket, to the container that noted it.
func TestAnyPort(t *testing.T) {
	containers(t, func(_ uint64, list []*contained) {
		a, b := list[0], list[1]
		s, other := a.socket(t, unix.SOCK_DGRAM), a.socket(t, unix.SOCK_DGRAM)
		for _, chosen := range []bool{false, true, true, false, true} {
			if err := a.NoteAnyPort(s, chosen); err != nil {
				t.Fatal(err)
			}
			if a.AnyPort(s) != chosen || a.AnyPort(other) || b.AnyPort(s) {
				t.Errorf("%v was noted: %v, of another socket %v, for another container %v", chosen, a.AnyPort(s), a.AnyPort(other), b.AnyPort(s))
			}
		}
	}, nil, nil)
}

// Served knows the addresses of servers, and the wildcard stands for each.
func TestServed(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		a, b := list[0], list[1]
		for host, view := range map[string]string{"127.0.0.1:8080": "0.0.0.0:80", "0.0.0.0:9090": "0.0.0.0:90"} {
			at := policy.Binding{Host: netip.MustParseAddrPort(host), View: netip.MustParseAddrPort(view), Ingress: true}
			if err := a.Serve(unix.IPPROTO_TCP, at, here); err != nil {
				t.Fatal(err)
			}
		}
		for at, want := range map[string]bool{
			"127.0.0.1:8080": true, "127.0.0.2:8080": false, "127.0.0.1:80": false, "127.0.0.1:9090": true, "198.51.100.1:9090": true, "198.51.100.1:90": false,
		} {
			host := netip.MustParseAddrPort(at)
			if got := a.Served(unix.IPPROTO_TCP, host); got != want {
				t.Errorf("%s: %v, want %v", at, got, want)
			}
			if a.Served(unix.IPPROTO_UDP, host) || b.Served(unix.IPPROTO_TCP, host) {
				t.Errorf("%s is served by UDP or by another container", at)
			}
		}
	}, nil, nil)
}

// Connections are counted for the container whose sockets they are, by who began.
func TestConnections(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		a, b := list[0], list[1]
		host := netip.MustParseAddrPort("127.0.0.1:8080")
		b.listen(t, policy.Binding{Host: host, View: host, Ingress: true})
		if err := unix.Connect(a.socket(t, unix.SOCK_STREAM), sockaddr.Of(host)); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, func() error {
			na, erra := a.Connections()
			nb, errb := b.Connections()
			if na != (policy.Connections{Out: 1}) || nb != (policy.Connections{In: 1}) || erra != nil || errb != nil {
				return errors.Join(erra, errb, errors.New("connections are not counted"))
			}
			return nil
		})
	}, []string{"127.0.0.1/32:8080=any"}, nil)
}

// A container reaches its own server by the loopback and by the wildcard, which the kernel
// takes for the loopback. By neither it reaches another's that has the server's address.
func TestOwnServer(t *testing.T) {
	containers(t, func(here uint64, list []*contained) {
		own, other := list[0], list[1]
		for _, c := range []struct {
			server *contained
			host   string
			to     []string
			want   error
		}{
			{own, "127.0.0.1:8080", []string{"127.0.0.1:80", "0.0.0.0:80", "[::ffff:127.0.0.1]:80", "[::ffff:0.0.0.0]:80"}, nil},
			{own, "[::1]:8080", []string{"[::1]:80", "[::]:80"}, nil},
			{other, "127.0.0.1:8081", []string{"127.0.0.1:80", "0.0.0.0:80", "[::ffff:0.0.0.0]:80"}, unix.ECONNREFUSED},
			{other, "[::1]:8081", []string{"[::1]:80", "[::]:80"}, unix.ECONNREFUSED},
		} {
			served := policy.Binding{Host: netip.MustParseAddrPort(c.host), View: netip.MustParseAddrPort(c.to[0]), Ingress: true}
			c.server.listen(t, served)
			if err := own.Serve(unix.IPPROTO_TCP, served, here); err != nil {
				t.Fatal(err)
			}
			for _, to := range c.to {
				addr := netip.MustParseAddrPort(to)
				client := own.socketOf(t, familyOf(addr), unix.SOCK_STREAM)
				if err := unix.Connect(client, sockaddr.Of(addr)); !errors.Is(err, c.want) {
					t.Errorf("connect to %s, the server is at %s: %v, want %v", to, c.host, err, c.want)
				}
			}
		}
	}, nil, nil)
}
