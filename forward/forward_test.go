package forward

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
)

// Packets between pods pass neither a bridge that is down nor routes that are not there.
func TestDirect(t *testing.T) {
	for name, routed := range map[string]bool{"bridge": false, "routed": true} {
		for family, ip := range []string{"IPv4", "IPv6"} {
			t.Run(name+" "+ip, func(t *testing.T) {
				r := newRig(t, routed, 2)
				a, b := r.pods[0], r.pods[1]
				c := r.dial(a, "udp", b.at(family))
				r.echo(c, 128)
				r.know(a, b)
				r.cut()
				r.echo(c, 1400)
				if n := r.counts(a); n["direct"] < 2 || n["flow"]+n["pair"] > 0 {
					t.Errorf("counts %v", n)
				}
				r.stream(r.dial(a, "tcp", b.at(family)))
			})
		}
	}
}

// know has two pods of a bridge know each other's MAC address for good: whoever asks for one goes
// by the bridge.
func (r *rig) know(a, b *testPod) {
	r.t.Helper()
	if r.routed {
		return
	}
	for _, each := range [][2]*testPod{{a, b}, {b, a}} {
		must(r.t, each[0].ns.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			for _, addr := range each[1].Addrs {
				err = errors.Join(err, netlink.NeighSet(&netlink.Neigh{
					LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: each[1].MAC[:],
				}))
			}
			return err
		}))
	}
}

// cut has the bridge or the host forward nothing any more.
func (r *rig) cut() {
	r.t.Helper()
	r.do(func() (err error) {
		if !r.routed {
			br, err := netlink.LinkByIndex(r.bridge)
			if err == nil {
				err = netlink.LinkSetDown(br)
			}
			return err
		}
		for _, p := range r.pods {
			for _, a := range p.Addrs {
				err = errors.Join(err, netlink.RouteDel(&netlink.Route{LinkIndex: p.Device, Dst: whole(a), Scope: netlink.SCOPE_LINK}))
			}
		}
		return err
	})
}

// stream sends a megabyte over a connection, in segments as large as the kernel makes them.
func (r *rig) stream(c io.ReadWriter) {
	r.t.Helper()
	sent := bytes.Repeat([]byte("tsugiki!"), 1<<17)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c, got)
	must(r.t, errors.Join(err, <-wrote))
	if !bytes.Equal(sent, got) {
		r.t.Error("the bytes that came are not those sent")
	}
}

// A flow that began through the switch stays there when its pair becomes direct, in both
// directions. A flow that went directly goes on through the switch when its pair may not.
func TestPolicyInTheMiddleOfAFlow(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	r.do(func() error { return r.table.SetPair(a.Device, b.Device, Slow) })
	began := r.dial(a, "tcp", b.at(0))
	r.stream(began)
	r.do(func() error { return r.table.SetPair(b.Device, a.Device, Direct) })
	before := r.counts(a)
	r.stream(began)
	if n := r.counts(a); n["direct"] != 0 || n["flow"] <= before["flow"] || before["pair"] == 0 {
		t.Errorf("a flow that began slowly: counts %v, then %v", before, n)
	}
	next := r.dial(a, "tcp", b.at(0))
	r.stream(next)
	r.do(func() error { return r.table.SetPair(a.Device, b.Device, Slow) })
	before = r.counts(a) // what was on its way went directly until then
	if before["direct"] == 0 {
		t.Errorf("a new flow: counts %v", before)
	}
	r.stream(next)
	if n := r.counts(a); n["direct"] != before["direct"] || n["pair"] <= before["pair"] {
		t.Errorf("a flow whose pair was revoked: counts %v, then %v", before, n)
	}
}

// A pod is switched off and on, whichever of two it is.
func TestSwitch(t *testing.T) {
	r := newRig(t, false, 2)
	a, b := r.pods[0], r.pods[1]
	for _, off := range r.pods {
		r.do(func() error { return r.table.SetDirect(off.Device, false) })
		before := r.counts(a)
		r.echo(r.dial(a, "udp", b.at(0)), 64)
		if n := r.counts(a); n["direct"] != before["direct"] || n["off"] <= before["off"] {
			t.Errorf("link %d is off: counts %v", off.Device, n)
		}
		r.do(func() error { return r.table.SetDirect(off.Device, true) })
		r.echo(r.dial(a, "udp", b.at(0)), 64)
		if n := r.counts(a); n["direct"] <= before["direct"] {
			t.Errorf("link %d is on: counts %v", off.Device, n)
		}
	}
	r.do(func() error {
		if err := r.table.SetDirect(9999, true); !errors.Is(err, ErrUnknown) {
			t.Errorf("a pod that is not there: %v", err)
		}
		return nil
	})
}

// Without AllPairs a pair is slow until it is direct.
func TestPairs(t *testing.T) {
	r := newRig(t, false, 3)
	r.do(func() error {
		p := r.pods[0].Pod
		p.AllPairs = false
		return errors.Join(r.table.Remove(p.Device), r.table.Add(p))
	})
	a, b := r.pods[0], r.pods[1]
	r.echo(r.dial(a, "udp", b.at(0)), 64)
	r.echo(r.dial(b, "udp", a.at(1)), 64)
	if n := r.counts(a); n["direct"] != 0 || n["pair"] == 0 {
		t.Errorf("no verdict: counts %v", n)
	}
	r.do(func() error { return r.table.SetPair(b.Device, a.Device, Direct) })
	r.echo(r.dial(a, "udp", b.at(0)), 64)
	if n := r.counts(a); n["direct"] == 0 {
		t.Errorf("direct: counts %v", n)
	}
	r.do(func() error {
		for _, wrong := range []error{
			r.table.SetPair(a.Device, a.Device, Direct), r.table.SetPair(a.Device, 9999, Direct), r.table.SetPair(a.Device, b.Device, "fast"),
		} {
			if wrong == nil {
				t.Error("a pair that cannot be was accepted")
			}
		}
		pairs, err := r.table.Pairs()
		if diff := cmp.Diff([]Pair{{a.Device, b.Device, Direct}}, pairs); diff != "" {
			t.Errorf("pairs:\n%s", diff)
		}
		return errors.Join(err, r.table.SetPair(a.Device, b.Device, Default))
	})
	r.echo(r.dial(a, "udp", b.at(0)), 64)
	if pairs, err := r.table.Pairs(); err != nil || len(pairs) > 0 {
		t.Errorf("pairs %v, %v", pairs, err)
	}
}

// A MAC address and IP addresses belong to one pod of a network until it is removed, or its link
// has gone. Nothing is left of a pod that was refused or removed.
func TestClashAndReuse(t *testing.T) {
	r := newRig(t, false, 2)
	a := r.pods[0]
	twin := r.newPod(2)
	for name, change := range map[string]func(*Pod){
		"MAC": func(p *Pod) { p.MAC = a.MAC },
		"IP":  func(p *Pod) { p.Addrs = []netip.Addr{p.Addrs[0], a.Addrs[1]} },
	} {
		p := twin.Pod
		change(&p)
		r.do(func() error {
			var clash *ClashError
			if err := r.table.Add(p); !errors.As(err, &clash) || clash.Device != a.Device {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := r.table.Pod(p.Device); !errors.Is(err, ErrUnknown) {
				t.Errorf("%s: a refused pod is there: %v", name, err)
			}
			p.Network = 2
			return errors.Join(r.table.Add(p), r.table.Attached(p), r.table.Remove(p.Device), r.table.Remove(p.Device))
		})
	}
	r.do(func() error {
		link, err := netlink.LinkByIndex(a.Device)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		heir := twin.Pod
		heir.MAC, heir.Addrs = a.MAC, a.Addrs
		return errors.Join(err, r.table.SetPair(a.Device, r.pods[1].Device, Direct), r.table.Add(heir), r.table.Remove(heir.Device))
	})
	left, err := r.table.Pods()
	if diff := cmp.Diff([]Pod{r.pods[1].Pod}, left, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("pods left (%v):\n%s", err, diff)
	}
	r.do(func() error { return r.table.Remove(r.pods[1].Device) })
	r.empty()
}

// empty checks that the table's maps have no rows.
func (r *rig) empty() {
	r.t.Helper()
	m := r.table.maps
	for name, next := range map[string]interface{ NextKey(key, next any) error }{
		"pods": m.PodByDevice, "MACs": m.DeviceByMac, "addresses": m.DeviceByAddr, "wires": m.DeviceByWire,
		"pairs": m.VerdictByPair, "flows": m.FlowsByDevice, "counts": m.CountsByDevice,
	} {
		key := make([]byte, 20)
		if err := next.NextKey(nil, &key); err == nil {
			r.t.Errorf("%s are left: %x", name, key)
		}
	}
}

// Other processes find the same table, and other namespaces another one.
func TestTablesOfNamespaces(t *testing.T) {
	r := newRig(t, false, 1)
	r.do(func() error {
		other, err := OpenExisting()
		if err != nil {
			return err
		}
		defer other.Close()
		if pods, err := other.Pods(); err != nil || len(pods) != 1 {
			t.Errorf("pods %v, %v", pods, err)
		}
		return other.Attached(r.pods[0].Pod)
	})
	must(t, newNS(t).Do(func() error {
		if _, err := OpenExisting(); !errors.Is(err, ErrNoTable) {
			t.Errorf("another namespace: %v", err)
		}
		return nil
	}))
}

// Sweep removes the pods whose links are gone, and no other.
func TestSweep(t *testing.T) {
	r := newRig(t, false, 2)
	r.do(func() error {
		link, err := netlink.LinkByIndex(r.pods[0].Device)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		return errors.Join(err, r.table.Sweep())
	})
	if pods, err := r.table.Pods(); err != nil || len(pods) != 1 || pods[0].Device != r.pods[1].Device {
		t.Errorf("pods %v, %v", pods, err)
	}
}
