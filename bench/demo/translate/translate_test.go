package main

import (
	"bytes"
	"net"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The demo shows what it claims: the programs see a virtual address, and no IPv4 packet is on a link of the
// host. Its table has all rows and columns.
func TestDemo(t *testing.T) {
	for _, name := range []string{"gcc", "curl", "python3", "dnsmasq", "tayga", "haproxy"} {
		testkit.Program(t, name)
	}
	testkit.BuildTsugiki(t)
	testkit.Build(t, testkit.Options{IPv6Only: true}) // skips what the demo would fail at
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-rounds", "1"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	for _, want := range []string{
		`curl -4 http://server\.example:8080/ `,
		`hello 2001:db8:1::1 `,
		`local 192\.0\.0\.2 `,
		`remote 198\.18\.0\.1:8080 `,
		`gethostbyname 198\.18\.0\.1 `,
		`SO_DOMAIN AF_INET `,
		`getsockname 192\.0\.0\.2 `,
		`getpeername 198\.18\.0\.1:8080 `,
		`recvfrom 198\.18\.0\.1:7\b`,
		` IPv6 TCP 2001:db8:1::1, \[2001:db8:1::2\]:8080: \d`,
		` IPv6 UDP 2001:db8:1::1, \[2001:db8:1::2\]:7: \d`,
		` IPv6 packets: [1-9]`,
		` IPv4 packets: 0\n`,
		`\n +ipv4 +ipv6 .*translated\S* +tayga +haproxy\n`,
		`\nTCP throughput +Gbit/s `,
		`\nTCP CPU of the machine +s/GB `,
		`\nTCP round trip p50 +us `,
		`\nTCP round trip p99 +us `,
		`\nTCP new connections +1/s `,
		`\nUDP round trip p50 +us `,
		`\nThis took \d+ s\.\n`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout.String()) {
			t.Errorf("no %q", want)
		}
	}
	// haproxy carries no datagrams.
	if n := len(regexp.MustCompile(`(?m)  -( |$)`).FindAllString(stdout.String(), -1)); n != 1 {
		t.Errorf("%d figures are missing, want 1", n)
	}
	if t.Failed() {
		t.Logf("the demo printed\n%s", stdout.String())
	}
}

// A capture sees packets of both families on a link, and none of the loopback's.
func TestCapture(t *testing.T) {
	top := testkit.Build(t, testkit.Options{})
	c, err := newCapture(top.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := func(addr string) net.PacketConn {
		var conn net.PacketConn
		err := top.Remote.Do(func() (err error) {
			conn, err = net.ListenPacket("udp", addr)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	send := func(to string) {
		err := top.Host.Do(func() error {
			conn, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	received := func(conn net.PacketConn) {
		if _, _, err := conn.ReadFrom(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	server4, server6 := server("198.51.100.2:9"), server("[2001:db8:1::2]:9")
	send("127.0.0.1:9")
	for range 2 {
		send("198.51.100.2:9")
		received(server4)
	}
	send("[2001:db8:1::2]:9")
	received(server6)
	n, err := c.end()
	if err != nil {
		t.Fatal(err)
	}
	if n.ipv4 != 2 || n.flows["IPv6 UDP 2001:db8:1::1, [2001:db8:1::2]:9"] != 1 {
		t.Errorf("%+v", n)
	}
	if lines := strings.Join(n.lines(), "\n"); !strings.Contains(lines, "IPv4 packets: 2\n") {
		t.Errorf("it says\n%s", lines)
	}
}

func TestDescribe(t *testing.T) {
	packet := make([]byte, 60)
	packet[0], packet[6] = 0x60, unix.IPPROTO_TCP
	copy(packet[8:], testkit.HostAddr6.AsSlice())
	copy(packet[24:], testkit.RemoteAddr6.AsSlice())
	copy(packet[40:], []byte{0xc0, 0, 0, 80})
	answer := bytes.Clone(packet)
	copy(answer[8:], testkit.RemoteAddr6.AsSlice())
	copy(answer[24:], testkit.HostAddr6.AsSlice())
	copy(answer[40:], []byte{0, 80, 0xc0, 0})
	for _, p := range [][]byte{packet, answer} {
		if got, want := describe(p), "IPv6 TCP 2001:db8:1::1, [2001:db8:1::2]:80"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	packet[6] = unix.IPPROTO_ICMPV6
	for size, want := range map[int]string{60: "IPv6 ICMP", 43: "IPv6", 0: "IPv6"} {
		if got := describe(packet[:size]); got != want {
			t.Errorf("%d bytes are %q, want %q", size, got, want)
		}
	}
}
