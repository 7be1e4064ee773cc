package vm

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// datagramMax is the size of IPv4's longest. A translated datagram may have translatedMax bytes, of a link
// with an MTU of 1,500 (docs/LIMITS.md).
const (
	datagramMax   = 65507
	translatedMax = 1452
)

// translatedEnv says that datagrams are translated.
const translatedEnv = "TSUGIKI_VM_TRANSLATED"

// datagramChecks are checks of UDP in the guest.
func datagramChecks(at func(port int) string) []check {
	return []check{
		{"datagrams", func() error { return echoDatagrams(at(echoPort)) }},
		{"datagram names", func() error { return datagramNames(at(echoPort)) }},
		{"datagram errors", func() error { return datagramErrors(at(echoPort), at(closedPort)) }},
		{"unconnected", func() error { return unconnected(at(echoPort)) }},
		{"datagram server", serveDatagrams},
	}
}

// patiently bounds reads, so that a datagram that is lost ends the check.
func patiently(c net.Conn) error { return c.SetDeadline(time.Now().Add(testkit.Patience)) }

// echoDatagrams has datagrams of many sizes come back.
func echoDatagrams(addr string) error {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := patiently(c); err != nil {
		return err
	}
	got := make([]byte, 1<<16)
	sizes := []int{0, 1, translatedMax, 1472, 1473, 9000, datagramMax}
	if os.Getenv(translatedEnv) != "" {
		sizes = sizes[:3]
	}
	for _, size := range sizes {
		want := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := c.Write(want); err != nil {
			return fmt.Errorf("send %d bytes: %w", size, err)
		}
		n, err := c.Read(got)
		if err != nil || !bytes.Equal(got[:n], want) {
			return fmt.Errorf("of %d bytes came back %d: %w", size, n, err)
		}
	}
	return nil
}

// datagramNames compares the names of a connected socket with what its peer sees.
func datagramNames(addr string) error {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := patiently(c); err != nil {
		return err
	}
	if _, err := c.Write([]byte("who")); err != nil {
		return err
	}
	seen := make([]byte, 100)
	n, err := c.Read(seen)
	if err != nil {
		return err
	}
	own, peer := c.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort(string(seen[:n]))
	translated := peer.Addr().Is6() && own.Addr().Is4()
	if translated {
		peer = netip.AddrPortFrom(netip.MustParseAddr("192.0.0.2"), peer.Port())
	}
	if own != peer {
		return fmt.Errorf("the name is %s, and the peer sees %s", own, peer)
	}
	return nil
}

// datagramErrors has a datagram to nobody, and one that is too long.
func datagramErrors(open, closed string) error {
	c, err := net.Dial("udp", closed)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := patiently(c); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("nobody has said: %w", err)
	}
	if c, err = net.Dial("udp", open); err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, datagramMax+1)); !errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("a datagram that is too long: %w", err)
	}
	return nil
}

// unconnected has an answer come from the peer that was asked.
func unconnected(addr string) error {
	to, err := net.ResolveUDPAddr("udp4", addr)
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := patiently(c); err != nil {
		return err
	}
	if _, err := c.WriteToUDP([]byte("hello"), to); err != nil {
		return err
	}
	got := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(got)
	if err != nil || string(got[:n]) != "hello" || from.String() != to.String() {
		return fmt.Errorf("%q from %s, asked was %s: %w", got[:n], from, to, err)
	}
	return nil
}

// serveDatagrams serves the test until it says the end.
func serveDatagrams() error {
	c, err := net.ListenPacket("udp4", ":9002")
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("datagrams at", c.LocalAddr())
	got := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(got)
		if err != nil {
			return err
		}
		fmt.Printf("peer %s says %d bytes\n", from, n)
		if _, err := c.WriteTo(got[:n], from); err != nil {
			return err
		}
		if string(got[:n]) == "end" {
			return nil
		}
	}
}

// expectDatagrams follows the checks of UDP, and is a client of the guest's server, which a rule publishes.
func expectDatagrams(t *testing.T, g *uml.Guest, remote *testkit.Namespace, server netip.AddrPort) {
	t.Helper()
	for _, name := range []string{"datagrams", "datagram names", "datagram errors", "unconnected"} {
		g.Expect("check " + name + ": ok")
	}
	g.Expect("datagrams at 0.0.0.0:9002")
	var c net.Conn
	err := remote.Do(func() (err error) {
		c, err = net.Dial("udp", server.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := patiently(c); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<16)
	long := datagramMax
	if server.Addr().Is6() {
		long = translatedMax
	}
	for _, want := range [][]byte{[]byte("hello"), bytes.Repeat([]byte("y"), long), []byte("end")} {
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(got)
		if err != nil || !bytes.Equal(got[:n], want) {
			t.Fatalf("of %d bytes came back %d: %v", len(want), n, err)
		}
		name := c.LocalAddr().(*net.UDPAddr).AddrPort()
		if server.Addr().Is6() { // the guest has asked for its name
			name = netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), name.Port())
		}
		g.Expect(fmt.Sprintf("peer %s says %d bytes", name, len(want)))
	}
	g.Expect("check datagram server: ok")
}

// answerDatagrams is the remote's: it answers "who" with the sender's name, and all else with itself.
func answerDatagrams(t *testing.T, ns *testkit.Namespace, at netip.AddrPort) {
	t.Helper()
	var c *net.UDPConn
	err := ns.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go testkit.AnswerDatagrams(c, func(from netip.AddrPort, data []byte) []byte {
		if string(data) == "who" {
			return []byte(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()).String())
		}
		return data
	})
}
