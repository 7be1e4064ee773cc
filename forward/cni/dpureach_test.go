package cni

import (
	"net/netip"
	"os"
	"testing"
)

// A pod reaches what is outside, but neither its DPU nor that of another node, at the addresses of
// the tunnels, also if the gateway leads there. Others reach these.
func TestDPUOutOfReach(t *testing.T) {
	f := newFabric(t)
	must(t, f.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	n, other := f.newNode(1), f.newNode(2)
	network := n.network(object{})
	other.waitReady()
	a := network.pods(1)[0]
	out := &pod{ns: f.ns, addrs: []netip.Addr{outside}}
	open := n.talk(a, out, 1001)
	open.passes()
	for i, to := range []*node{n, other} {
		dpu := &pod{ns: to.card.host, addrs: []netip.Addr{netip.MustParseAddr(n.addr(to.number))}}
		n.talk(out, dpu, 1002).passes()
		if t.Failed() {
			t.Fatalf("nobody reaches DPU %d", i+1)
		}
		n.talk(a, dpu, 1003).stopped(open)
	}
}
