// Package flows computes the OpenFlow rules of the bridge on a DPU, from the node's pods, the other
// nodes and the policy.
//
// It is a function of values: it opens nothing, and its caller has the switch take the flows. A
// flow is a line of ovs-ofctl(8).
//
// Theory of operation. Each node has subnets of its own, and each pod a port. A packet passes these
// tables:
//
//	ingress    whose it is: of a pod with its own addresses; of another node by the tunnel; of the
//	           outside, and then it has to be an answer to a masqueraded one (answered)
//	neighbors  ARP and neighbor discovery go to the pod that has the address, and nowhere else
//	policy     the rules, for each packet; answers are judged as the packets that they answer
//	commit     new connections enter conntrack
//	route      to a local pod; to another node, by VXLAN; to the outside, masqueraded (outside)
//
// What no flow names is dropped. The gateway of pods has the same MAC address on all nodes, so no
// node asks another for it.
package flows

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
)

// The tables of the bridge.
const (
	tableIngress = iota
	tableAnswered
	tableNeighbors
	tablePolicy
	tableCommit
	tableRoute
	tableOutside
)

// The zones of conntrack: what pods say, and masqueraded connections.
const (
	zonePods = iota + 1
	zoneOutside
)

// network is the VXLAN network identifier of all nodes.
const network = 1

// Flow is one rule of the switch. No two flows of a list have the same Match.
type Flow struct {
	Match   string // with the table and the priority
	Actions string
}

// String is a line for ovs-ofctl.
func (f Flow) String() string { return f.Match + ",actions=" + f.Actions }

// Pod is a pod of this node.
type Pod struct {
	Port  int // its number in OpenFlow
	MAC   dpu.MAC
	Addrs []netip.Addr
}

// Node is another node.
type Node struct {
	Tunnel  netip.Addr
	Subnets []netip.Prefix
}

// State is what flows are computed from. All of it has been checked: no address is that of two pods,
// no subnet is that of two nodes.
type State struct {
	Subnets []netip.Prefix // this node's
	Pods    []Pod
	Nodes   []Node // the others
	Policy  Policy
	Switch  dpu.Health
}

// Gateway is the address of a subnet's gateway: the first one.
func Gateway(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// builder collects flows.
type builder struct{ list []Flow }

func (b *builder) add(table, priority int, match, actions string, args ...any) {
	b.list = append(b.list, Flow{fmt.Sprintf("table=%d,priority=%d,%s", table, priority, match), fmt.Sprintf(actions, args...)})
}

// words are those of a family of addresses, in a match.
type words struct{ ip, src, dst string }

func wordsOf(a netip.Addr) words {
	if a.Is4() {
		return words{"ip", "nw_src", "nw_dst"}
	}
	return words{"ipv6", "ipv6_src", "ipv6_dst"}
}

// Compute returns the flows in the order of their matches.
func Compute(s *State) []Flow {
	b := &builder{}
	for _, p := range s.Pods {
		b.pod(p)
	}
	for _, subnet := range s.Subnets {
		b.subnet(subnet)
	}
	if s.Switch.TunnelPort != 0 {
		for _, n := range s.Nodes {
			b.node(n, s)
		}
	}
	b.outside(s)
	b.guard(s)
	b.policy(&s.Policy)
	b.commit()
	slices.SortFunc(b.list, func(x, y Flow) int { return cmp.Compare(x.Match, y.Match) })
	return b.list
}

// pod lets a pod send from its addresses, and routes to them.
func (b *builder) pod(p Pod) {
	from := fmt.Sprintf("in_port=%d,dl_src=%s", p.Port, p.MAC)
	for _, a := range p.Addrs {
		w := wordsOf(a)
		b.add(tableIngress, 100, fmt.Sprintf("%s,%s,%s=%s", from, w.ip, w.src, a), "ct(zone=%d,table=%d)", zonePods, tablePolicy)
		toNeighbors := fmt.Sprintf("goto_table:%d", tableNeighbors)
		output := fmt.Sprintf("output:%d", p.Port)
		if a.Is4() {
			b.add(tableIngress, 110, fmt.Sprintf("%s,arp,arp_spa=%s,arp_sha=%s", from, a, p.MAC), "%s", toNeighbors)
			b.add(tableNeighbors, 100, fmt.Sprintf("arp,arp_tpa=%s", a), "%s", output)
		} else {
			b.add(tableIngress, 110, fmt.Sprintf("%s,icmp6,icmp_type=135,icmp_code=0,ipv6_src=%s", from, a), "%s", toNeighbors)
			b.add(tableIngress, 110, fmt.Sprintf("%s,icmp6,icmp_type=136,icmp_code=0,nd_target=%s", from, a), "%s", toNeighbors)
			b.add(tableNeighbors, 100, fmt.Sprintf("icmp6,icmp_type=135,icmp_code=0,nd_target=%s", a), "%s", output)
			b.add(tableNeighbors, 100, fmt.Sprintf("icmp6,icmp_type=136,icmp_code=0,ipv6_dst=%s", a), "mod_dl_dst:%s,%s", p.MAC, output)
		}
		// A neighbor may know the MAC address of the pod that had the address before; so may its
		// advertisements above.
		to := fmt.Sprintf("%s,%s=%s", w.ip, w.dst, a)
		b.add(tableRoute, 200, to, "mod_dl_dst:%s,%s", p.MAC, output)
		b.add(tableRoute, 210, fmt.Sprintf("%s,dl_dst=%s", to, dpu.GatewayMAC), "dec_ttl,mod_dl_src:%s,mod_dl_dst:%s,%s", dpu.GatewayMAC, p.MAC, output)
	}
}

// subnet answers for the gateway, and keeps packets for pods that are not there from the outside.
func (b *builder) subnet(subnet netip.Prefix) {
	w := wordsOf(subnet.Addr())
	b.add(tableRoute, 100, fmt.Sprintf("%s,%s=%s", w.ip, w.dst, subnet), "drop")
	if subnet.Addr().Is4() { // of IPv6, the network plugin tells pods the gateway's MAC address
		b.answer(tableNeighbors, "", Gateway(subnet), dpu.GatewayMAC)
	}
}

// answer answers ARP requests for an address (RFC 826).
func (b *builder) answer(table int, more string, a netip.Addr, mac dpu.MAC) {
	b.add(table, 120, fmt.Sprintf("%sarp,arp_op=1,arp_tpa=%s", more, a),
		"move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],mod_dl_src:%[1]s,load:2->NXM_OF_ARP_OP[],"+
			"move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],"+
			"set_field:%[1]s->arp_sha,set_field:%[2]s->arp_spa,IN_PORT", mac, a)
}

// advertise answers neighbor solicitations for an address, which come from a port (RFC 4861, section
// 7.2.4): the solicitation becomes the advertisement. The switch knows the option with the target's
// MAC address as such when the type of the packet and of the option have changed, so that is done in
// another table. A solicitation that looks for a duplicate of the address, from no address, is dropped.
func (b *builder) advertise(port int, a netip.Addr, mac dpu.MAC) {
	const solicitedOverride = 0x60000000 // flags of section 4.4
	match := func(kind int) string {
		return fmt.Sprintf("in_port=%d,icmp6,icmp_type=%d,icmp_code=0,nd_target=%s", port, kind, a)
	}
	b.add(tableIngress, 121, match(135)+",ipv6_src=::", "drop")
	b.add(tableIngress, 120, match(135),
		"move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],mod_dl_src:%s,move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[],set_field:%s->ipv6_src,"+
			"set_field:2->nd_options_type,set_field:%d->nd_reserved,set_field:136->icmpv6_type,goto_table:%d",
		mac, a, solicitedOverride, tableNeighbors)
	b.add(tableNeighbors, 120, match(136), "set_field:%s->nd_tll,IN_PORT", mac)
}

// node takes packets of another node's pods, and routes to them.
func (b *builder) node(n Node, s *State) {
	tun := "tun"
	if n.Tunnel.Is6() {
		tun = "tun_ipv6"
	}
	for _, theirs := range n.Subnets {
		w := wordsOf(theirs.Addr())
		for _, ours := range s.Subnets {
			if ours.Addr().Is4() != theirs.Addr().Is4() {
				continue
			}
			b.add(tableIngress, 100, fmt.Sprintf("in_port=%d,tun_id=%d,%s_src=%s,%s,%s=%s,%s=%s",
				s.Switch.TunnelPort, network, tun, n.Tunnel, w.ip, w.src, theirs, w.dst, ours),
				"mod_dl_dst:%s,ct(zone=%d,table=%d)", dpu.GatewayMAC, zonePods, tablePolicy)
		}
		b.add(tableRoute, 90, fmt.Sprintf("%s,dl_dst=%s,%s=%s", w.ip, dpu.GatewayMAC, w.dst, theirs),
			"dec_ttl,mod_dl_src:%[1]s,mod_dl_dst:%[1]s,set_field:%[2]d->tun_id,set_field:%[3]s->%[4]s_dst,output:%[5]d",
			dpu.GatewayMAC, network, n.Tunnel, tun, s.Switch.TunnelPort)
	}
}

// outside masquerades what goes to no node, and takes the answers.
func (b *builder) outside(s *State) {
	own, port := s.Switch.Masquerade, s.Switch.OutsidePort
	if !own.IsValid() || port == 0 {
		return
	}
	w, in := wordsOf(own), fmt.Sprintf("in_port=%d,", port)
	if own.Is4() {
		b.answer(tableIngress, in, own, s.Switch.MasqueradeMAC)
	} else {
		b.advertise(port, own, s.Switch.MasqueradeMAC)
	}
	b.add(tableIngress, 100, fmt.Sprintf("%s%s,%s=%s", in, w.ip, w.dst, own), "ct(zone=%d,nat,table=%d)", zoneOutside, tableAnswered)
	for _, subnet := range s.Subnets {
		if subnet.Addr().Is4() != own.Is4() {
			continue
		}
		b.add(tableAnswered, 100, fmt.Sprintf("ct_state=+trk+rpl-inv,%s,%s=%s", w.ip, w.dst, subnet),
			"mod_dl_dst:%s,ct(zone=%d,table=%d)", dpu.GatewayMAC, zonePods, tablePolicy)
	}
	if s.Switch.GatewayMAC == (dpu.MAC{}) {
		return
	}
	b.add(tableRoute, 10, fmt.Sprintf("%s,dl_dst=%s", w.ip, dpu.GatewayMAC),
		"dec_ttl,ct(commit,zone=%d,nat(src=%s),table=%d)", zoneOutside, natAddress(own), tableOutside)
	b.add(tableOutside, 100, "ct_state=+trk-inv,"+w.ip, "mod_dl_src:%s,mod_dl_dst:%s,output:%d", s.Switch.MasqueradeMAC, s.Switch.GatewayMAC, port)
}

// guard keeps pods from the DPUs, which have the tunnels' addresses: what listens there is not for
// pods, and masquerading makes a pod look like a DPU.
func (b *builder) guard(s *State) {
	tunnels := []netip.Addr{s.Switch.Tunnel}
	for _, n := range s.Nodes {
		tunnels = append(tunnels, n.Tunnel)
	}
	for _, a := range tunnels {
		if w := wordsOf(a); a.IsValid() {
			b.add(tableRoute, 20, fmt.Sprintf("%s,dl_dst=%s,%s=%s", w.ip, dpu.GatewayMAC, w.dst, a), "drop")
		}
	}
}

// natAddress is an address in the action nat.
func natAddress(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// commit has conntrack know a connection whose first packet the policy has let pass.
func (b *builder) commit() {
	for _, ip := range []string{"ip", "ipv6"} {
		b.add(tableCommit, 100, "ct_state=+trk+new,"+ip, "ct(commit,zone=%d),goto_table:%d", zonePods, tableRoute)
		b.add(tableCommit, 0, ip, "goto_table:%d", tableRoute)
	}
}

// Changes are the lines for a bundle of ovs-ofctl that makes one list of flows from another, both in
// the order of Compute.
func Changes(from, to []Flow) (lines []string) {
	for len(from)+len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && from[0].Match < to[0].Match:
			lines = append(lines, "delete_strict "+from[0].Match)
			from = from[1:]
		case len(from) == 0 || to[0].Match < from[0].Match:
			lines = append(lines, "add "+to[0].String())
			to = to[1:]
		default:
			if from[0].Actions != to[0].Actions {
				lines = append(lines, "add "+to[0].String())
			}
			from, to = from[1:], to[1:]
		}
	}
	return lines
}
