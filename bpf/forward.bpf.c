/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Direct forward: a packet of one pod for another pod of the node.
 *
 * Theory of operation. A pod's link has a second end in the host's network namespace.
 *
 *	forward_from_pod	ingress of that end: all that the pod sends
 *	forward_to_pod		egress of that end: what a bridge or the host sends to the pod
 *	forward_from_wire	ingress of the link from a switch in user space
 *
 * forward_from_pod drops frames with another sender's addresses. It hands a packet to the
 * destination's link at once (bpf_redirect_peer) if all of this is so:
 *   - the destination's MAC address is a local pod's, or the host's and the host routes;
 *   - the destination's IP address is that pod's;
 *   - it is TCP, UDP or an echo, and no fragment;
 *   - the pair of pods is direct;
 *   - the flow has not come through the switch;
 *   - the packet has the size and the TTL to arrive.
 * All other packets go on as if there were no program: to the bridge, the switch or the
 * host, with their rules. So a row that is missing costs time and opens nothing.
 *
 * The switch translates flows: a Service has an address of its own, and the answer of the
 * pod behind it must go back through the switch. The programs do not know Services. They
 * remember the flows between local pods of which a packet came through the switch, and
 * leave both directions to the switch. For the same reason a flow stays with the switch that
 * began before its pair was direct: a switch that sees one direction only may drop it.
 *
 * Oldest kernel: 5.12 (bpf_check_mtu; bpf_redirect_peer is of 5.10).
 */
#include "frame.h"

#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT   2
#define PACKET_HOST   0 /* linux/if_packet.h */

#define FOUND 1

static __always_inline void count(struct __sk_buff *skb, __u32 device, enum why why)
{
	struct counts *c = bpf_map_lookup_elem(&counts_by_device, &device);

	if (c && why < WHY_COUNT) {
		c->packets[why]++;
		if (why == WHY_DIRECT)
			c->direct_bytes += skb->len;
	}
}

static __noinline int describe(struct told *told, struct __sk_buff *skb, const struct frame *f,
			       enum why why)
{
	struct packet p = {};

	read_packet(skb, f, &p);
	told->time = bpf_ktime_get_ns();
	told->from = p.from;
	told->to = p.to;
	told->length = skb->len;
	told->ethertype = ethertype(f);
	told->from_port = bpf_ntohs(p.from_port);
	told->to_port = bpf_ntohs(p.to_port);
	told->upper = p.upper;
	told->why = why;
	__builtin_memcpy(told->to_mac, f->head, MAC_LENGTH);
	__builtin_memcpy(told->from_mac, f->head + MAC_LENGTH, MAC_LENGTH);
	return 0;
}

/* Tells who traces the pod what becomes of a packet. */
static __noinline int tell(struct __sk_buff *skb, const struct frame *f, enum why why)
{
	__u32 device = skb->ifindex;
	void *ring = bpf_map_lookup_elem(&told_by_device, &device);
	struct told *told;
	__u64 *untold;

	if (!ring)
		return 0;
	told = bpf_ringbuf_reserve(ring, sizeof(*told), 0);
	if (told) {
		describe(told, skb, f, why);
		bpf_ringbuf_submit(told, 0);
		return 0;
	}
	untold = bpf_map_lookup_elem(&untold_by_device, &device);
	if (untold)
		__sync_fetch_and_add(untold, 1);
	return 0;
}

/* What becomes of a packet is counted, and told if somebody traces the pod. */
static __always_inline enum why settle(struct __sk_buff *skb, const struct pod *from,
				       const struct frame *f, enum why why)
{
	count(skb, from->device, why);
	if (from->flags & POD_TRACED)
		tell(skb, f, why);
	return why;
}

static __always_inline void set_flow(struct flow *flow, const struct packet *p)
{
	int order = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		if (!order && p->from.word[i] != p->to.word[i])
			order = p->from.word[i] < p->to.word[i] ? -1 : 1;
	flow->protocol = p->upper;
	if (order < 0) {
		flow->low = p->from;
		flow->high = p->to;
		flow->low_port = p->from_port;
		flow->high_port = p->to_port;
	} else {
		flow->low = p->to;
		flow->high = p->from;
		flow->low_port = p->to_port;
		flow->high_port = p->from_port;
	}
}

static __always_inline bool has_flow(__u32 device, const struct flow *flow)
{
	void *flows = bpf_map_lookup_elem(&flows_by_device, &device);

	return flows && bpf_map_lookup_elem(flows, flow);
}

static __always_inline bool pair_is_direct(const struct pod *from, const struct pod *to)
{
	struct pair pair = {from->device, to->device};
	enum verdict *verdict;

	if (pair.low > pair.high)
		pair = (struct pair){to->device, from->device};
	verdict = bpf_map_lookup_elem(&verdict_by_pair, &pair);
	return verdict ? *verdict == PAIR_DIRECT : from->flags & to->flags & POD_ALL_PAIRS;
}

/*
 * The pod that a packet is for, of the sender's network, and its link. *routed: by its IP
 * address alone. A row may be removed and become another pod's at any moment: *target is read
 * once, and what is found in its row has to be what the packet says.
 */
static __always_inline struct pod *find_destination(const struct frame *f, const struct packet *p,
						    const struct pod *from, __u32 *target,
						    bool *routed)
{
	struct mac_key mac = {.network = from->network};
	struct addr_key place = {from->network, p->to};
	struct pod *to;
	__u32 *device;

	__builtin_memcpy(mac.mac, f->head, MAC_LENGTH);
	*routed = (from->flags & POD_ROUTED) && same_mac(f->head, from->gateway);
	device = *routed ? bpf_map_lookup_elem(&device_by_addr, &place)
			 : bpf_map_lookup_elem(&device_by_mac, &mac);
	if (!device)
		return NULL;
	*target = *(volatile __u32 *)device;
	to = bpf_map_lookup_elem(&pod_by_device, target);
	if (!to || *target == from->device || to->network != from->network)
		return NULL;
	if (!owns(to, &p->to) ||
	    (*routed ? !(to->flags & POD_ROUTED) : !same_mac(f->head, to->mac)))
		return NULL;
	return to->device == *target ? to : NULL;
}

/* What becomes of a packet whose sender is the pod, and *dest, if it goes there directly. */
static __always_inline enum why examine(struct __sk_buff *skb, const struct frame *f,
					const struct pod *from, struct pod **dest, __u32 *target,
					bool *routed)
{
	struct packet p = {};
	struct flow flow = {};
	struct pod *to;
	__u32 mtu = 0;

	if (f->head[0] & 1)
		return WHY_GROUP;
	if (!(from->flags & POD_DIRECT))
		return WHY_OFF;
	if (!read_packet(skb, f, &p))
		return WHY_PROTOCOL;
	to = find_destination(f, &p, from, target, routed);
	if (!to)
		return WHY_NOT_LOCAL;
	if (!(to->flags & POD_DIRECT))
		return WHY_OFF;
	if (p.fragment)
		return WHY_FRAGMENT;
	if (!p.upper)
		return WHY_PROTOCOL;
	if (!pair_is_direct(from, to))
		return WHY_PAIR;
	set_flow(&flow, &p);
	if (has_flow(from->device, &flow) || has_flow(*target, &flow))
		return WHY_FLOW;
	if (bpf_check_mtu(skb, *target, &mtu, 0, BPF_MTU_CHK_SEGS))
		return WHY_SIZE;
	if (*routed && p.ttl <= 1)
		return WHY_TTL;
	*dest = to;
	return WHY_DIRECT;
}

/* As a router does: the next hop's MAC addresses, and one hop less to go. */
static __always_inline bool route(struct __sk_buff *skb, const struct frame *f,
				  const struct pod *to)
{
	const __u8 *ip = f->head + ETH_LENGTH;
	__u8 macs[2 * MAC_LENGTH], ttl;

	__builtin_memcpy(macs, to->mac, MAC_LENGTH);
	__builtin_memcpy(macs + MAC_LENGTH, to->gateway, MAC_LENGTH);
	if (ethertype(f) == ETH_P_IP) {
		ttl = ip[8] - 1;
		/* TTL and protocol are one word of the checksum. */
		if (bpf_l3_csum_replace(skb, ETH_LENGTH + 10, bpf_htons(ip[8] << 8 | ip[9]),
					bpf_htons(ttl << 8 | ip[9]), 2) ||
		    bpf_skb_store_bytes(skb, ETH_LENGTH + 8, &ttl, 1, 0))
			return false;
	} else {
		ttl = ip[7] - 1;
		if (bpf_skb_store_bytes(skb, ETH_LENGTH + 7, &ttl, 1, 0))
			return false;
	}
	return !bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/*
 * Hands a frame for the pod's MAC address to the pod. The kernel has compared that address with
 * the one of the link where the frame came, and calls the frame another host's. Kernels before
 * c43272299488 keep that at bpf_redirect_peer, and IP drops the packet.
 */
static __always_inline int hand_over(struct __sk_buff *skb, __u32 target)
{
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(target, 0);
}

SEC("tc")
int forward_from_pod(struct __sk_buff *skb)
{
	__u32 device = skb->ifindex, target = 0, wire;
	struct pod *from = bpf_map_lookup_elem(&pod_by_device, &device), *to = NULL;
	struct frame f = {};
	enum why why = WHY_DIRECT;
	bool routed = false;

	/* While a pod is removed it has no row, and its addresses cannot be checked. */
	if (!from || from->device != device)
		return TC_ACT_SHOT;
	if (!read_frame(skb, &f)) {
		settle(skb, from, &f, WHY_BAD_FRAME);
		return TC_ACT_SHOT;
	}
	if (from->flags & POD_CHECKED)
		why = check_sender(skb, &f, from);
	if (why != WHY_DIRECT) {
		settle(skb, from, &f, why);
		return TC_ACT_SHOT;
	}
	wire = from->wire;
	why = settle(skb, from, &f, examine(skb, &f, from, &to, &target, &routed));
	if (why == WHY_DIRECT && to) {
		if (routed && !route(skb, &f, to))
			return TC_ACT_SHOT;
		return hand_over(skb, target);
	}
	return wire ? bpf_redirect(wire, 0) : TC_ACT_UNSPEC;
}

/* Remembers a flow of which a packet has come to a pod through the switch. */
static __always_inline void remember(struct __sk_buff *skb, __u32 device)
{
	struct pod *to = bpf_map_lookup_elem(&pod_by_device, &device);
	struct addr_key place = {};
	struct flow flow = {};
	struct packet p = {};
	struct frame f = {};
	__u32 *sender, found = FOUND;
	void *flows;

	if (!to || !read_frame(skb, &f) || !read_packet(skb, &f, &p) || !p.upper)
		return;
	place.network = to->network;
	place.addr = p.from;
	sender = bpf_map_lookup_elem(&device_by_addr, &place);
	flows = sender ? bpf_map_lookup_elem(&flows_by_device, sender) : NULL;
	if (!flows)
		return;
	set_flow(&flow, &p);
	if (!bpf_map_lookup_elem(flows, &flow))
		bpf_map_update_elem(flows, &flow, &found, BPF_ANY);
}

SEC("tc")
int forward_to_pod(struct __sk_buff *skb)
{
	remember(skb, skb->ifindex);
	return TC_ACT_UNSPEC;
}

/* A switch floods frames for MAC addresses that it does not know: those are not the pod's. */
SEC("tc")
int forward_from_wire(struct __sk_buff *skb)
{
	__u32 wire = skb->ifindex, *device = bpf_map_lookup_elem(&device_by_wire, &wire), target;
	__u8 mac[MAC_LENGTH];
	struct pod *to;

	if (!device)
		return TC_ACT_SHOT;
	target = *(volatile __u32 *)device;
	to = bpf_map_lookup_elem(&pod_by_device, &target);
	if (!to || to->wire != wire || to->device != target)
		return TC_ACT_SHOT;
	if (bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)))
		return TC_ACT_SHOT;
	if (!(mac[0] & 1) && !same_mac(mac, to->mac))
		return TC_ACT_SHOT;
	remember(skb, target);
	/* The kernel knows group frames as what they are. */
	return mac[0] & 1 ? bpf_redirect_peer(target, 0) : hand_over(skb, target);
}

/* At a port of a switch in user space, which has taken its copy: the host must not see it. */
SEC("tc")
int forward_end(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
