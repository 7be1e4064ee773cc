package enforcer

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/policy"
)

// A socket remembers where its last destination is on the host. It does not reach another server that
// has the host's port since then, and it follows a rule that is added for the destination.
func TestDatagramsFollow(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		c := list[3]
		send := func(s int, text string, to netip.AddrPort) {
			t.Helper()
			if err := unix.Sendto(s, []byte(text), 0, sockaddr.Of(to)); err != nil {
				t.Errorf("send %q to %s: %v", text, to, err)
			}
		}
		serve := func(port, host uint16) (int, netip.AddrPort) {
			s, at := of(t, c, unix.AF_INET, unix.SOCK_DGRAM), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
			c.private(t, s, unix.IPPROTO_UDP, at, host)
			return s, at
		}
		server, at := serve(80, 20000)
		ruled, ruledAt := serve(82, 20002)
		client := of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
		for _, text := range []string{"first", "second"} {
			send(client, text, at)
			reads(t, server, text)
		}
		closeSocket(t, server)
		// Its private port becomes another port's.
		if _, err := c.PrivatePort(unix.IPPROTO_UDP, at.Port(), 20000, 20010, nil); err != nil {
			t.Error(err)
		}
		other, otherAt := serve(81, 20000)
		for range 2 {
			send(client, "not for this one", at)
		}
		send(of(t, c, unix.AF_INET, unix.SOCK_DGRAM), "sentinel", otherAt)
		reads(t, other, "sentinel")

		for range 2 {
			send(client, "to the loopback", ruledAt)
			reads(t, ruled, "to the loopback")
		}
		host := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Bind(host, sockaddr.Of(ruledAt)); err != nil {
			t.Fatal(err)
		}
		own, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		next, err := c.table.Next(c.table.IngressRules(), append(c.table.EgressRules(), policy.Egress{
			Prefix: netip.PrefixFrom(ruledAt.Addr(), 32), Ports: endpoint.PortRange{First: 82, Last: 82}, Endpoint: c.table.Numbered()[0],
		}))
		if err == nil {
			err = c.Update(next, func(*endpoint.Endpoint) uint64 { return own.Cookie() })
		}
		if err != nil {
			t.Fatal(err)
		}
		send(client, "by the rule", ruledAt)
		reads(t, host, "by the rule")
	})
}

// reads receives the next datagram.
func reads(t *testing.T, s int, text string) {
	t.Helper()
	var buf [32]byte
	if n, _, err := unix.Recvfrom(s, buf[:], 0); err != nil || string(buf[:max(n, 0)]) != text {
		t.Errorf("%q, %v; want %q", buf[:max(n, 0)], err, text)
	}
}
