package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// modeNames are the ways between two pods. Ratios are to the first.
var modeNames = []string{"bridge", "bridge+direct", "routed+direct", "ovs", "ovs+direct"}

// path is two pods and the way between them.
type path struct {
	n      *node
	mode   string
	direct bool
	pods   [2]*benchPod
}

type benchPod struct {
	forward.Pod
	ns *netns.NS
}

// path makes the pods of a mode.
func (n *node) path(ctx context.Context, mode string) (*path, error) {
	p := &path{n: n, mode: mode, direct: strings.HasSuffix(mode, "+direct")}
	for i := range p.pods {
		var err error
		if p.pods[i], err = n.pod(ctx, mode); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pod makes a pod and its links.
func (n *node) pod(ctx context.Context, mode string) (*benchPod, error) {
	ns, err := n.namespace()
	if err != nil {
		return nil, err
	}
	p := &benchPod{ns: ns, Pod: forward.Pod{
		Network: 1, Direct: true, Checked: true, AllPairs: true, MAC: [6]byte{2, 0, 0, 0, 0, n.next},
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, n.next})},
	}}
	name := fmt.Sprintf("pod%d", n.next)
	n.next++
	err = n.host.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: p.MAC[:], PeerNamespace: netlink.NsFd(int(ns.File().Fd()))}
		if err := errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth)); err != nil {
			return err
		}
		p.Device = veth.Index
		return n.lay(ctx, mode, p, veth)
	})
	if err != nil {
		return nil, fmt.Errorf("make link %s: %w", name, err)
	}
	return p, ns.Do(func() error { return p.configure(mode) })
}

// lay leads the host's end of a pod's link to where the mode has it, and enters the pod into the
// table if the mode is direct.
func (n *node) lay(ctx context.Context, mode string, p *benchPod, veth *netlink.Veth) error {
	switch mode {
	case "bridge", "bridge+direct":
		if err := netlink.LinkSetMaster(veth, n.bridge); err != nil {
			return err
		}
	case "routed+direct":
		link, err := netlink.LinkByIndex(p.Device)
		if err != nil {
			return err
		}
		copy(p.Gateway[:], link.Attrs().HardwareAddr)
	case "ovs":
		return errors.Join(n.table.End(p.Device), n.vsctl(ctx, "add-port", "br-int", veth.Name))
	case "ovs+direct":
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "w" + veth.Name
		wire := &netlink.Veth{LinkAttrs: attrs, PeerName: "s" + veth.Name}
		if err := errors.Join(netlink.LinkAdd(wire), netlink.LinkSetUp(wire)); err != nil {
			return err
		}
		port, err := netlink.LinkByName(wire.PeerName)
		if err != nil {
			return err
		}
		p.Wire = wire.Index
		err = errors.Join(netlink.LinkSetUp(port), n.table.End(port.Attrs().Index), n.vsctl(ctx, "add-port", "br-int", wire.PeerName))
		if err != nil {
			return err
		}
	}
	if mode == "bridge" {
		return nil
	}
	return n.table.Add(p.Pod)
}

// configure gives the pod's end its address; the thread is in the pod. A routed pod takes every
// other one to be behind the host.
func (p *benchPod) configure(mode string) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addrs[0].AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if mode == "routed+direct" {
		addr.Mask = net.CIDRMask(32, 32)
	}
	if err := errors.Join(netlink.LinkSetUp(eth0), netlink.AddrAdd(eth0, addr)); err != nil || mode != "routed+direct" {
		return err
	}
	gateway := net.IPv4(169, 254, 1, 1)
	return errors.Join(
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: p.Gateway[:]}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}))
}

// directPackets counts those of the first pod.
func (p *path) directPackets() (count uint64, err error) {
	if !p.direct {
		return 0, nil
	}
	c, err := p.n.table.Counts(p.pods[0].Device)
	return c.Packets[forward.Reasons[0].Name], err
}

// socket opens a UDP socket without checksums, which a switch in user space does not compute.
func (p *benchPod) socket() (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := unix.NsecToTimeval(int64(time.Minute))
	err = errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.Bind(s, &unix.SockaddrInet4{Addr: p.Addrs[0].As4(), Port: 7}))
	if err != nil {
		unix.Close(s)
	}
	return s, err
}

// onCPU0 runs a function with a pod's socket, on a thread of CPU 0.
func (p *benchPod) onCPU0(f func(socket int) error) error {
	return p.ns.Do(func() error {
		var set unix.CPUSet
		set.Set(0)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		s, err := p.socket()
		if err != nil {
			return err
		}
		defer unix.Close(s)
		return f(s)
	})
}

// roundTrips measures round trips from the first pod to the second, one after the other.
func (p *path) roundTrips(count int) (times []time.Duration, err error) {
	ready, answered := make(chan struct{}), make(chan error, 1)
	go func() {
		answered <- p.pods[1].onCPU0(func(s int) error {
			close(ready)
			buf := make([]byte, payload)
			for range count {
				n, from, err := unix.Recvfrom(s, buf, 0)
				for errors.Is(err, unix.EINTR) { // Go's scheduler sends signals
					n, from, err = unix.Recvfrom(s, buf, 0)
				}
				if err != nil {
					return fmt.Errorf("receive: %w", err)
				}
				if err := unix.Sendto(s, buf[:n], 0, from); err != nil {
					return fmt.Errorf("answer: %w", err)
				}
			}
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-answered:
		return nil, err
	}
	err = p.pods[0].onCPU0(func(s int) error {
		if err := unix.Connect(s, &unix.SockaddrInet4{Addr: p.pods[1].Addrs[0].As4(), Port: 7}); err != nil {
			return err
		}
		buf := make([]byte, payload)
		for range count {
			began := time.Now()
			if _, err := unix.Write(s, buf); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			_, err := unix.Read(s, buf)
			for errors.Is(err, unix.EINTR) {
				_, err = unix.Read(s, buf)
			}
			if err != nil {
				return fmt.Errorf("receive answer: %w", err)
			}
			times = append(times, time.Since(began))
		}
		return nil
	})
	return times, errors.Join(err, <-answered)
}
