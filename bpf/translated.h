/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * IPv6 sockets that are in the place of a program's IPv4 ones. A note at the socket says that it is
 * one: the supervisor's, or the gate's by an option (OPTIONS_TRANSLATED).
 *
 * Options. One of SOL_IP would succeed there and do nothing: its counterpart of SOL_IPV6 is set
 * instead, and the program reads back what it has set.
 *
 * Connects. The preloaded library connects such a socket to the mapped form of the program's
 * address, ::ffff:198.18.x.y of a virtual one (virtual.h). connect6 leads it to the IPv6 host,
 * which the rules judge, and getpeername6 names the virtual address. A socket without the note
 * reaches no virtual address.
 */
#ifndef TSUGIKI_TRANSLATED_H
#define TSUGIKI_TRANSLATED_H

#include "addr.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct held);
} held_by_socket SEC(".maps");

/* The counterpart of an option of SOL_IP, and its place in struct held; or 0. */
static __always_inline int counterpart(int name, __u32 *place)
{
	switch (name) {
	case 1: /* IP_TOS */
		*place = 0;
		return 67; /* IPV6_TCLASS */
	case 2:		   /* IP_TTL */
		*place = 1;
		return 16; /* IPV6_UNICAST_HOPS */
	case 10:	   /* IP_MTU_DISCOVER */
		*place = 2;
		return 23; /* IPV6_MTU_DISCOVER */
	case 11:	   /* IP_RECVERR */
		*place = 3;
		return 25; /* IPV6_RECVERR */
	}
	return 0;
}

static __always_inline struct held *translated(struct bpf_sock *sk)
{
	struct held *held = sk ? bpf_sk_storage_get(&held_by_socket, sk, 0, 0) : NULL;

	return held && held->translated ? held : NULL;
}

/* Whether an option makes the socket a translated one. Then the kernel clears V6ONLY. Sockets that
 * are in use already do not become one. */
static __always_inline bool becomes_translated(struct bpf_sockopt *ctx)
{
	__u8 *value, *end;
	struct bpf_sock *sk;
	struct held *held;

	/* As in set_translated. */
	__asm__ volatile("" : "+r"(ctx));
	value = ctx->optval;
	end = ctx->optval_end;
	sk = ctx->sk;
	if (ctx->level != 41 /* SOL_IPV6 */ || ctx->optname != OPTIONS_TRANSLATED ||
	    !container()->pool || !sk || value + 4 > end)
		return false;
	if (sk->family != AF_INET6 || sk->protocol != IPPROTO_TCP ||
	    sk->state != 7 /* TCP_CLOSE */ || sk->src_port)
		return false;
	held = bpf_sk_storage_get(&held_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!held)
		return false;
	held->translated = 1;
	held->container = container()->id;
	*(__u32 *)value = 0;
	ctx->optlen = 4;
	ctx->optname = 26; /* IPV6_V6ONLY */
	return true;
}

/* Whether an option that is about to be set is one of these. Then its counterpart is. */
static __always_inline bool set_translated(struct bpf_sockopt *ctx)
{
	__u8 *value, *end;
	struct held *held;
	__u32 place = 0, set;
	int name;

	/* Or the compiler shares a pointer into the context with others, which may not be. */
	__asm__ volatile("" : "+r"(ctx));
	value = ctx->optval;
	end = ctx->optval_end;
	if (ctx->level || value + 4 > end)
		return false;
	name = counterpart(ctx->optname, &place);
	held = name ? translated(ctx->sk) : NULL;
	if (!held)
		return false;
	set = ctx->optlen >= 4 ? *(__u32 *)value : *value;
	*(__u32 *)value = set;
	ctx->optlen = 4;
	ctx->level = 41; /* SOL_IPV6 */
	ctx->optname = name;
	/* 0 stands for what the program has not set: -1 is the default again. */
	held->option[place & 3] = set < 256 ? set + 1 : 0;
	return true;
}

/* Whether an option would tell the peer's IPv6 address: SO_PEERNAME, which few programs know. The
 * virtual address is the supervisor's to say (getpeername). */
static __always_inline bool hides(struct bpf_sockopt *ctx)
{
	return ctx->level == 1 /* SOL_SOCKET */ && ctx->optname == 28 && translated(ctx->sk);
}

/* Shows a program an option of a socket that is translated. It may want no more than an octet. */
static __always_inline void show_translated(struct bpf_sockopt *ctx)
{
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	struct held *held = translated(ctx->sk);
	__u32 place = 0, shown;

	if (!held)
		return;
	if (ctx->level == 1 /* SOL_SOCKET */ && ctx->optname == 39 /* SO_DOMAIN */)
		shown = AF_INET;
	else if (!ctx->level && counterpart(ctx->optname, &place) && held->option[place & 3])
		shown = held->option[place & 3] - 1;
	else
		return;
	if (value + 4 <= end)
		*(__u32 *)value = shown;
	else if (value + 1 <= end)
		*value = shown;
}

#endif
