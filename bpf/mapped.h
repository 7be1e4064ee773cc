/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP connects of translated sockets to mapped addresses, see translated.h. */
#ifndef TSUGIKI_MAPPED_H
#define TSUGIKI_MAPPED_H

#include "translated.h"
#include "udp.h"

/*
 * The errno by which the preloaded library knows that the supervisor has to decide: connect(2) on
 * an IP socket has no such error.
 */
#define ASK_SUPERVISOR 93 /* EPROTONOSUPPORT */

/* Whether a translated socket has connected to an IPv4 address, on the container's loopback. Then
 * it speaks IPv4 until it ends. */
static __always_inline bool spoke_ip4(const struct held *held)
{
	return held->last && !in_pool(held->last, VIRTUAL_NET);
}

/*
 * Leads a connect of a translated socket to the IPv6 host behind a virtual address. It returns
 * false if the supervisor has to decide: it knows hosts behind the NAT64, whether an address that
 * the programs have chosen is usable, and replaces sockets. Nothing is counted and reported then.
 */
static __always_inline bool leads_to_ip6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = *(struct bpf_sock *volatile *)&ctx->sk; /* as in has_port */
	struct addr to = user6(ctx);
	struct virtual_host *host;
	struct held *held;
	__u32 asked = to.word[3];

	if (ctx->user_family != AF_INET6 || !is_mapped(&to))
		return true;
	held = translated(sk);
	if (!held)
		return true;
	if (loopback(&to) || wildcard(&to)) {
		held->last = asked ? asked : bpf_htonl(0x7f000001);
		return true;
	}
	host = is_virtual(&to) && !spoke_ip4(held) ? host_of(&to) : NULL;
	if (!host || host->peer || host->heard) {
		bpf_set_retval(-ASK_SUPERVISOR);
		return false;
	}
	held->last = asked;
	to = host->addr;
	redirect6(ctx, &to, bpf_ntohs(ctx->user_port));
	return true;
}

/* Names the peer of a translated socket by the virtual address that the socket has connected to. It
 * may be another host's by now: then the supervisor finds a name. */
static __always_inline bool name_virtual(struct bpf_sock *sk, struct addr *peer)
{
	struct held *held = translated(sk);
	struct virtual_host *host;
	struct addr asked;

	if (!held || !held->last)
		return false;
	asked = mapped(held->last);
	host = is_virtual(&asked) ? host_of(&asked) : NULL;
	if (!host || !same(&host->addr, peer))
		return false;
	*peer = asked;
	return true;
}

#endif
