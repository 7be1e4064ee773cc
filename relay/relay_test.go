package relay

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/policy"
)

func TestServersOnOwnLoopbackAnswer(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	cases := []struct {
		name     string
		family   int
		server   string // the server's address
		to, from string // the program's destination, and the source of the answer
	}{
		{"127.0.0.1", unix.AF_INET, "127.0.0.1", "127.0.0.1", "127.0.0.1"},
		{"127.0.0.53", unix.AF_INET, "127.0.0.53", "127.0.0.53", "127.0.0.53"},
		{"127.0.0.254", unix.AF_INET, "127.0.0.254", "127.0.0.254", "127.0.0.254"},
		{"wildcard server", unix.AF_INET, "0.0.0.0", "127.0.0.1", "127.0.0.1"},
		{"to 0.0.0.0", unix.AF_INET, "127.0.0.1", "0.0.0.0", "127.0.0.1"},
		{"::1", unix.AF_INET6, "::1", "::1", "::1"},
		{"to ::", unix.AF_INET6, "::1", "::", "::1"},
		{"mapped", unix.AF_INET6, "127.0.0.11", "::ffff:127.0.0.11", "::ffff:127.0.0.11"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			at, seen := serve(t, c.own.ns, netip.AddrPortFrom(netip.MustParseAddr(tc.server), 0))
			to := netip.AddrPortFrom(netip.MustParseAddr(tc.to), at.Port())
			answerer := netip.AddrPortFrom(netip.MustParseAddr(tc.from), at.Port())
			fd := c.hostSocket(t, tc.family)
			for _, size := range []int{0, 1, 1472, 65507} {
				sent := bytes.Repeat([]byte{byte(size)}, size)
				if err := unix.Sendto(fd, sent, 0, sockaddr(to)); err != nil {
					t.Fatalf("send %d bytes: %v", size, err)
				}
				got, from, heard := hears(t, fd, testkit.Patience)
				if !heard || !bytes.Equal(got, sent) || from != answerer {
					t.Errorf("sent %d bytes to %s, got %d from %s (%v)", size, to, len(got), from, heard)
				}
				client := <-seen
				if client.Port() != portOf(t, fd) || !client.Addr().IsLoopback() {
					t.Errorf("the server saw %s, the program's port is %d", client, portOf(t, fd))
				}
			}
		})
	}
}

// A socket that was bound for the outside, and a socket whose port is taken in the container's
// namespace.
func TestBoundSenders(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	for _, at := range []netip.Addr{host4, host6, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		family, loop := unix.AF_INET, loop4
		if at.Is6() {
			family, loop = unix.AF_INET6, loop6
		}
		fd := c.hostSocket(t, family)
		bound := netip.AddrPortFrom(at, 0)
		if err := c.enforced.AllowBind(fd, policy.Binding{Host: bound, View: bound}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, sockaddr(bound)); err != nil {
			t.Fatal(err)
		}
		taken := listen(t, c.own.ns, netip.AddrPortFrom(loop, portOf(t, fd)))
		server, seen := serve(t, c.own.ns, netip.AddrPortFrom(loop, 0))
		if err := unix.Sendto(fd, []byte("hello"), 0, sockaddr(server)); err != nil {
			t.Fatal(err)
		}
		if _, from, heard := hears(t, fd, testkit.Patience); !heard || from != server {
			t.Errorf("bound to %s: answer from %s (%v), want %s", at, from, heard, server)
		}
		if client := <-seen; client.Port() == portOf(t, fd) {
			t.Errorf("bound to %s: the server saw %s, where %s is", at, client, taken.LocalAddr())
		}
	}
}

// One socket sends to many servers: each answer has the address of its server.
func TestAnswersAreToldApart(t *testing.T) {
	testkit.CheckLeaks(t)
	c := newContainer(t, newHost(t), "a", 0)
	for _, loop := range []netip.Addr{loop4, loop6} {
		family := unix.AF_INET
		if loop.Is6() {
			family = unix.AF_INET6
		}
		fd := c.hostSocket(t, family)
		waiting := map[netip.AddrPort]bool{}
		for range 20 {
			server, _ := serve(t, c.own.ns, netip.AddrPortFrom(loop, 0))
			waiting[server] = true
			if err := unix.Sendto(fd, []byte(server.String()), 0, sockaddr(server)); err != nil {
				t.Fatal(err)
			}
		}
		for len(waiting) > 0 {
			text, from, heard := hears(t, fd, testkit.Patience)
			if !heard || !waiting[from] || string(text) != from.String() {
				t.Fatalf("answer %q from %s (%v)", text, from, heard)
			}
			delete(waiting, from)
		}
	}
}

func TestWhatIsNotRelayedIsRefused(t *testing.T) {
	testkit.CheckLeaks(t)
	host := newHost(t)
	c := newContainer(t, host, "a", 0)
	for _, to := range []string{"127.0.0.0:9", "127.0.0.255:65535", "127.0.1.1:53", "127.255.255.255:9", "[fe80::1]:9"} {
		family := unix.AF_INET
		dest := netip.MustParseAddrPort(to)
		if dest.Addr().Is6() {
			family = unix.AF_INET6
		}
		if err := unix.Sendto(c.hostSocket(t, family), []byte("x"), 0, sockaddr(dest)); !errors.Is(err, unix.EPERM) {
			t.Errorf("send to %s: %v, want EPERM", to, err)
		}
	}
	fd := c.hostSocket(t, unix.AF_INET)
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(host4, 9))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(netip.AddrPortFrom(loop4, 9))); !errors.Is(err, unix.EPERM) {
		t.Errorf("send from a connected socket: %v, want EPERM", err)
	}
	// A socket that is bound to a device is not checked against the policy any more.
	for _, fd := range []int{c.hostSocket(t, unix.AF_INET), c.hostSocket(t, unix.AF_INET6)} {
		if err := unix.BindToDevice(fd, "lo"); !errors.Is(err, unix.EPERM) {
			t.Errorf("SO_BINDTODEVICE: %v, want EPERM", err)
		}
	}
}

func TestAliases(t *testing.T) {
	from4, from6 := secrets()
	for _, server := range []string{"127.0.0.1:53", "127.0.0.254:65535", "[::1]:53", "[::1]:65535", "127.0.0.0:1", "127.0.0.255:1", "127.0.1.1:1", "10.0.0.1:1", "[2001:db8::1]:1"} {
		at := netip.MustParseAddrPort(server)
		e := &end{ip6: at.Addr().Is6(), secret: from4}
		if e.ip6 {
			e.secret = from6
		}
		want := at.Addr() == loop6 || at.Addr().Is4() && at.Addr().As4()[2] == 0 && at.Addr().IsLoopback() && at.Addr().As4()[3]%255 != 0
		alias, ok := e.aliasOf(at)
		if ok != want {
			t.Errorf("%s has an alias: %v, want %v", server, ok, want)
		}
		if ok && serverOf(alias) != at {
			t.Errorf("alias %s of %s is that of %s", alias, server, serverOf(alias))
		}
	}
}

func TestSecretsAreUsable(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		from4, from6 := secrets()
		four, six := from4.As4(), from6.As16()
		if !from4.IsLoopback() || four[1] == 0 || four[1] == 255 || six[14] != 0 || six[15] != 0 {
			t.Fatalf("secrets %s, %s", from4, from6)
		}
		seen[fmt.Sprint(from6)] = true
	}
	if len(seen) < 1000 {
		t.Errorf("%d different secrets of 1000", len(seen))
	}
}
