package forward

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A pod is removed in the middle of a flow, and another one gets its MAC address and its IP
// addresses. What was sent before comes to the first, what is sent then comes to the other.
func TestReuseInTheMiddleOfAFlow(t *testing.T) {
	for name, routed := range map[string]bool{"bridge": false, "routed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, routed, 2)
			a, b := r.pods[0], r.pods[1]
			r.know(a, b)
			first := r.listener(b)
			c := r.dial(a, "udp", first.LocalAddr().(*net.UDPAddr).AddrPort())
			_, err := c.Write([]byte{1})
			must(t, err)
			r.received(first, 1)

			r.do(func() error { return r.table.Remove(b.Device) })
			heir := r.heir(b)
			r.do(func() error { return r.table.Add(heir.Pod) })
			second := r.listenerAt(heir, first.LocalAddr().(*net.UDPAddr))
			before := r.counts(a)
			// The address is in two namespaces, and the old link is up: only the table has changed.
			_, err = c.Write([]byte{2})
			must(t, err)
			r.received(second, 2)
			if n := r.counts(a); n["direct"] <= before["direct"] {
				t.Errorf("counts %v, then %v", before, n)
			}
			// A datagram of the first pod's own namespace, which comes last.
			must(t, b.ns.Do(func() error {
				own, err := net.DialUDP("udp", nil, first.LocalAddr().(*net.UDPAddr))
				if err == nil {
					_, err = own.Write([]byte{3})
					own.Close()
				}
				return err
			}))
			r.received(first, 3)
		})
	}
}

// heir makes a pod with the addresses of another one.
func (r *rig) heir(of *testPod) *testPod {
	r.t.Helper()
	p := r.newPod(len(r.pods))
	must(r.t, p.ns.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		err = netlink.LinkSetHardwareAddr(eth0, of.MAC[:])
		for i, a := range p.Addrs {
			bits := a.BitLen() - 8
			if r.routed {
				bits = a.BitLen()
			}
			next := whole(of.Addrs[i])
			next.Mask = net.CIDRMask(bits, a.BitLen())
			err = errors.Join(err, netlink.AddrReplace(eth0, &netlink.Addr{IPNet: next, Flags: unix.IFA_F_NODAD}))
		}
		return err
	}))
	p.MAC, p.Addrs = of.MAC, of.Addrs
	return p
}

func (r *rig) listener(p *testPod) *net.UDPConn {
	return r.listenerAt(p, &net.UDPAddr{IP: p.Addrs[0].AsSlice()})
}

func (r *rig) listenerAt(p *testPod, at *net.UDPAddr) (c *net.UDPConn) {
	r.t.Helper()
	must(r.t, p.ns.Do(func() (err error) {
		c, err = net.ListenUDP("udp", at)
		return err
	}))
	r.t.Cleanup(func() { c.Close() })
	return c
}

// received checks what the next datagram is.
func (r *rig) received(c *net.UDPConn, want byte) {
	r.t.Helper()
	buf := make([]byte, 2)
	must(r.t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
	n, err := c.Read(buf)
	if err != nil || n != 1 || buf[0] != want {
		r.t.Fatalf("got %v, %v; want %d", buf[:n], err, want)
	}
}
