package cni

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// chain calls the plugin behind one whose result is a pod's interface eth0.
func (r *rig) chain(command string, p *pod, more object) error {
	r.t.Helper()
	conf := object{"cniVersion": "1.1.0", "name": "chain", "type": "tsugiki-cni", "prevResult": object{
		"cniVersion": "1.1.0", "interfaces": []object{{"name": "eth0", "sandbox": p.conf.NetNS}},
		"ips": []object{{"address": "198.51.100.9/24", "interface": 0}},
	}}
	for k, v := range more {
		conf[k] = v
	}
	text, err := json.Marshal(conf)
	must(r.t, err)
	cmd := r.command(context.Background(), r.path[0]+"/tsugiki-cni")
	cmd.Stdin = strings.NewReader(string(text))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.conf.ContainerID, "CNI_NETNS=" + p.conf.NetNS, "CNI_IFNAME=eth0", "CNI_PATH=" + r.path[1]}
	out, err := cmd.Output()
	answer := &types.Error{}
	if err != nil && json.Unmarshal(out, answer) == nil {
		return answer
	}
	return err
}

// link makes the link of a pod, whose host's end is in the namespace of this name.
func (r *rig) link(host *netns.NS, name string, index int, p *pod, peer string) (made netlink.Link) {
	r.t.Helper()
	must(r.t, host.Do(func() (err error) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = name, index
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(p.ns.File().Fd()))})
		if err == nil {
			made, err = netlink.LinkByName(name)
		}
		return err
	}))
	return made
}

// A pod whose link ends in the pod itself gets no other pod's link, whatever its index is.
func TestChainedToAnotherPod(t *testing.T) {
	r := newRig(t)
	n := r.network("chain", r.plugin(object{}))
	own, other := n.newPod("own"), n.newPod("other")
	victim := r.link(r.host, "victim", 77, other, "eth0")
	inside := r.link(own.ns, "x", 77, own, "eth0")
	if victim.Attrs().ParentIndex != inside.Attrs().ParentIndex {
		t.Fatalf("the pods' links have the indexes %d and %d", victim.Attrs().ParentIndex, inside.Attrs().ParentIndex)
	}
	has(t, r.chain("ADD", own, object{}), types.ErrInvalidNetworkConfig, "not in this network namespace")
	must(t, r.chain("ADD", other, object{}))
	must(t, r.chain("DEL", other, object{}))
}

// A chained link that its bridge keeps from other ports is refused, unless nothing is direct.
func TestChainedIsolatedPort(t *testing.T) {
	r := newRig(t)
	p := r.network("chain", r.plugin(object{})).newPod("one")
	port := r.link(r.host, "port", 0, p, "eth0")
	r.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		br := &netlink.Bridge{LinkAttrs: attrs}
		return errors.Join(netlink.LinkAdd(br), netlink.LinkSetMaster(port, br), netlink.LinkSetIsolated(port, true))
	})
	has(t, r.chain("ADD", p, object{}), codeNetwork, "an isolated port of bridge br0", "set directForward to false")
	must(t, r.chain("ADD", p, object{"directForward": false}))
	must(t, r.chain("DEL", p, object{}))
	r.do(func() error { return netlink.LinkSetIsolated(port, false) })
	must(t, r.chain("ADD", p, object{}))
	must(t, r.chain("DEL", p, object{}))
}

// Ports of other VLANs than the default one are kept apart, as are ports of what is no bridge.
func TestApart(t *testing.T) {
	yes, no, one := true, false, uint16(1)
	vlan := func(id, flags uint16) *nl.BridgeVlanInfo { return &nl.BridgeVlanInfo{Vid: id, Flags: flags} }
	const untagged = nl.BRIDGE_VLAN_INFO_UNTAGGED
	for name, c := range map[string]struct {
		master netlink.Link
		vlans  []*nl.BridgeVlanInfo
		want   string
	}{
		"switch":        {&netlink.GenericLink{LinkType: "openvswitch"}, nil, "a port of the openvswitch"},
		"bond":          {&netlink.Bond{}, nil, "a port of the bond"},
		"not filtering": {&netlink.Bridge{VlanFiltering: &no, VlanDefaultPVID: &one}, []*nl.BridgeVlanInfo{vlan(10, nl.BRIDGE_VLAN_INFO_PVID)}, ""},
		"unsupported":   {&netlink.Bridge{}, nil, ""},
		"default":       {&netlink.Bridge{VlanFiltering: &yes, VlanDefaultPVID: &one}, []*nl.BridgeVlanInfo{vlan(20, 0), vlan(1, nl.BRIDGE_VLAN_INFO_PVID|untagged)}, ""},
		"VLAN 10":       {&netlink.Bridge{VlanFiltering: &yes, VlanDefaultPVID: &one}, []*nl.BridgeVlanInfo{vlan(1, untagged), vlan(10, nl.BRIDGE_VLAN_INFO_PVID|untagged)}, "the default VLAN"},
		"no VLAN":       {&netlink.Bridge{VlanFiltering: &yes, VlanDefaultPVID: &one}, nil, "the default VLAN"},
	} {
		if got := apart(c.master, netlink.Protinfo{}, c.vlans); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A chained link that goes meanwhile with the pod's namespace is no error of DEL and GC.
func TestChainedLinkGoes(t *testing.T) {
	r := newRig(t)
	p := r.network("chain", r.plugin(object{})).newPod("one")
	link := r.link(r.host, "port", 0, p, "eth0")
	must(t, r.chain("ADD", p, object{}))
	r.do(func() error {
		return errors.Join(netlink.LinkDel(link), (&command{}).partLink(link))
	})
}
