package forward

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A rig is a host with a bridge, or with routes, and pods.
type rig struct {
	t      testing.TB
	host   *netns.NS
	table  *Table
	bridge int
	routed bool
	pods   []*testPod
}

type testPod struct {
	Pod
	ns *netns.NS
}

const echoPort = 7

var hostMAC = [6]byte{2, 0, 0, 0, 1, 0}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bpfFileSystem is one of a test's own, which no path leads to.
func bpfFileSystem(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	context, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer unix.Close(context)
	must(t, unix.FsconfigCreate(context))
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	must(t, err)
	before := Folder
	Folder = fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(Folder))
	t.Cleanup(func() {
		Folder = before
		unix.Close(fd)
	})
}

func newNS(t testing.TB) *netns.NS {
	t.Helper()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	must(t, ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	}))
	return ns
}

// newRig makes pods whose pairs are direct.
func newRig(t testing.TB, routed bool, pods int) *rig {
	t.Helper()
	if _, fuzzing := t.(*testing.F); !fuzzing { // whose engine has goroutines of its own
		testkit.CheckLeaks(t)
	}
	bpfFileSystem(t)
	r := &rig{t: t, host: newNS(t), routed: routed}
	r.do(func() (err error) {
		if routed {
			for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
				if err := os.WriteFile("/proc/sys/net/"+f, []byte("1"), 0); err != nil {
					return err
				}
			}
		} else {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "br0"
			br := &netlink.Bridge{LinkAttrs: attrs}
			if err := errors.Join(netlink.LinkAdd(br), netlink.LinkSetUp(br)); err != nil {
				return err
			}
			r.bridge = br.Index
		}
		r.table, err = Open()
		return err
	})
	t.Cleanup(func() { r.table.Close() })
	for range pods {
		p := r.newPod(len(r.pods))
		r.pods = append(r.pods, p)
		r.do(func() error { return r.table.Add(p.Pod) })
	}
	return r
}

func (r *rig) do(f func() error) {
	r.t.Helper()
	must(r.t, r.host.Do(f))
}

// newPod makes a namespace with a link, and an echo server in it.
func (r *rig) newPod(i int) *testPod {
	r.t.Helper()
	p := &testPod{ns: newNS(r.t), Pod: Pod{Network: 1, Direct: true, Checked: true, AllPairs: true}}
	p.MAC = [6]byte{2, 0, 0, 0, 0, byte(10 + i)}
	p.Addrs = []netip.Addr{
		netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)}),
		netip.MustParseAddr(fmt.Sprintf("2001:db8:77::%x", 10+i)),
	}
	r.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = fmt.Sprintf("pod%d", i), hostMAC[:]
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: p.MAC[:], PeerNamespace: netlink.NsFd(int(p.ns.File().Fd()))}
		if r.bridge != 0 {
			veth.MasterIndex = r.bridge
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		p.Device = veth.Index
		return netlink.LinkSetUp(veth)
	})
	if r.routed {
		p.Gateway = hostMAC
	}
	must(r.t, p.ns.Do(func() error { return r.configure(p) }))
	if r.routed {
		r.do(func() (err error) {
			for _, a := range p.Addrs {
				err = errors.Join(err,
					netlink.RouteAdd(&netlink.Route{LinkIndex: p.Device, Dst: whole(a), Scope: netlink.SCOPE_LINK}),
					netlink.NeighAdd(&netlink.Neigh{LinkIndex: p.Device, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: p.MAC[:]}))
			}
			return err
		})
	}
	r.serve(p)
	return p
}

func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// configure gives a pod's end its addresses, and routed ones the host as their gateway.
func (r *rig) configure(p *testPod) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	err = netlink.LinkSetUp(eth0)
	for _, a := range p.Addrs {
		ipnet := whole(a)
		if !r.routed {
			ipnet.Mask = net.CIDRMask(a.BitLen()-8, a.BitLen())
		}
		err = errors.Join(err, netlink.AddrAdd(eth0, &netlink.Addr{IPNet: ipnet, Flags: unix.IFA_F_NODAD}))
		if !r.routed {
			continue
		}
		gw := net.ParseIP("169.254.1.1")
		if a.Is6() {
			gw = net.ParseIP("fe80::1")
		}
		err = errors.Join(err,
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gw, HardwareAddr: hostMAC[:]}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gw, Flags: int(netlink.FLAG_ONLINK)}))
	}
	return err
}

// serve answers every datagram with itself, and every connection with what it sends.
func (r *rig) serve(p *testPod) {
	r.t.Helper()
	var udp *net.UDPConn
	var tcp net.Listener
	must(r.t, p.ns.Do(func() (err error) {
		if udp, err = net.ListenUDP("udp", &net.UDPAddr{Port: echoPort}); err != nil {
			return err
		}
		tcp, err = net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
		return err
	}))
	r.t.Cleanup(func() { udp.Close(); tcp.Close() })
	go testkit.AnswerDatagrams(udp, testkit.Echo)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			r.t.Cleanup(func() { c.Close() })
			go func() {
				defer c.Close()
				// Without splice(2), for which Go keeps pipes.
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			}()
		}
	}()
}

// dial connects from a pod to an address and port.
func (r *rig) dial(from *testPod, network string, to netip.AddrPort) net.Conn {
	r.t.Helper()
	var c net.Conn
	must(r.t, from.ns.Do(func() (err error) {
		c, err = net.DialTimeout(network, to.String(), testkit.Patience)
		return err
	}))
	r.t.Cleanup(func() { c.Close() })
	return c
}

// echo sends a datagram and waits for the answer. It sends again what nobody has answered: the
// first packets can wait for a neighbor, and more than three are dropped.
func (r *rig) echo(c net.Conn, size int) {
	r.t.Helper()
	buf := make([]byte, size)
	testkit.Eventually(r.t, func() error {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		must(r.t, c.SetReadDeadline(time.Now().Add(time.Second)))
		n, err := c.Read(buf)
		if err == nil && n != size {
			err = fmt.Errorf("%d of %d bytes", n, size)
		}
		return err
	})
}

func (p *testPod) at(family int) netip.AddrPort { return netip.AddrPortFrom(p.Addrs[family], echoPort) }

// counts are the packets that a pod has sent, by reason.
func (r *rig) counts(p *testPod) map[string]uint64 {
	r.t.Helper()
	c, err := r.table.Counts(p.Device)
	must(r.t, err)
	return c.Packets
}
