/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is noted with a UDP socket: whom it hears, and where it has tried to connect to. Why,
 * packets.h says. */
#ifndef TSUGIKI_HEARD_H
#define TSUGIKI_HEARD_H

#include "reach.h"

#include "heardset.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct heard);
} heard_by_socket SEC(".maps");

/*
 * Lets a client's socket hear a host that it is about to send to; or one port of it,
 * if that is not 0. Where there is no memory for it, no answer is heard.
 */
static __always_inline void hear(struct bpf_sock *sk, const struct addr *a, __u16 port)
{
	struct heard *h;

	if (sk->dst_port || serves(sk))
		return;
	h = bpf_sk_storage_get(&heard_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!h || is_heard(h, a, port))
		return;
	note_heard(h, a, port);
}

/* UDP sockets that had a port before they connected, and so a source of the kernel's choice; and
 * whether their last datagram had the source that a rule wants. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} kept_by_socket SEC(".maps");

/* Where UDP sockets have tried to connect to, by IPv4; all zero: nowhere, or they have
 * begun a datagram for there since. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct addr);
} tried_by_socket SEC(".maps");

/* Lets a socket connect, and notes where to. */
static __always_inline int tries(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct addr *tried;

	if (ctx->protocol != IPPROTO_UDP || !ctx->sk || !is_mapped(to))
		return ALLOW;
	tried = bpf_sk_storage_get(&tried_by_socket, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!tried)
		return deny(DENIED_CONNECT);
	*tried = *to;
	return ALLOW;
}

static __always_inline bool tried(struct bpf_sock *sk, const struct addr *to)
{
	struct addr *at = bpf_sk_storage_get(&tried_by_socket, sk, 0, 0);

	return at && same(at, to);
}

/* Notes that a datagram begins, rather than goes on. */
static __always_inline void begins(struct bpf_sock *sk, const struct addr *to)
{
	struct addr *at = bpf_sk_storage_get(&tried_by_socket, sk, 0, 0);

	if (at && same(at, to))
		*at = (struct addr){};
}

#endif
