/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP connects of translated sockets to mapped addresses, see translated.h. */
#ifndef TSUGIKI_MAPPED_H
#define TSUGIKI_MAPPED_H

#include "translated.h"
#include "udp.h"

/*
 * The errno by which the gate and the preloaded library know that the supervisor has to decide:
 * connect(2) on an IP socket has no such error.
 */
#define ASK_SUPERVISOR 93 /* EPROTONOSUPPORT */

/* Whether the supervisor relays connections to a port. */
static __always_inline bool is_relayed(__u16 port)
{
	const struct container *c = container();
	int i;

	for (i = 0; i < RELAYED_PORTS_MAX; i++)
		if (c->relayed[i] && c->relayed[i] == port)
			return true;
	return false;
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

	if (ctx->user_family != AF_INET6 || !is_mapped(&to))
		return true;
	held = translated(sk);
	if (!held)
		return true;
	if (loopback(&to) || wildcard(&to)) {
		held->spoke_ip4 = 1; /* and does until it ends */
		return true;
	}
	host = is_virtual(&to) && !held->spoke_ip4 ? host_of(&to) : NULL;
	if (!host || host->peer || host->heard || is_relayed(bpf_ntohs(ctx->user_port))) {
		bpf_set_retval(-ASK_SUPERVISOR);
		return false;
	}
	to = host->addr;
	redirect6(ctx, &to, bpf_ntohs(ctx->user_port));
	return true;
}

/*
 * Names the peer of a translated socket by its virtual address. The supervisor finds a name for
 * hosts that have none here, and for those whose address the programs have chosen.
 */
static __always_inline bool name_virtual(struct bpf_sock *sk, struct addr *peer)
{
	struct virtual_host *host;
	struct addr name;
	__u32 *known;

	if (!translated(sk))
		return false;
	known = find(&virtual_tables, peer);
	if (!known)
		return false;
	name = mapped(*known);
	host = host_of(&name);
	if (!host || host->peer || host->heard || !same(&host->addr, peer))
		return false;
	*peer = name;
	return true;
}

#endif
