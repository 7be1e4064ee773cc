package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The ports of the peer. All of them are in the remote's own namespace.
const (
	tcpPort    = 7001 // echoes a stream
	udpPort    = 7002 // echoes datagrams
	udp2Port   = 7003 // echoes datagrams
	closedPort = 7004 // nobody there
	peerPort   = 7005 // tells a client its address, TCP
	upeerPort  = 7006 // tells a client its address, UDP
	halfPort   = 7007 // closes its sending side first
	resetPort  = 7008 // resets after the first byte
	holePort   = 7009 // answers no SYN
	ctlPort    = 7010 // dials the client, makes gates
)

// altAddr is the remote's address on a network that partial rules do not name.
var altAddr = netip.MustParseAddr("203.0.113.2")

// peer is the machine that the cases talk to.
type peer struct {
	ns      *testkit.Namespace
	closers []io.Closer
}

// peerArgs are the arguments that tell a probe where the peer is.
func peerArgs() []string {
	return []string{
		"v4=" + testkit.RemoteAddr4.String(), "v6=" + testkit.RemoteAddr6.String(),
		"alt=" + altAddr.String(),
		fmt.Sprint("tcp=", tcpPort), fmt.Sprint("udp=", udpPort), fmt.Sprint("udp2=", udp2Port),
		fmt.Sprint("closed=", closedPort), fmt.Sprint("peer=", peerPort), fmt.Sprint("upeer=", upeerPort),
		fmt.Sprint("half=", halfPort), fmt.Sprint("reset=", resetPort), fmt.Sprint("hole=", holePort),
		fmt.Sprint("ctl=", ctlPort),
	}
}

// startPeer starts all servers in the topology's remote namespace.
func startPeer(t *testing.T, top *testkit.Topology) {
	t.Helper()
	if err := addAltNetwork(top); err != nil {
		t.Fatal(err)
	}
	// The kernel sends one refusal of a datagram a second; every case is to
	// get its own.
	for _, name := range []string{"net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"} {
		if err := top.Remote.SetSysctl(name, "0"); err != nil {
			t.Fatal(err)
		}
	}
	// A late segment to a socket that has closed is answered with a reset, which must not end the
	// TIME_WAIT of a case's own socket (RFC 1337).
	if err := top.Host.SetSysctl("net.ipv4.tcp_rfc1337", "1"); err != nil {
		t.Fatal(err)
	}
	p := &peer{ns: top.Remote}
	t.Cleanup(func() {
		for _, c := range p.closers {
			c.Close()
		}
	})
	streams := map[int]func(*net.TCPConn){
		tcpPort: echo, peerPort: tellAddress, halfPort: halfClose, resetPort: reset, ctlPort: p.control,
	}
	for port, serve := range streams {
		if err := p.serveStream(port, serve); err != nil {
			t.Fatal(err)
		}
	}
	datagrams := map[int]func(netip.AddrPort, []byte) []byte{
		udpPort:   func(_ netip.AddrPort, data []byte) []byte { return data },
		udp2Port:  func(_ netip.AddrPort, data []byte) []byte { return data },
		upeerPort: func(from netip.AddrPort, _ []byte) []byte { return []byte(addressLine(from)) },
	}
	for port, answer := range datagrams {
		for _, addr := range []netip.Addr{testkit.RemoteAddr4, testkit.RemoteAddr6, altAddr} {
			if err := p.serveDatagrams(netip.AddrPortFrom(addr, uint16(port)), answer); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := p.gate(holePort); err != nil {
		t.Fatal(err)
	}
}

// addAltNetwork gives the remote a second address and the host a way there.
func addAltNetwork(top *testkit.Topology) error {
	err := top.Remote.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: altAddr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	})
	if err != nil {
		return fmt.Errorf("add address %s to remote: %w", altAddr, err)
	}
	err = top.Host.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{
			Dst: &net.IPNet{IP: altAddr.AsSlice(), Mask: net.CIDRMask(32, 32)},
			Gw:  testkit.RemoteAddr4.AsSlice(),
		})
	})
	if err != nil {
		return fmt.Errorf("add route to %s: %w", altAddr, err)
	}
	return nil
}

func (p *peer) serveStream(port int, serve func(*net.TCPConn)) error {
	var l *net.TCPListener
	err := p.ns.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{Port: port})
		return err
	})
	if err != nil {
		return fmt.Errorf("serve port %d: %w", port, err)
	}
	p.closers = append(p.closers, l)
	go acceptAll(l, serve)
	return nil
}

func acceptAll(l *net.TCPListener, serve func(*net.TCPConn)) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

func (p *peer) serveDatagrams(addr netip.AddrPort, answer func(netip.AddrPort, []byte) []byte) error {
	var c *net.UDPConn
	err := p.ns.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve datagrams at %s: %w", addr, err)
	}
	p.closers = append(p.closers, c)
	go testkit.AnswerDatagrams(c, answer)
	return nil
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

func addressLine(a netip.AddrPort) string {
	return fmt.Sprintf("%s %d\n", a.Addr().Unmap(), a.Port())
}

func tellAddress(c *net.TCPConn) {
	_, _ = io.WriteString(c, addressLine(c.RemoteAddr().(*net.TCPAddr).AddrPort()))
}

func halfClose(c *net.TCPConn) {
	_, _ = io.WriteString(c, "half")
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

func reset(c *net.TCPConn) {
	_, _ = c.Read(make([]byte, 1))
	_ = c.SetLinger(0)
}

// control answers one request, see probe/peer.c.
func (p *peer) control(c *net.TCPConn) {
	lines := bufio.NewScanner(c)
	if !lines.Scan() {
		return
	}
	request := strings.Fields(lines.Text())
	client := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	switch {
	case len(request) == 2 && request[0] == "tcp":
		fmt.Fprintln(c, p.dial(client, request[1]))
	case len(request) == 3 && request[0] == "udp":
		fmt.Fprintln(c, p.dialUDP(client, request[1], request[2], c))
	case len(request) == 1 && request[0] == "gate":
		p.serveGate(c, lines)
	default:
		fmt.Fprintln(c, "what is", lines.Text())
	}
}

// dial connects to the client and echoes what comes over that connection.
func (p *peer) dial(client netip.Addr, port string) string {
	var c net.Conn
	err := p.ns.Do(func() (err error) {
		d := net.Dialer{Timeout: testkit.Patience}
		c, err = d.Dial("tcp", net.JoinHostPort(client.String(), port))
		return err
	})
	if err != nil {
		return dialError(err)
	}
	go func() {
		defer c.Close()
		echo(c.(*net.TCPConn))
	}()
	return "dialled"
}

// dialUDP sends the client a datagram and waits for one from where it went, until the client
// says nothing more: it has closed all from where one could come.
func (p *peer) dialUDP(client netip.Addr, port, text string, more io.Reader) string {
	var c net.Conn
	err := p.ns.Do(func() (err error) {
		c, err = net.Dial("udp", net.JoinHostPort(client.String(), port))
		return err
	})
	if err != nil {
		return dialError(err)
	}
	defer c.Close()
	buf := make([]byte, 128)
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.WriteString(c, text); err != nil {
		return dialError(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, more)
		_ = c.SetReadDeadline(time.Now())
	}()
	n, err := c.Read(buf)
	if err != nil {
		return dialError(err)
	}
	return string(buf[:n])
}

func dialError(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "silence"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// gateBacklog is the least that does not make the kernel answer with cookies.
const gateBacklog = 1

// gate makes a listener whose accept queue is full: the kernel drops every
// SYN that comes for it until somebody accepts.
func (p *peer) gate(port int) (*net.TCPListener, error) {
	var l net.Listener
	err := p.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "gate")
		defer f.Close()
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: port}); err != nil {
			return err
		}
		if err := unix.Listen(fd, gateBacklog); err != nil {
			return err
		}
		if l, err = net.FileListener(f); err != nil {
			return err
		}
		// A queue is full when it holds more than the backlog.
		for range gateBacklog + 1 {
			c, err := net.DialTCP("tcp", nil, &net.TCPAddr{
				IP: net.IPv6loopback, Port: l.Addr().(*net.TCPAddr).Port,
			})
			if err != nil {
				l.Close()
				return err
			}
			p.closers = append(p.closers, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make gate: %w", err)
	}
	p.closers = append(p.closers, l)
	return l.(*net.TCPListener), nil
}

func (p *peer) serveGate(c *net.TCPConn, lines *bufio.Scanner) {
	l, err := p.gate(0)
	if err != nil {
		fmt.Fprintln(c, err)
		return
	}
	defer l.Close()
	fmt.Fprintln(c, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	for lines.Scan() {
		if lines.Text() == "open" {
			go acceptAll(l, echo)
		}
	}
}
