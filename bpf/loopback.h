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
 *			CAP_NET_RAW or CAP_NET_ADMIN, no container's packet keeps one that
 *			its program has set, and no packet that comes from elsewhere has it. A SYN
 *			or a datagram without it does not reach a port that no rule has bound
 *
 * A socket is known to be of the loopback by loopback_by_socket: one that was bound, that
 * listens, or that has sent there.
 *
 * The socket also remembers where its last datagram led. The next one with the same destination
 * goes there too, without another decision, unless the rules have changed or the socket was bound
 * since. The packets' program, which looks at the receiver anyway, has the socket forget it if the
 * receiver is not known by the port that the program named.
 */
#ifndef TSUGIKI_LOOPBACK_H
#define TSUGIKI_LOOPBACK_H

#include "reach.h"

/* Notes that a socket is of the container's loopback, if that is on the host; also if it asks a
 * server there that is at an address of the host. */
static __always_inline void join_loopback(struct bpf_sock *sk, bool asks)
{
	__u32 id = container()->loopback;
	struct member *m;

	if (!id)
		return;
	m = bpf_sk_storage_get(&loopback_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!m)
		return;
	m->loopback = id;
	m->led = 0;
	if (asks)
		m->asks = ASKS;
}

static __always_inline struct member *member(struct bpf_sock *sk)
{
	struct member *m = bpf_sk_storage_get(&loopback_by_socket, sk, 0, 0);

	return m && m->loopback == container()->loopback ? m : NULL;
}

static __always_inline bool is_of_loopback(struct bpf_sock *sk)
{
	return member(sk);
}

static __always_inline bool asks(struct bpf_sock *sk)
{
	struct member *m = member(sk);

	return m && m->asks == ASKS;
}

/* Whether a connected UDP socket was led to an address of the host's, where no rule may lead. */
static __always_inline bool was_led_to_host(struct bpf_sock *sk)
{
	struct member *m = member(sk);

	return m && m->asks;
}

/* A destination on the loopback as the program names it: of a loopback address, the last word says
 * which one it is. All of it with the host's port is one word, which is read and written whole. */
static __always_inline __u64 led_from(const struct addr *to, __u16 port)
{
	return (__u64)to->word[3] << 16 | port;
}

/* The host's port to which a datagram with this destination was led last, or 0. */
static __always_inline __u16 was_led(struct bpf_sock *sk, const struct addr *to, __u16 port)
{
	struct member *m = member(sk);
	__u64 led;

	if (!m || m->rules != container()->rules || !loopback(to))
		return 0;
	led = *(volatile __u64 *)&m->led;
	return led >> 16 == led_from(to, port) ? led : 0;
}

/* Remembers where a datagram is led, as the rules of that number have it. A server that a rule has
 * bound may answer a peer there, which is looked up each time. */
static __always_inline void note_led(struct bpf_sock *sk, const struct addr *to, __u16 port,
				     __u16 host_port, __u32 rules)
{
	struct member *m = member(sk);

	if (!m || !loopback(to) || serves(sk))
		return;
	m->rules = rules;
	m->led = led_from(to, port) << 16 | host_port;
}

/* Whether a destination is on the container's own loopback on the host, if no rule names it. */
static __always_inline bool on_loopback(const struct addr *to)
{
	return container()->loopback && (loopback(to) || wildcard(to));
}

/* The port that programs know a socket of the loopback by. */
static __always_inline __u16 known_port(struct bpf_sock *sk)
{
	struct binding *b = bpf_sk_storage_get(&binding_by_socket, sk, 0, 0);

	return b && b->view_port && has_port_of(sk, b) ? b->view_port : sk->src_port;
}

/* Whose socket hears what is sent to an address. */
enum owner { NOBODY, LOOPBACK, SOMEBODY };

/* Where a socket sends from on the loopback. */
static __always_inline struct addr source_of(struct bpf_sock *sk, const struct addr *to)
{
	/* Volatile, or the compiler computes a pointer into the socket, which may not be. */
	__u32 ip4 = *(volatile __u32 *)&sk->src_ip4;
	struct addr from = source6(sk);

	if (sk->family == AF_INET)
		from = mapped(ip4);
	return wildcard(&from) ? localhost(is_mapped(to)) : from;
}

/* The same for what programs know by a port. Rows may be of sockets that are gone, and their
 * ports by now another's, also of the loopback. */
static __always_inline enum owner listener(struct bpf_sock_addr *ctx, __u8 protocol,
					   const struct addr *at, __u16 port, __u16 known)
{
	struct addr from = source_of(ctx->sk, at);
	/* Of UDP it may be one that is connected to who asks. */
	__u16 from_port = protocol == IPPROTO_TCP ? 0 : ctx->sk->src_port;
	struct bpf_sock *sk = socket_for(ctx, protocol, &from, from_port, at, port);
	enum owner owner = SOMEBODY;

	if (!sk)
		return NOBODY;
	if (is_of_loopback(sk) && known_port(sk) == known)
		owner = LOOPBACK;
	bpf_sk_release(sk);
	return owner;
}

/* The address that a socket has, or the wildcard. */
static __always_inline struct addr own_addr(struct bpf_sock *sk)
{
	__u32 ip4 = *(volatile __u32 *)&sk->src_ip4; /* as in source_of */

	return sk->family == AF_INET ? mapped(ip4) : source6(sk);
}

/*
 * Whether who is at a port of the socket's own address, which is no loopback address, has connected
 * to it on the loopback: the kernel has given that one this address as its source, since it had a
 * port before. PORT becomes the one that programs know.
 */
static __always_inline bool asked_by(struct bpf_sock_addr *ctx, __u8 protocol, struct bpf_sock *sk,
				     const struct addr *at, __u16 *port)
{
	struct bpf_sock *other;
	struct binding *b;
	bool asked;

	if (loopback(at) || wildcard(at))
		return false;
	other = socket_for(ctx, protocol, at, sk->src_port, at, *port);
	if (!other)
		return false;
	b = bpf_sk_storage_get(&binding_by_socket, other, 0, 0);
	asked = asks(other) && other->dst_port && (!b || wildcard(&b->view));
	if (asked)
		*port = known_port(other);
	bpf_sk_release(other);
	return asked;
}

/*
 * Where on the host a destination on the loopback is: a server that a rule has bound, a
 * private port, or the same port.
 */
static __always_inline enum owner translate(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	__u8 protocol = ctx->protocol;
	struct bpf_sock *sk = *(struct bpf_sock *volatile *)&ctx->sk; /* as in has_port */
	__u16 known = *port, host;
	struct location *l;
	struct addr at;

	/* The kernel takes the wildcard for the loopback. */
	if (wildcard(to))
		*to = localhost(is_mapped(to) || ctx->family == AF_INET);
	l = location_of(is_mapped(to) ? SERVED4 : SERVED6, protocol, known);
	if (l) {
		at = wildcard(&l->addr) ? *to : l->addr;
		if (listener(ctx, protocol, &at, l->port, known) == LOOPBACK) {
			*to = at;
			*port = l->port;
			return LOOPBACK;
		}
	}
	l = location_of(PRIVATE, protocol, known);
	if (l && listener(ctx, protocol, to, l->port, known) == LOOPBACK) {
		*port = l->port;
		return LOOPBACK;
	}
	if (protocol == IPPROTO_TCP)
		return NOBODY;
	at = own_addr(sk);
	if (l)
		*port = l->port;
	host = *port;
	if (asked_by(ctx, protocol, sk, &at, port)) {
		*to = at;
		*port = host;
		return LOOPBACK;
	}
	*port = known;
	return NOBODY;
}

/*
 * Whether a UDP socket at an address of the host's, where no rule has bound it, connects to who has
 * asked a server there on the loopback: a server that learnt this address from a datagram
 * (IP_PKTINFO) answers so. Who has asked is told this address, and will answer from it too, which
 * is the kernel's choice for a destination that is its own. So the socket connects to that one.
 */
static __always_inline bool answers_from_host(struct bpf_sock_addr *ctx, struct addr *to,
					      __u16 port)
{
	struct bpf_sock *sk = *(struct bpf_sock *volatile *)&ctx->sk; /* as in has_port */
	struct bpf_sock *other;
	struct member *m;
	struct addr at;
	bool does;

	if (ctx->protocol != IPPROTO_UDP || !loopback(to))
		return false;
	at = own_addr(sk);
	if (loopback(&at) || wildcard(&at) || serves(sk))
		return false;
	m = member(sk);
	if (!m)
		return false;
	other = socket_for(ctx, IPPROTO_UDP, &at, sk->src_port, &at, port);
	if (!other)
		return false;
	does = asks(other) && !other->dst_port;
	bpf_sk_release(other);
	if (does) {
		m->asks = ANSWERS;
		*to = at;
	}
	return does;
}

/* Leads a connect to where its destination on the loopback is. */
static __always_inline void connect_loopback(struct bpf_sock_addr *ctx, struct addr *to,
					     __u16 *port)
{
	enum owner owner = translate(ctx, to, port);

	if (ctx->protocol != IPPROTO_TCP || !loopback(to))
		join_loopback(ctx->sk, !loopback(to));
	if (answers_from_host(ctx, to, *port) || owner == LOOPBACK)
		return;
	/* A socket may connect to itself. */
	if (ctx->sk->src_port && *port == known_port(ctx->sk)) {
		*port = ctx->sk->src_port;
		return;
	}
	owner = listener(ctx, ctx->protocol, to, *port, *port);
	if (owner == SOMEBODY || (owner == NOBODY && ctx->protocol == IPPROTO_TCP))
		*port = 0;
}

/* Whether the socket that has a port of the host's, if it is there yet, is known by another. */
static __always_inline bool has_port(struct bpf_sock_addr *ctx, __u8 protocol,
				     const struct addr *at, __u16 port, __u16 known)
{
	struct bpf_sock *sk = ctx->sk, *other;
	struct addr from;
	bool has;

	if (!sk)
		return false;
	from = source_of(sk, at);
	other = socket_for(ctx, protocol, &from, sk->src_port, at, port);
	if (!other)
		return true;
	has = known_port(other) == known;
	bpf_sk_release(other);
	return has;
}

/* Names a peer as the programs know it. */
static __always_inline void name_peer(struct bpf_sock_addr *ctx, struct addr *peer, __u16 *port)
{
	__u8 protocol = *(volatile __u32 *)&ctx->protocol; /* as in has_port */
	struct bpf_sock *sk = ctx->sk;
	struct location *l;
	struct addr at;

	if (!container()->loopback)
		return;
	if (loopback(peer)) {
		l = location_of(PRIVATE_AS, protocol, *port);
		if (l && has_port(ctx, protocol, peer, *port, l->port))
			*port = l->port;
		return;
	}
	if (!sk)
		return;
	at = own_addr(sk);
	if (same(&at, peer) && asked_by(ctx, protocol, sk, &at, port)) {
		*peer = localhost(is_mapped(peer));
		return;
	}
	if (!asks(sk))
		return;
	l = location_of(is_mapped(peer) ? SERVED4_AS : SERVED6_AS, protocol, *port);
	if (!l || !same(&l->addr, peer) || !has_port(ctx, protocol, peer, *port, l->port))
		return;
	*port = l->port;
	*peer = localhost(is_mapped(peer));
}

/* On its loopback a program sees loopback addresses on both ends. */
static __always_inline int connect_loopback4(struct bpf_sock_addr *ctx, struct addr *to, __u16 port)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = bpf_htonl(0x7f000001)};

	if (!ctx->sk)
		return deny(DENIED_CONNECT);
	connect_loopback(ctx, to, &port);
	if (!loopback(to) && !ctx->sk->src_port)
		bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from));
	ctx->user_ip4 = to->word[3];
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

static __always_inline int connect_loopback6(struct bpf_sock_addr *ctx, struct addr *to, __u16 port)
{
	struct sockaddr_in6 from = {.sin6_family = AF_INET6};
	struct addr source;

	if (!ctx->sk)
		return deny(DENIED_CONNECT);
	connect_loopback(ctx, to, &port);
	if (!loopback(to) && !ctx->sk->src_port) {
		source = localhost(is_mapped(to));
		__builtin_memcpy(&from.sin6_addr, &source, sizeof(from.sin6_addr));
		bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from));
	}
	redirect6(ctx, to, port);
	return ALLOW;
}

/*
 * Refuses a destination that no rule leads to. Where the container has nothing but a loopback,
 * that is what its own namespace would say.
 */
static __always_inline int unreachable(const struct addr *to)
{
	if (!container()->loopback)
		return deny(DENIED_CONNECT);
	if ((to->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return deny_as(DENIED_CONNECT,
			       22 /* EINVAL: a link-local address without its link */);
	return deny_as(DENIED_CONNECT, 101 /* ENETUNREACH */);
}

#endif
