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

// published makes a UDP server of a container's that a rule has bound to an address of the host's.
// Its programs know it by port 80 of their loopback.
func (c *contained) published(t *testing.T) (server int, at netip.AddrPort) {
	t.Helper()
	testkit.AddToLoopback(t, "198.51.100.1/32")
	b := policy.Binding{Host: netip.MustParseAddrPort("198.51.100.1:8080"), View: netip.MustParseAddrPort("0.0.0.0:80"), Ingress: true}
	server = of(t, c, unix.AF_INET, unix.SOCK_DGRAM)
	if err := errors.Join(c.AllowBind(server, b), unix.Bind(server, sockaddr.Of(b.Host)), c.Serve(unix.IPPROTO_UDP, b, 0)); err != nil {
		t.Fatal(err)
	}
	return server, b.Host
}

// A datagram socket that was led to a server of the container's at an address of the host's does not
// reach who has that address and port when the server has gone.
func TestServerHasGone(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		server, at := list[0].published(t)
		client := of(t, list[1], unix.AF_INET, unix.SOCK_DGRAM)
		err := errors.Join(
			unix.Bind(client, sockaddr.Of(netip.MustParseAddrPort("0.0.0.0:0"))), // then the kernel chooses its source
			unix.Connect(client, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:80"))))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(client, []byte("ask")); err != nil {
			t.Fatal(err)
		}
		reads(t, server, "ask")
		closeSocket(t, server)
		service, neighbour := of(t, nil, unix.AF_INET, unix.SOCK_DGRAM), of(t, nil, unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Bind(service, sockaddr.Of(at)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(client, []byte("for the server")); !errors.Is(err, unix.EPERM) {
			t.Errorf("the client sends to the host's service: %v, want %v", err, unix.EPERM)
		}
		if err := unix.Sendto(neighbour, []byte("sentinel"), 0, sockaddr.Of(at)); err != nil {
			t.Fatal(err)
		}
		reads(t, service, "sentinel")
	})
}

// A server that answers from the address at which it was asked, by a socket of its own, is heard by
// who has asked it on the loopback, and hears that one.
func TestAnswersFromHost(t *testing.T) {
	onLoopback(t, func(list []*contained) {
		server, _ := list[3].published(t)
		client := of(t, list[3], unix.AF_INET, unix.SOCK_DGRAM)
		if err := unix.Sendto(client, []byte("ask"), 0, sockaddr.Of(netip.MustParseAddrPort("127.0.0.1:80"))); err != nil {
			t.Fatal(err)
		}
		var buf [8]byte
		_, asker, err := unix.Recvfrom(server, buf[:], 0)
		if err != nil {
			t.Fatal(err)
		}
		own := policy.Binding{Host: netip.MustParseAddrPort("198.51.100.1:0"), View: netip.MustParseAddrPort("198.51.100.1:0")}
		answers := of(t, list[3], unix.AF_INET, unix.SOCK_DGRAM)
		err = errors.Join(list[3].AllowBind(answers, own), unix.Bind(answers, sockaddr.Of(own.Host)), unix.Connect(answers, asker))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(answers, []byte("first")); err != nil {
			t.Fatal(err)
		}
		_, from, err := unix.Recvfrom(client, buf[:], 0)
		if err == nil {
			err = unix.Connect(client, from)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(client, []byte("second")); err != nil {
			t.Fatal(err)
		}
		reads(t, answers, "second")
	})
}
