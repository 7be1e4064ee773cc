/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which source a socket has, and may keep, where a rule wants one. */
#ifndef TSUGIKI_SOURCE_H
#define TSUGIKI_SOURCE_H

#include "packets.h"

/* A UDP server that connects to who has asked it, and keeps its own name. */
static __always_inline bool answers(struct bpf_sock_addr *ctx, const struct addr *to, __u16 port)
{
	return ctx->protocol == IPPROTO_UDP && ctx->sk && serves(ctx->sk) &&
	       known_peer(ctx, to, port);
}

/*
 * A UDP socket that stayed connected would reach whoever has the address when the
 * server has gone; one that is not connected is looked at with each datagram.
 */
static __always_inline bool connects_to_own(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	return ctx->protocol == IPPROTO_TCP && own_server(ctx, to, port);
}

static __always_inline bool by_name4(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct addr from = mapped(ctx->sk ? ctx->sk->src_ip4 : 0);

	return by_name(ctx, to, &from);
}

static __always_inline bool by_name6(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct bpf_sock *sk = ctx->sk;
	struct addr from;

	if (!sk)
		return false;
	from = source6(sk);
	return by_name(ctx, to, &from);
}

/* UDP sockets whose source is that of an endpoint they have connected through. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} lent_by_socket SEC(".maps");

/* Whether a socket's source is an endpoint's: lent at a connect, or bound for a client. */
static __always_inline bool lent(struct bpf_sock *sk, const struct addr *at)
{
	struct binding *b = binding_of(sk);

	return (b && !b->ingress && same(&b->host, at)) ||
	       bpf_sk_storage_get(&lent_by_socket, sk, 0, 0);
}

/*
 * Whether the source that a socket has is right for an endpoint: the endpoint's own, one
 * that an ingress rule or a name gave it, or, where the host chooses, what the host chose
 * for a former peer of a UDP socket. What it has besides is another endpoint's.
 */
static __always_inline bool keeps_source(struct bpf_sock *sk, const struct endpoint *ep,
					 const struct addr *at, const struct addr *to)
{
	struct binding *b = binding_of(sk);

	if (same(at, &ep->addr))
		return true;
	if (special(at)) /* it is for special destinations */
		return special(to) && wildcard(&ep->addr);
	if (b && same(&b->host, at) &&
	    (b->ingress || (container()->loopback && wildcard(&ep->addr))))
		return true;
	return wildcard(&ep->addr) && sk->protocol == IPPROTO_UDP && !lent(sk, at);
}

/* Whether a socket that connects through an endpoint need not be given a source. */
static __always_inline bool has_source(struct bpf_sock *sk, const struct endpoint *ep,
				       const struct addr *at, const struct addr *to)
{
	if (!sk)
		return true;
	if (wildcard(at))
		return wildcard(&ep->addr) && !ep->port;
	return keeps_source(sk, ep, at, to);
}

/*
 * Whether a socket that has a port connects from where it is bound, as on a host. The kernel
 * refuses to leave a loopback address for another host (EINVAL), and chooses the source of a
 * socket that is bound to the wildcard: packets see to it that it is the endpoint's.
 */
static __always_inline bool keeps_name(struct bpf_sock *sk, const struct addr *at)
{
	__u8 *right;

	if (!container()->loopback || !sk || !sk->src_port || !(wildcard(at) || loopback(at)))
		return false;
	if (sk->protocol != IPPROTO_UDP)
		return true;
	right = bpf_sk_storage_get(&kept_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (right)
		*right = 0; /* it is another peer */
	return true; /* where there is no room for the note, the packets are judged as before it */
}

/* Notes that an endpoint has lent its address to a socket, which TCP shows by itself: it
 * has none else once it is not connected. */
static __always_inline void lend(struct bpf_sock *sk, const struct endpoint *ep)
{
	if (!sk || sk->protocol != IPPROTO_UDP)
		return;
	if (wildcard(&ep->addr))
		bpf_sk_storage_delete(&lent_by_socket, sk);
	else
		bpf_sk_storage_get(&lent_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
}

#endif
