/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where a container's IPv4 is translated, a DNS proxy listens at port 53 of its loopback
 * (docs/design/translate.md). Its resolv.conf may name any nameserver: what a program sends to
 * port 53 of another address goes to the proxy, and the program sees that the nameserver answers.
 */
#ifndef TSUGIKI_RESOLVER_H
#define TSUGIKI_RESOLVER_H

#include "packets.h"
#include "udp.h"

/* The nameserver that a socket has asked last. Programs that ask several at once from one socket
 * take an answer of any of them. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct addr);
} nameserver_by_socket SEC(".maps");

/* Whether a call is led to the proxy. TO becomes the loopback. */
static __always_inline bool ask_resolver(struct bpf_sock_addr *ctx, struct addr *to)
{
	struct addr *asked;

	if (!container()->resolves || ctx->user_port != bpf_htons(RESOLVER_PORT) || !ctx->sk ||
	    loopback(to) || wildcard(to))
		return false;
	asked = bpf_sk_storage_get(&nameserver_by_socket, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!asked)
		return false;
	*asked = *to;
	*to = localhost(is_mapped(to));
	return true;
}

static __always_inline void ask_resolver4(struct bpf_sock_addr *ctx)
{
	struct addr to = mapped(ctx->user_ip4);

	if (ask_resolver(ctx, &to))
		ctx->user_ip4 = to.word[3];
}

static __always_inline void ask_resolver6(struct bpf_sock_addr *ctx)
{
	struct addr to = user6(ctx);

	if (ask_resolver(ctx, &to))
		redirect6(ctx, &to, RESOLVER_PORT);
}

/* Names the nameserver that a socket has asked in the place of the proxy. */
static __always_inline void name_resolver(struct bpf_sock *sk, struct addr *peer, __u16 port)
{
	struct addr *asked;

	if (!container()->resolves || port != RESOLVER_PORT || !sk || !loopback(peer))
		return;
	asked = bpf_sk_storage_get(&nameserver_by_socket, sk, 0, 0);
	if (asked && is_mapped(asked) == is_mapped(peer))
		*peer = *asked;
}

/*
 * Whether a socket is connected to the proxy in the place of another nameserver. AT, its address on
 * the loopback, becomes the container's: programs learn by connect(2) and getsockname(2) from where
 * they would reach a host, some of them by port 53 (Go), and prefer the family by it (RFC 6724
 * section 5).
 */
static __always_inline bool asks_nameserver(struct bpf_sock *sk, struct addr *at)
{
	__u8 protocol = *(volatile __u32 *)&sk->protocol; /* as in has_port */
	struct location *proxy;
	struct addr peer;

	if (!container()->resolves || !sk->dst_port ||
	    !bpf_sk_storage_get(&nameserver_by_socket, sk, 0, 0))
		return false;
	peer = peer_of(sk);
	proxy = location_of(PRIVATE, protocol, RESOLVER_PORT);
	if (!loopback(&peer) || !proxy || bpf_ntohs(sk->dst_port) != proxy->port)
		return false;
	*at = is_mapped(at) ? mapped(bpf_htonl(OWN_ADDRESS)) : own_address6();
	return true;
}

#endif
