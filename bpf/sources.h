/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From whom a server that an ingress rule has bound takes connections and datagrams.
 *
 * Theory of operation. A socket's binding has the number of its rule. verdict_by_source has rows
 * by the rule and a prefix of the source's address: the longest that matches decides, and without
 * one nobody is let in. A rule without sources has a row for all addresses. So the supervisor
 * changes what a server hears while it listens, and a rule that is withdrawn has no rows.
 *
 * Grafted containers have the host's addresses, so an address does not say which of them has sent a
 * packet. On a loopback device its mark does, as the packet's priority: the sender's program
 * sets it in each SYN and datagram, see leave. A mark is of the network namespace in which the
 * sender's programs are, as the number of a loopback on the host is (loopback.h): containers
 * of a pod have the same. No other process can set such a priority without CAP_NET_ADMIN, or
 * CAP_NET_RAW since Linux 5.17, and no packet that comes from elsewhere has one. Rows with
 * SOURCE_IS_MARK are for marks.
 *
 * The container's own programs, and those of its pod, are always let in.
 *
 * What is judged is a SYN, or a datagram for a socket that is not connected. Where no rule
 * of the container has had sources, or was withdrawn by a grant, nothing is looked up.
 */
#ifndef TSUGIKI_SOURCES_H
#define TSUGIKI_SOURCES_H

#include "reach.h"

#define ETH_P_IP   0x0800
#define ETH_P_IPV6 0x86dd

#define LOOPBACK_IFINDEX 1

/* Whether a row of a rule admits an address, or a mark. */
static __always_inline bool is_source(__u32 rule, const struct addr *a)
{
	struct source key = {
		.bits = KEY_BITS(key), .container = container()->id, .rule = rule, .addr = *a};
	struct source_verdict *v = bpf_map_lookup_elem(&verdict_by_source, &key);

	return v && v->admitted;
}

/* The address that a packet comes from, or false. */
static __always_inline bool source_addr(struct __sk_buff *skb, struct addr *from)
{
	__u8 *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (ip + 20 > end)
			return false;
		*from = mapped(*(__u32 *)(ip + 12));
		return true;
	}
	if (ip + 40 > end)
		return false;
	__builtin_memcpy(from, ip + 8, sizeof(*from));
	return true;
}

/* The rule that has bound a socket to the address that a packet is for. */
static __always_inline __u32 rule_of(struct __sk_buff *skb, struct bpf_sock *sk,
				     const struct binding *b)
{
	struct second *second;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return b->rule;
	second = bpf_sk_storage_get(&second_by_socket, sk, 0, 0);
	return second && second->container == b->container ? second->rule : b->rule;
}

/* Whether a server that a rule has bound takes what a packet begins. */
static __always_inline bool admits(struct __sk_buff *skb, struct bpf_sock *sk)
{
	const struct container *c = container();
	struct binding *b;
	struct addr who = {};
	__u32 rule;

	if (!c->sourced)
		return true;
	b = binding_of(sk);
	if (!b || !source_addr(skb, &who))
		return false;
	rule = rule_of(skb, sk, b);
	if (is_source(rule, &who))
		return true;
	if (skb->ifindex != LOOPBACK_IFINDEX || !(skb->priority & MARK_BITS))
		return false;
	who = (struct addr){{0, 0, 0, skb->priority & MARK_OWNER}};
	return who.word[3] == (c->mark & MARK_OWNER) || is_source(rule | SOURCE_IS_MARK, &who);
}

#endif
