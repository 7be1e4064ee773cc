package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward/offload/ports"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The largest packet of a pod goes whole through the tunnel that its bridge has, and a larger one
// is refused where it is sent.
func TestTunnel(t *testing.T) {
	r := newRig(t)
	s := r.vswitch()
	remote := newNS(t)
	s.tunnel(remote)
	n := r.network("tunnel", onSwitch(r, nil)...)
	p := n.newPod("one")
	result, err := n.add(p)
	must(t, err)
	for _, own := range result.Interfaces {
		if own.Mtu != 1450 {
			t.Errorf("the MTU of %s is %d", own.Name, own.Mtu)
		}
	}
	for _, link := range []string{ofWire(namesOf("tunnel", "one", "eth0")), ofPort(namesOf("tunnel", "one", "eth0"))} {
		r.do(func() error {
			l, err := netlink.LinkByName(link)
			if err == nil && l.Attrs().MTU != 1450 {
				err = fmt.Errorf("the MTU of %s is %d", link, l.Attrs().MTU)
			}
			return err
		})
	}
	server, client := remoteEcho(t, remote, p)
	raw, err := client.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}))
	must(t, err)
	defer server.Close()
	defer client.Close()
	const headers = 20 + 8 // of IPv4 and UDP
	buf := make([]byte, 1451-headers)
	if _, err := client.Write(buf); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a datagram that is too large: %v", err)
	}
	buf = buf[:1450-headers]
	testkit.Eventually(t, func() error {
		if _, err := client.Write(buf); err != nil {
			return err
		}
		must(t, client.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := client.Read(buf)
		return err
	})
	must(t, n.del(p))
}

// tunnel leads from br-int to another node, in VXLAN: its pod has the address 198.51.100.200.
func (s *vswitch) tunnel(remote *netns.NS) {
	s.r.t.Helper()
	s.r.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "up0"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(int(remote.File().Fd()))}
		return errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth))
	})
	s.vsctl("add-br", "br-phy", "--", "set", "bridge", "br-phy", "datapath_type=netdev", "--", "add-port", "br-phy", "up0",
		"--", "add-port", "br-int", "vx0", "--", "set", "Interface", "vx0", "type=vxlan", "options:remote_ip=203.0.113.2", "options:key=7")
	s.r.do(func() error { return s.r.addressed("br-phy", "203.0.113.1/24") })
	must(s.r.t, remote.Do(func() error {
		if err := s.r.addressed("up0", "203.0.113.2/24"); err != nil {
			return err
		}
		up, err := netlink.LinkByName("up0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "vx0"
		vx := &netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: 7, VtepDevIndex: up.Attrs().Index, Group: net.IPv4(203, 0, 113, 1).To4(), Port: 4789,
			Learning: true, UDPCSum: false,
		}
		return errors.Join(checksumOff("up0"), netlink.LinkAdd(vx), s.r.addressed("vx0", "198.51.100.200/24"))
	}))
}

// addressed gives a link of the thread's namespace an address and sets it up.
func (r *rig) addressed(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// remoteEcho is a server of the other node, and a pod's client.
func remoteEcho(t *testing.T, remote *netns.NS, p *pod) (server, client *net.UDPConn) {
	t.Helper()
	at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.200:7"))
	must(t, remote.Do(func() (err error) {
		server, err = net.ListenUDP("udp4", at)
		return err
	}))
	go testkit.AnswerDatagrams(server, testkit.Echo)
	must(t, p.ns.Do(func() (err error) {
		client, err = net.DialUDP("udp4", nil, at)
		return err
	}))
	return server, client
}

// What tunnels add.
func TestTunnelOverhead(t *testing.T) {
	for c, want := range map[[3]string]int{
		{"vxlan", "remote_ip", "flow"}:        50,
		{"vxlan", "remote_ip", "2001:db8::1"}: 70,
		{"vxlan", "local_ip", "2001:db8::1"}:  70,
		{"geneve", "remote_ip", "flow"}:       58,
		{"gre", "remote_ip", "198.51.100.1"}:  42,
		{"internal", "", ""}:                  0,
		{"patch", "peer", "odd:name"}:         0,
	} {
		if got := tunnelOverhead(ports.Tunnel{Kind: c[0], Options: map[string]string{"key": "flow", c[1]: c[2]}}); got != want {
			t.Errorf("%v: %d, want %d", c, got, want)
		}
	}
}
