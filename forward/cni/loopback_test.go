package cni

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// TestLoopback has pods of mode loopback: each is said to have an address that nobody has, and has no
// link.
func TestLoopback(t *testing.T) {
	r := newRig(t)
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		n := r.networkOf(version, "alone-"+version, object{"type": "tsugiki-cni", "mode": "loopback"})
		pods := n.pods(2)
		for _, p := range pods {
			if len(p.addrs) != 1 || !discard.Contains(p.addrs[0]) {
				t.Errorf("version %s: a pod has the addresses %v, want one of %s", version, p.addrs, discard)
			}
			var links []netlink.Link
			must(t, p.ns.Do(func() (err error) {
				links, err = netns.Dump(netlink.LinkList)
				return err
			}))
			for _, l := range links {
				if l.Type() == "veth" {
					t.Errorf("version %s: the pod has the link %s", version, l.Attrs().Name)
				}
			}
			must(t, n.check(p))
		}
		if pods[0].addrs[0] == pods[1].addrs[0] {
			t.Errorf("version %s: two pods have the address %s", version, pods[0].addrs[0])
		}
		for range 2 { // DEL may come again
			must(t, n.del(pods[0]))
		}
		r.nothing(n)
	}
}

// Who asks for a pod without a network does not get one that has another.
func TestLoopbackOfOthers(t *testing.T) {
	r := newRig(t)
	n := r.network("alone", object{"type": "tsugiki-cni", "mode": "loopback"})
	p := n.pods(1)[0]
	other, err := netns.New()
	must(t, err)
	defer other.Close()
	must(t, netns.Connect(
		netns.End{NS: p.ns, Name: "eth7", Addr: netip.MustParsePrefix("203.0.113.1/24")},
		netns.End{NS: other, Name: "peer", Addr: netip.MustParsePrefix("203.0.113.2/24")},
	))
	has(t, n.check(p), codeDrift, "eth7")
	_, err = n.add(p)
	has(t, err, codeNetwork, "the container has the link eth7", "give its runtime no other network")

	behind := r.network("behind", r.plugin(object{}), object{"type": "tsugiki-cni", "mode": "loopback"})
	q := behind.newPod("one")
	_, err = behind.add(q)
	has(t, err, types.ErrInvalidNetworkConfig, "this plugin is the only one of its list")
	must(t, behind.del(q))

	host := n.newPod("host")
	host.conf.NetNS = nsPath(r.host)
	_, err = n.add(host)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrInvalidNetNS {
		t.Errorf("the host's own namespace: %v", err)
	}
}
