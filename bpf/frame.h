/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reading a frame that a pod has sent, and whether the sender's addresses are the pod's. */
#ifndef TSUGIKI_FRAME_H
#define TSUGIKI_FRAME_H

#include "forward.h"

#define ETH_P_IP     0x0800
#define ETH_P_ARP    0x0806
#define ETH_P_8021Q  0x8100
#define ETH_P_IPV6   0x86dd
#define ETH_P_8021AD 0x88a8

#define ETH_LENGTH  14
#define ARP_LENGTH  28
#define IP4_LENGTH  20
#define IP6_LENGTH  40
#define HEAD_LENGTH (ETH_LENGTH + IP6_LENGTH + 24) /* up to the target of an advertisement */

#define IPPROTO_ICMP   1
#define IPPROTO_TCP    6
#define IPPROTO_UDP    17
#define IPPROTO_ICMPV6 58

#define ICMP_ECHO_REPLY	  0
#define ICMP_ECHO	  8
#define ICMPV6_ECHO	  128
#define ICMPV6_ECHO_REPLY 129
#define ND_ROUTER	  134
#define ND_NEIGHBOR	  136
#define ND_REDIRECT	  137
#define ND_HOPS		  255 /* RFC 4861: the hop limit of all messages of neighbor discovery */

/* The beginning of a frame, copied: what cannot change while it is examined. */
struct frame {
	__u8 head[HEAD_LENGTH + 2]; /* the bytes behind a short frame are zero */
	__u32 length;		    /* of head */
};

struct packet {
	struct pod_addr from, to;
	__u16 protocol; /* ETH_P_IP or ETH_P_IPV6 */
	__u8 upper;	/* TCP, UDP or ICMP's number; 0: none that has ports */
	__u8 ttl;
	bool fragment;
	__u16 from_port, to_port;
};

static __always_inline bool read_frame(struct __sk_buff *skb, struct frame *f)
{
	__u32 length = skb->len;

	if (length < ETH_LENGTH)
		return false;
	if (length > HEAD_LENGTH)
		length = HEAD_LENGTH;
	f->length = length;
	/* Two ways, because older verifiers want to know a length. */
	if (length == HEAD_LENGTH)
		return !bpf_skb_load_bytes(skb, 0, f->head, HEAD_LENGTH);
	length &= 127;
	if (!length || length > HEAD_LENGTH)
		return false;
	return !bpf_skb_load_bytes(skb, 0, f->head, length);
}

static __always_inline __u16 ethertype(const struct frame *f)
{
	return f->head[12] << 8 | f->head[13];
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) |
		 (a[5] ^ b[5]));
}

static __always_inline bool same_addr(const struct pod_addr *a, const struct pod_addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline struct pod_addr addr4(const __u8 *at)
{
	struct pod_addr a = {{0, 0, bpf_htonl(0xffff), 0}};

	__builtin_memcpy(&a.word[3], at, 4);
	return a;
}

static __always_inline struct pod_addr addr6(const __u8 *at)
{
	struct pod_addr a;

	__builtin_memcpy(&a, at, sizeof(a));
	return a;
}

/* The pod's addresses, which userspace wrote; all zero is none of them. */
static __always_inline bool owns(const struct pod *pod, const struct pod_addr *a)
{
	if (!(a->word[0] | a->word[1] | a->word[2] | a->word[3]))
		return false;
#pragma unroll
	for (int i = 0; i < POD_ADDRS_MAX; i++)
		if (same_addr(&pod->addrs[i], a))
			return true;
	return false;
}

/* The link-local address that the kernel makes of a MAC address (RFC 4291, appendix A). */
static __always_inline bool own_link_local(const struct pod *pod, const __u8 *at)
{
	const __u8 *m = pod->mac;

	return at[0] == 0xfe && at[1] == 0x80 && !at[2] && !at[3] && !at[4] && !at[5] && !at[6] &&
	       !at[7] && at[8] == (m[0] ^ 2) && at[9] == m[1] && at[10] == m[2] && at[11] == 0xff &&
	       at[12] == 0xfe && at[13] == m[3] && at[14] == m[4] && at[15] == m[5];
}

static __always_inline bool is_own6(const struct pod *pod, const __u8 *at)
{
	struct pod_addr a = addr6(at);

	return owns(pod, &a) || own_link_local(pod, at);
}

static __always_inline enum why check_arp(const struct frame *f, const struct pod *pod)
{
	const __u8 *arp = f->head + ETH_LENGTH;
	struct pod_addr sender = addr4(arp + 14);

	if (f->length < ETH_LENGTH + ARP_LENGTH || arp[4] != MAC_LENGTH || arp[5] != 4)
		return WHY_BAD_FRAME;
	if (!same_mac(arp + 8, pod->mac))
		return WHY_BAD_MAC;
	/* A probe has no sender (RFC 5227). */
	return !sender.word[3] || owns(pod, &sender) ? WHY_DIRECT : WHY_BAD_ADDR;
}

/* A message of neighbor discovery is believed with this hop limit only. */
static __noinline enum why check_neighbor(const struct frame *f, const struct pod *pod)
{
	const __u8 *icmp = f->head + ETH_LENGTH + IP6_LENGTH;
	__u8 upper = f->head[ETH_LENGTH + 6];

	if (upper == IPPROTO_TCP || upper == IPPROTO_UDP)
		return WHY_DIRECT;
	/* Behind an extension header there may be any message. */
	if (upper != IPPROTO_ICMPV6 || icmp[0] == ND_ROUTER || icmp[0] == ND_REDIRECT)
		return WHY_BAD_NEIGHBOR;
	if (icmp[0] == ND_NEIGHBOR && (f->length < HEAD_LENGTH || !is_own6(pod, icmp + 8)))
		return WHY_BAD_NEIGHBOR;
	return WHY_DIRECT;
}

static __always_inline enum why check_ip6(const struct frame *f, const struct pod *pod)
{
	const __u8 *ip = f->head + ETH_LENGTH;
	struct pod_addr from = addr6(ip + 8);

	if (f->length < ETH_LENGTH + IP6_LENGTH || ip[0] >> 4 != 6)
		return WHY_BAD_FRAME;
	/* Without an address yet, it asks whether another has the one that it wants. */
	if (!(from.word[0] | from.word[1] | from.word[2] | from.word[3])) {
		if (ip[24] != 0xff)
			return WHY_BAD_ADDR;
	} else if (!is_own6(pod, ip + 8)) {
		return WHY_BAD_ADDR;
	}
	return ip[7] == ND_HOPS ? check_neighbor(f, pod) : WHY_DIRECT;
}

/*
 * Whether the addresses that a frame says it comes from are the pod's. WHY_DIRECT: they are.
 * What cannot be checked is dropped: the switch may read in it what this program does not.
 */
static __always_inline enum why check_sender(struct __sk_buff *skb, const struct frame *f,
					     const struct pod *pod)
{
	const __u8 *ip = f->head + ETH_LENGTH;
	struct pod_addr from = addr4(ip + 12);

	if (!same_mac(f->head + MAC_LENGTH, pod->mac))
		return WHY_BAD_MAC;
	if (skb->vlan_present)
		return WHY_BAD_FRAME;
	switch (ethertype(f)) {
	case ETH_P_ARP:
		return check_arp(f, pod);
	case ETH_P_IPV6:
		return check_ip6(f, pod);
	case ETH_P_IP:
		if (f->length < ETH_LENGTH + IP4_LENGTH || ip[0] >> 4 != 4)
			return WHY_BAD_FRAME;
		return owns(pod, &from) ? WHY_DIRECT : WHY_BAD_ADDR;
	}
	return WHY_BAD_FRAME;
}

/*
 * Sets upper and the ports of a packet whose header of the upper protocol is at. The ICMP of the
 * other family is none: whoever reads the packet takes it for something else.
 */
static __always_inline void read_upper(struct packet *p, __u8 upper, const __u8 *at)
{
	bool echo =
		p->protocol == ETH_P_IP
			? upper == IPPROTO_ICMP && (at[0] == ICMP_ECHO || at[0] == ICMP_ECHO_REPLY)
			: upper == IPPROTO_ICMPV6 &&
				  (at[0] == ICMPV6_ECHO || at[0] == ICMPV6_ECHO_REPLY);

	if (upper == IPPROTO_TCP || upper == IPPROTO_UDP) {
		p->upper = upper;
		__builtin_memcpy(&p->from_port, at, 2);
		__builtin_memcpy(&p->to_port, at + 2, 2);
	} else if (echo) {
		p->upper = upper;
		__builtin_memcpy(&p->from_port, at + 4, 2);
		p->to_port = p->from_port;
	}
}

/* What an untagged frame carries, or false where that is not IP. */
static __always_inline bool read_packet(struct __sk_buff *skb, const struct frame *f,
					struct packet *p)
{
	const __u8 *ip = f->head + ETH_LENGTH;

	p->protocol = ethertype(f);
	if (skb->vlan_present)
		return false;
	if (p->protocol == ETH_P_IP) {
		if (f->length < ETH_LENGTH + IP4_LENGTH + 8 || ip[0] >> 4 != 4)
			return false;
		p->from = addr4(ip + 12);
		p->to = addr4(ip + 16);
		p->ttl = ip[8];
		p->fragment = (ip[6] & 0x3f) | ip[7];
		/* Only the first fragment has ports. */
		if (ip[0] == 0x45 && !((ip[6] & 0x1f) | ip[7]))
			read_upper(p, ip[9], ip + IP4_LENGTH);
		return true;
	}
	if (p->protocol != ETH_P_IPV6 || f->length < ETH_LENGTH + IP6_LENGTH + 8 || ip[0] >> 4 != 6)
		return false;
	p->from = addr6(ip + 8);
	p->to = addr6(ip + 24);
	p->ttl = ip[7];
	p->fragment = ip[6] == 44;
	if (!p->fragment)
		read_upper(p, ip[6], ip + IP6_LENGTH);
	else if (!(ip[42] | (ip[43] & 0xf8)) && f->length >= ETH_LENGTH + IP6_LENGTH + 16)
		read_upper(p, ip[40], ip + IP6_LENGTH + 8);
	return true;
}

#endif
