/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which source a datagram has, and where it goes on the container's own loopback. */
#ifndef TSUGIKI_SEND_H
#define TSUGIKI_SEND_H

#include "source.h"

/*
 * A datagram without a destination of its own, on a connected socket: the hook
 * runs because of a control message, which may name another source.
 */
static __always_inline bool to_connected_peer(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	return !ctx->user_port && sk->dst_port;
}

/*
 * Whether a datagram may leave by an endpoint, and then whether its source is the
 * endpoint's, rather than the socket's own. A socket that another endpoint has lent its
 * address could not hear the answer.
 */
static __always_inline bool leaves_by(struct bpf_sock *sk, const struct endpoint *ep,
				      const struct addr *at, const struct addr *to,
				      bool *as_its_own)
{
	*as_its_own = serves(sk) || (!wildcard(at) && keeps_source(sk, ep, at, to)) ||
		      (container()->loopback && loopback(at));
	return *as_its_own || wildcard(at) || !lent(sk, at);
}

/*
 * A datagram on the loopback has the source that the socket or a control message names, or
 * one of the loopback.
 */
static __always_inline int send_loopback4(struct bpf_sock_addr *ctx, struct addr *to, __u16 port,
					  __u32 rules)
{
	struct bpf_sock *sk = ctx->sk;
	struct addr asked = mapped(ctx->msg_src_ip4), named = *to;
	__u16 named_port = port;
	__u32 from;

	translate(ctx, to, &port);
	join_loopback(sk, !loopback(to));
	if (loopback(to))
		note_led(sk, &named, named_port, port, rules);
	/* Or the compiler keeps a pointer into the context, which may not be. */
	__asm__ volatile("" : "+r"(ctx));
	from = sk->src_ip4;
	if (!from && !loopback(&asked) && !loopback(to))
		from = bpf_htonl(0x7f000001);
	if (from)
		ctx->msg_src_ip4 = from;
	ctx->user_ip4 = to->word[3];
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

static __always_inline void send_from6(struct bpf_sock_addr *ctx, const struct addr *from)
{
	ctx->msg_src_ip6[0] = from->word[0];
	ctx->msg_src_ip6[1] = from->word[1];
	ctx->msg_src_ip6[2] = from->word[2];
	ctx->msg_src_ip6[3] = from->word[3];
}

static __always_inline int send_loopback6(struct bpf_sock_addr *ctx, struct addr *to, __u16 port,
					  __u32 rules)
{
	struct addr from = source6(ctx->sk), named = *to;
	__u16 named_port = port;

	translate(ctx, to, &port);
	join_loopback(ctx->sk, !loopback(to));
	if (loopback(to))
		note_led(ctx->sk, &named, named_port, port, rules);
	if (wildcard(&from) && !loopback(to))
		from = localhost(false);
	if (!wildcard(&from))
		send_from6(ctx, &from);
	redirect6(ctx, to, port);
	return ALLOW;
}

/* A datagram to a loopback address that was asked before. */
static __always_inline int send_as_before4(struct bpf_sock_addr *ctx, __u16 port)
{
	__u32 from = ctx->sk->src_ip4;

	if (from)
		ctx->msg_src_ip4 = from;
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

static __always_inline int send_as_before6(struct bpf_sock_addr *ctx, __u16 port)
{
	struct addr from = source6(ctx->sk);

	if (!wildcard(&from))
		send_from6(ctx, &from);
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

#endif
