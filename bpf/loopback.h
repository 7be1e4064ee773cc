/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A container's own loopback on the host's.
 *
 * Theory of operation. Where a container's namespace has nothing but a loopback, all its
 * sockets are on the host, and so is its loopback: addresses are the host's own (127.0.0.0/8
 * and ::1), ports are translated. A port that a program binds has a *private port* of the
 * host's in its place, which the kernel chose; a port that the kernel chose for the program
 * stands for itself. Containers that share a network namespace share the loopback, by its
 * id.
 *
 *	bind		port 0 of a wildcard or a loopback address passes; the supervisor binds
 *			all others
 *	connect,	to a loopback address or a wildcard that no rule names: the port
 *	sendmsg		becomes the host's. TCP finds a listener of this loopback there, or
 *			goes to port 0, where nobody listens (ECONNREFUSED)
 *	getpeername,	a peer's port becomes the program's again
 *	recvmsg
 *	packets		what goes to, or from, a loopback address must find a socket of this
 *			loopback. Then skb->priority says whose it is, which the receiver's
 *			program sees: no other process can set such a priority without
 *			CAP_NET_ADMIN, and no packet that comes from elsewhere has it. A SYN
 *			or a datagram without it does not reach a port that no rule has bound
 *
 * A socket is known to be of the loopback by loopback_by_socket: one that was bound, that
 * listens, or that has sent there.
 */
#ifndef TSUGIKI_LOOPBACK_H
#define TSUGIKI_LOOPBACK_H

#include "reach.h"

/* Notes that a socket is of the container's loopback, if that is on the host. */
static __always_inline void join_loopback(struct bpf_sock *sk)
{
	__u32 id = container()->loopback, *of;

	if (!id)
		return;
	of = bpf_sk_storage_get(&loopback_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (of)
		*of = id;
}

static __always_inline bool is_of_loopback(struct bpf_sock *sk)
{
	__u32 *of = bpf_sk_storage_get(&loopback_by_socket, sk, 0, 0);

	return of && *of == container()->loopback;
}

/* Whether a destination is on the container's own loopback on the host, if no rule names it. */
static __always_inline bool on_loopback(const struct addr *to)
{
	return container()->loopback && (loopback(to) || wildcard(to));
}

/* Whose socket hears what is sent to an address. */
enum owner { NOBODY, LOOPBACK, SOMEBODY };

static __always_inline enum owner listener(void *ctx, __u8 protocol, const struct addr *at,
					   __u16 port)
{
	struct bpf_sock *sk = socket_at(ctx, protocol, at, port);
	enum owner owner;

	if (!sk)
		return NOBODY;
	owner = is_of_loopback(sk) ? LOOPBACK : SOMEBODY;
	bpf_sk_release(sk);
	return owner;
}

/*
 * Where on the host a destination on the loopback is: a server that a rule has bound, if it
 * is there, a private port, or the same port.
 */
static __always_inline void translate(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	__u8 protocol = ctx->protocol;
	struct location *l;
	struct addr at;

	/* The kernel takes the wildcard for the loopback. */
	if (wildcard(to))
		*to = localhost(is_mapped(to) || ctx->family == AF_INET);
	l = location_of(is_mapped(to) ? SERVED4 : SERVED6, protocol, *port);
	if (l) {
		at = wildcard(&l->addr) ? *to : l->addr;
		if (listener(ctx, protocol, &at, l->port) == LOOPBACK) {
			*to = at;
			*port = l->port;
			return;
		}
	}
	l = location_of(PRIVATE, protocol, *port);
	if (l)
		*port = l->port;
}

/* Leads a connect to where its destination on the loopback is. */
static __always_inline void connect_loopback(struct bpf_sock_addr *ctx, struct addr *to,
					     __u16 *port)
{
	__u16 asked = *port;
	enum owner owner;

	translate(ctx, to, port);
	owner = listener(ctx, ctx->protocol, to, *port);
	if (ctx->protocol != IPPROTO_TCP) {
		join_loopback(ctx->sk);
		if (owner == SOMEBODY)
			*port = 0;
		return;
	}
	if (owner == LOOPBACK)
		return;
	/* A socket may connect to itself. */
	if (owner == NOBODY && *port == ctx->sk->src_port)
		return;
	/* A port that the kernel has chosen since. */
	*port = asked != *port && listener(ctx, IPPROTO_TCP, to, asked) == LOOPBACK ? asked : 0;
}

/*
 * Refuses a destination that no rule leads to. Where the container has nothing but a loopback,
 * that is what its own namespace would say.
 */
static __always_inline int unreachable(enum denial what, const struct addr *to)
{
	if (!container()->loopback)
		return deny(what);
	if ((to->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return deny_as(what, 22 /* EINVAL: a link-local address without its link */);
	return deny_as(what, 101 /* ENETUNREACH */);
}

/* Names a peer as the programs know it. */
static __always_inline void name_peer(struct bpf_sock_addr *ctx, struct addr *peer, __u16 *port)
{
	struct location *l;

	if (!container()->loopback)
		return;
	if (loopback(peer)) {
		l = location_of(PRIVATE_AS, ctx->protocol, *port);
	} else {
		l = location_of(SERVED_AS, ctx->protocol, *port);
		if (!l || !same(&l->addr, peer))
			return;
		*peer = localhost(is_mapped(peer));
	}
	if (l)
		*port = l->port;
}

#endif
