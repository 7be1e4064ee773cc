/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Socket options that a host socket has in name only.
 *
 * Theory of operation. Programs set these options as a matter of course, and end if they
 * cannot. On a host socket the kernel must not know of them:
 *
 *	SO_REUSEADDR, SO_REUSEPORT	of UDP: the kernel could give the socket the port of a
 *		host's service that has set it too, and then the service's datagrams
 *	SO_BROADCAST	a rule for a prefix would cover the broadcasts of the host's links
 *	IP_FREEBIND, IPV6_FREEBIND	with a control message, any source address
 *
 * So setsockopt succeeds, getsockopt says what was set, and the kernel keeps its default.
 * A UDP socket that the supervisor has let bind by an ingress rule, or to a private port,
 * shares its port as the program wants, and a rule that names 255.255.255.255 lets programs
 * broadcast. A private port is shared by SO_REUSEPORT, whichever of both options the program
 * has set: SO_REUSEADDR would let any process of the host take the port, which the kernel
 * then prefers. SO_REUSEPORT lets those of the same user.
 */
#ifndef TSUGIKI_HELD_H
#define TSUGIKI_HELD_H

#include "reach.h"
#include "translated.h"

#define HELD_REUSEADDR 1
#define HELD_REUSEPORT 2
#define HELD_BROADCAST 4
#define HELD_FREEBIND  8

/* The option's bit, or 0 for one that is not held. */
static __always_inline __u32 held_bit(int level, int name)
{
	if (level == 1 /* SOL_SOCKET */) {
		switch (name) {
		case 2:
			return HELD_REUSEADDR;
		case 15:
			return HELD_REUSEPORT;
		case 6:
			return HELD_BROADCAST;
		}
	}
	if ((level == 0 /* SOL_IP */ && name == 15) || (level == 41 /* SOL_IPV6 */ && name == 78))
		return HELD_FREEBIND;
	return 0;
}

/* Whether a rule names the broadcast address. */
static __always_inline bool broadcasts(void)
{
	struct prefix key = {
		.bits = KEY_BITS(key), .container = container()->id, .addr = mapped(0xffffffff)};
	struct egress *e = bpf_map_lookup_elem(&egress_by_prefix, &key);

	return e && e->special && e->count;
}

/* Whether the kernel must not know of an option of this socket. */
static __always_inline bool is_held(struct bpf_sock *sk, __u32 bit)
{
	struct binding *b;

	if (bit == HELD_FREEBIND)
		return true;
	if (sk->protocol != IPPROTO_UDP)
		return false;
	if (bit == HELD_BROADCAST)
		return !broadcasts();
	b = binding_of(sk);
	return !b || !(b->ingress || b->private);
}

/* Whether a socket is of UDP, and has a private port. */
static __always_inline bool is_private(struct bpf_sock *sk)
{
	struct binding *b = sk->protocol == IPPROTO_UDP ? binding_of(sk) : NULL;

	return b && b->private;
}

/* Notes what a program sets. The kernel hears of it too, unless it must not. */
static __always_inline int hold(struct bpf_sockopt *ctx, __u32 bit)
{
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	struct bpf_sock *sk = ctx->sk;
	struct held *held;
	bool on;

	if (!sk)
		return ALLOW;
	if (value + 4 <= end)
		on = *(__u32 *)value;
	else if (ctx->level != 1 && value + 1 <= end)
		on = *value;
	else
		return ALLOW; /* the kernel says what is wrong with it */
	held = bpf_sk_storage_get(&held_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!held)
		return DENY;
	held->known |= bit;
	if (on)
		held->on |= bit;
	else
		held->on &= ~bit;
	if (is_held(sk, bit))
		ctx->optlen = -1;
	if (bit == HELD_REUSEADDR && is_private(sk)) {
		held->known |= HELD_REUSEPORT;
		if (held->on & HELD_REUSEPORT)
			ctx->optlen = -1; /* it is shared anyway */
		ctx->optname = 15;	  /* SO_REUSEPORT */
	}
	return ALLOW;
}

SEC("cgroup/getsockopt")
int getsockopt(struct bpf_sockopt *ctx)
{
	__u32 bit = held_bit(ctx->level, ctx->optname);
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	struct bpf_sock *sk = ctx->sk;
	struct held *held;

	/* The kernel need not see more of a value than it gave. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	if (!ctx->retval) {
		if (hides(ctx))
			return DENY;
		show_translated(ctx);
	}
	if (!bit || !sk || ctx->retval || value + 4 > end)
		return ALLOW;
	held = bpf_sk_storage_get(&held_by_socket, sk, 0, 0);
	if (held && held->known & bit)
		*(__u32 *)value = (held->on & bit) != 0;
	return ALLOW;
}

#endif
