/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Translates the datagrams of one container between IPv4 and IPv6 (RFC 7915).
 *
 * Theory of operation. udp.h has datagrams for virtual addresses go to their aliases, by the host's
 * loopback device. These programs are attached to the links of the host's namespace (tcx):
 *
 *	on_loopback	where packets leave to the loopback device. What a socket of the
 *			container sends to an alias becomes IPv6, and goes to that host's link.
 *			What the host itself sends to a socket of the container becomes IPv4
 *	to_ipv4		where packets arrive by any other link. What is for a socket of the
 *			container becomes IPv4, from the sender's alias, and goes to the
 *			loopback device
 *
 * The ports are the host's. The kernel gives one to a socket of IPv4 and to another of IPv6, if
 * that is for IPv6 alone: then the port is that one's, and nothing leaves from it for the
 * container. A published server has a private port (loopback.h) in the place of its own.
 *
 * For whom a datagram is, to_ipv4 asks the kernel. There must be a socket of the container that
 * hears it, and, unless a rule has published it, no IPv6 socket: that would be the receiver.
 * skb->priority then says that it is of the container's loopback, which enter (packets.h) wants.
 *
 * Who asks a published server has no virtual address, mostly. These programs choose one of
 * the second half of the pool. It is that host's until PEER_NS after its last datagram, and longer
 *if nobody needs it.
 *
 * SIP's messages name addresses. They are left to the supervisor (messages.h).
 *
 * ICMPv6 errors about a datagram become ICMP errors (RFC 7915 section 5.2), for the same socket.
 *
 * A packet that is neither is left as it is: TCX_NEXT. Oldest kernel: 6.6.
 */
#include "messages.h"

#define ETH_P_IP   0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_LENGTH 14

#define ICMP_UNREACHABLE 3
#define FRAGMENT	 44
#define ICMPV6		 58
#define UNREACHABLE6	 1
#define TOO_BIG6	 2

#define PACKET_HOST 0
#define VLAN_ID	    0x0fff

#define TCX_NEXT (-1)
#define TCX_DROP 2

#define CHECKSUM_FLAGS (BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | BPF_F_MARK_ENFORCE)

struct header4 {
	__u8 version; /* and the header's length */
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 from, to;
};

struct header6 {
	__u32 first; /* version, traffic class, flow label */
	__u16 length;
	__u8 next;
	__u8 hops;
	struct addr from, to;
};

struct ports {
	__u16 from, to;
	__u16 length, check;
};

struct datagram4 {
	struct header4 ip;
	struct ports udp;
};

struct datagram6 {
	struct header6 ip;
	struct ports udp;
};

/* The header of a fragment (RFC 8200 section 4.5). */
struct fragment {
	__u8 next, reserved;
	__u16 offset;
	__u32 id;
};

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline struct header4 header4_for(__u16 length, __u8 protocol, __u32 from)
{
	struct header4 ip = {.version = 0x45,
			     .length = bpf_htons(length),
			     .fragment = bpf_htons(0x4000),
			     .ttl = 64,
			     .protocol = protocol,
			     .from = from,
			     .to = bpf_htonl(0x7f000001)};

	return ip;
}

static __always_inline void sum_header(struct header4 *ip)
{
	ip->check = 0;
	ip->check = folded(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
}

/* Sends a packet to the link of a host. The link's own header is not written yet. */
static __always_inline int send_to(const struct virtual_host *host)
{
	struct bpf_redir_neigh next = {.nh_family = AF_INET6};

	if (unspecified(&host->next))
		return bpf_redirect_neigh(host->device, NULL, 0, 0);
	/* Without it the kernel would look the route up for each datagram. */
	__builtin_memcpy(next.ipv6_nh, &host->next, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(host->device, &next, sizeof(next), 0);
}

/* Makes IPv6 of a datagram for an alias. */
static __always_inline int to_ipv6(struct __sk_buff *skb)
{
	struct datagram4 old;
	struct published *published;
	struct virtual_host *host;
	struct datagram6 new = {};
	struct bpf_sock *sk;
	struct message m;
	struct flow f = {};
	__u32 from_port;
	int length;
	__s64 diff;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH, &old, sizeof(old)) ||
	    old.ip.protocol != IPPROTO_UDP || !in_pool(old.ip.to, aliases_of(pool)))
		return TCX_NEXT;
	sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	if (!sk || !is_ours(sk))
		return TCX_NEXT;
	host = host_of(old.ip.to);
	if (!host || !host->device || old.ip.version != 0x45 || old.ip.fragment & bpf_htons(0x3fff))
		return TCX_DROP;
	if (host->heard)
		host->heard = bpf_ktime_get_ns();
	from_port = bpf_ntohs(old.udp.from);
	new.udp = old.udp;
	new.ip.from = host->source;
	published = bpf_map_lookup_elem(&published_by_private, &from_port);
	if (published) {
		new.ip.from = published->addr;
		new.udp.from = bpf_htons(published->port);
	}
	f.host = host->addr;
	f.here = new.ip.from;
	f.host_port = old.udp.to;
	f.here_port = new.udp.from;
	if (!published && is_anothers(skb, &f))
		return TCX_DROP;
	f.alias = old.ip.to;
	f.port = old.udp.from;
	f.known = known_port(sk);
	length = bpf_ntohs(old.udp.length) - sizeof(old.udp);
	if (is_message(skb, &f, length)) {
		m = message(&f, old.ip.tos, old.ip.ttl);
		m.outwards = 1;
		hand_over(skb, &m, ETH_LENGTH + sizeof(old), length);
		return TCX_DROP;
	}
	new.ip.first = bpf_htonl(6 << 28 | old.ip.tos << 20);
	new.ip.length = bpf_htons(bpf_ntohs(old.ip.length) - sizeof(old.ip));
	new.ip.next = IPPROTO_UDP;
	new.ip.hops = old.ip.ttl;
	new.ip.to = host->addr;
	diff = bpf_csum_diff((__be32 *)&old.ip.from, 8, (__be32 *)&new.ip.from, 32, 0);
	if (diff < 0 || bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &new, offsetof(struct datagram6, udp.to), 0) ||
	    bpf_l4_csum_replace(skb, ETH_LENGTH + offsetof(struct datagram6, udp.check), 0, diff,
				CHECKSUM_FLAGS))
		return TCX_DROP;
	if (new.udp.from != old.udp.from &&
	    bpf_l4_csum_replace(skb, ETH_LENGTH + offsetof(struct datagram6, udp.check),
				old.udp.from, new.udp.from, BPF_F_MARK_MANGLED_0 | 2))
		return TCX_DROP;
	return send_to(host);
}

/* Makes IPv4 of a datagram that a socket of the container hears. */
static __always_inline int datagram(struct __sk_buff *skb, __u32 device)
{
	struct datagram6 old;
	struct datagram4 new;
	struct flow f = {};
	struct message m;
	int length;
	__s64 diff;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH, &old, sizeof(old)))
		return TCX_NEXT;
	f.host = old.ip.from;
	f.here = old.ip.to;
	f.host_port = old.udp.from;
	f.here_port = old.udp.to;
	if (!find_socket(skb, &f, device))
		return TCX_NEXT;
	meet_expected(skb, &f);
	length = bpf_ntohs(old.udp.length) - sizeof(old.udp);
	if (is_message(skb, &f, length)) {
		m = message(&f, bpf_ntohl(old.ip.first) >> 20, old.ip.hops);
		hand_over(skb, &m, ETH_LENGTH + sizeof(old), length);
		return TCX_DROP;
	}
	new.ip = header4_for(bpf_ntohs(old.ip.length) + sizeof(new.ip), IPPROTO_UDP, f.alias);
	new.ip.tos = bpf_ntohl(old.ip.first) >> 20;
	new.ip.ttl = old.ip.hops;
	sum_header(&new.ip);
	new.udp = old.udp;
	new.udp.to = f.port;
	diff = bpf_csum_diff((__be32 *)&old.ip.from, 32, (__be32 *)&new.ip.from, 8, 0);
	if (diff < 0 || bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &new, offsetof(struct datagram4, udp.length), 0) ||
	    bpf_l4_csum_replace(skb, ETH_LENGTH + offsetof(struct datagram4, udp.check), 0, diff,
				CHECKSUM_FLAGS))
		return TCX_DROP;
	if (new.udp.to != old.udp.to &&
	    bpf_l4_csum_replace(skb, ETH_LENGTH + offsetof(struct datagram4, udp.check), old.udp.to,
				new.udp.to, BPF_F_MARK_MANGLED_0 | 2))
		return TCX_DROP;
	skb->priority = loopback_id;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/* The supervisor says that a message has come in fragments, and is lost. The host finds no receiver
 * either, and tells the sender. */
static __always_inline int fragment(struct __sk_buff *skb, const struct header6 *ip6, __u32 device)
{
	struct flow f = {.host = ip6->from, .here = ip6->to};
	struct fragment part;
	struct message m;
	struct ports udp;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(*ip6), &part, sizeof(part)) ||
	    part.next != IPPROTO_UDP || part.offset & bpf_htons(0xfff8) ||
	    bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(*ip6) + sizeof(part), &udp, sizeof(udp)))
		return TCX_NEXT;
	f.host_port = udp.from;
	f.here_port = udp.to;
	if (!find_socket(skb, &f, device) || !is_message(skb, &f, 1))
		return TCX_NEXT;
	m = message(&f, 0, 0);
	m.fragment = 1;
	hand_over(skb, &m, ETH_LENGTH + sizeof(*ip6) + sizeof(part) + sizeof(udp), 1);
	return TCX_NEXT;
}

/* The least MTU of a link of IPv6 (RFC 8200, section 5), in bytes. */
#define MTU_MIN6 1280

/* An ICMP error about a datagram: the error, and the beginning of what it is about. */
struct error4 {
	__u8 type, code;
	__u16 check;
	__u16 unused, mtu;
	struct header4 ip;
	struct ports udp;
};

struct error6 {
	__u8 type, code;
	__u16 check;
	__u32 mtu; /* or unused */
	struct header6 ip;
	struct ports udp;
};

/* The code of ICMP's "unreachable" that is an ICMPv6 error, or -1. */
static __always_inline int code_of(const struct error6 *e)
{
	if (e->type == TOO_BIG6)
		return 4; /* fragmentation needed */
	if (e->type != UNREACHABLE6)
		return -1;
	if (e->code == 1)
		return 10; /* prohibited */
	return e->code == 4 ? 3 /* port */ : 1 /* host */;
}

static __always_inline int error(struct __sk_buff *skb, const struct header6 *ip6)
{
	struct error4 to = {.type = ICMP_UNREACHABLE};
	struct error6 e;
	struct flow f = {};
	struct header4 ip;
	__u32 mtu;
	int code;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(*ip6), &e, sizeof(e)) ||
	    e.ip.next != IPPROTO_UDP)
		return TCX_NEXT;
	code = code_of(&e);
	f.host = e.ip.to;
	f.here = e.ip.from;
	f.host_port = e.udp.to;
	f.here_port = e.udp.from;
	if (code < 0 || !same(&ip6->to, &f.here) || !find_socket(skb, &f, 0))
		return TCX_NEXT;
	to.code = code;
	if (e.type == TOO_BIG6) {
		/* The supervisor has sent it. The program's own may be larger than a packet. */
		if (is_message(skb, &f, 1))
			return TCX_NEXT;
		mtu = bpf_ntohl(e.mtu);
		if (mtu < MTU_MIN6)
			return TCX_NEXT; /* RFC 8201, section 4: to be discarded */
		to.mtu = bpf_htons(mtu > 65535 ? 65535 : mtu - 20);
	}
	to.ip = header4_for(bpf_ntohs(e.ip.length) + sizeof(ip), IPPROTO_UDP,
			    bpf_htonl(0x7f000001));
	to.ip.to = f.alias;
	sum_header(&to.ip);
	to.udp = e.udp;
	to.udp.from = f.port;
	to.check = folded(bpf_csum_diff(0, 0, (__be32 *)&to, sizeof(to), 0));
	ip = header4_for(sizeof(ip) + sizeof(to), 1 /* ICMP */, f.alias);
	sum_header(&ip);
	if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0) ||
	    bpf_skb_change_tail(skb, ETH_LENGTH + sizeof(ip) + sizeof(to), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &ip, sizeof(ip), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH + sizeof(ip), &to, sizeof(to),
				BPF_F_RECOMPUTE_CSUM))
		return TCX_DROP;
	skb->priority = loopback_id;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

static __always_inline int arrives(struct __sk_buff *skb, __u32 device)
{
	struct header6 ip6;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, ETH_LENGTH, &ip6, sizeof(ip6)))
		return TCX_NEXT;
	if (ip6.next == IPPROTO_UDP)
		return datagram(skb, device);
	if (ip6.next == FRAGMENT)
		return fragment(skb, &ip6, device);
	return ip6.next == ICMPV6 ? error(skb, &ip6) : TCX_NEXT;
}

/* What is for a link above this one, a VLAN or one with another MAC address, arrives by that one,
 * too. VLAN 0 is this link's: its tag has a priority only. */
SEC("tcx/ingress")
int to_ipv4(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST || skb->vlan_tci & VLAN_ID)
		return TCX_NEXT;
	return arrives(skb, skb->ifindex);
}

SEC("tcx/egress")
int on_loopback(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return to_ipv6(skb);
	return arrives(skb, LOOPBACK);
}

char LICENSE[] SEC("license") = "GPL";
