/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The names that programs see of their sockets and of their peers: getsockname, getpeername,
 * which is also whom accept tells of, and recvmsg.
 */
#ifndef TSUGIKI_NAMES_H
#define TSUGIKI_NAMES_H

#include "mapped.h"
#include "packets.h"
#include "relay.h"
#include "resolver.h"
#include "standin.h"

/* Whether a server that a rule has bound to another address is asked on the loopback, which
 * only the container's own programs can. */
static __always_inline bool speaks_on_loopback(struct bpf_sock *sk, const struct addr *from)
{
	struct binding *b = binding_of(sk);

	return container()->loopback && loopback(from) && b && !wildcard(&b->host) &&
	       !loopback(&b->host);
}

static __always_inline void remember(struct bpf_sock_addr *ctx, const struct addr *from)
{
	struct peer key = {.addr = *from, .port = bpf_ntohs(ctx->user_port)};
	struct bpf_sock *sk = ctx->sk;
	struct virtual_host *host;
	__u8 seen = 1;
	void *peers;

	if (!sk)
		return;
	if (is_published(sk) && is_alias(from)) {
		/* The alias may be another host's later. */
		host = host_of(from);
		if (!host)
			return;
		key.addr = host->addr;
	} else if (!serves(sk) || speaks_on_loopback(sk, from)) {
		return;
	}
	peers = table_of(&peer_tables);
	if (!peers)
		return;
	key.socket = bpf_get_socket_cookie(ctx);
	if (!bpf_map_lookup_elem(peers, &key))
		bpf_map_update_elem(peers, &key, &seen, BPF_ANY);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	struct addr from = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);

	if (relayed(ctx, &from, &port)) {
		/* Not to be remembered: on the host that is somebody else. */
		ctx->user_ip4 = from.word[3];
		ctx->user_port = bpf_htons(port);
		return ALLOW;
	}
	remember(ctx, &from);
	if (!name_host(&from)) {
		name_peer(ctx, &from, &port);
		name_resolver(ctx->sk, &from, port);
	}
	ctx->user_ip4 = from.word[3];
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct addr from = {
		{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	__u16 port = bpf_ntohs(ctx->user_port);

	if (relayed(ctx, &from, &port)) {
		redirect6(ctx, &from, port);
		return ALLOW;
	}
	remember(ctx, &from);
	name_peer(ctx, &from, &port);
	name_resolver(ctx->sk, &from, port);
	redirect6(ctx, &from, port);
	return ALLOW;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct addr peer = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct stand_in *s = stood_in(ctx->sk);

	if (s) {
		ctx->user_ip4 = s->peer;
		ctx->user_port = bpf_htons(s->peer_port);
		return ALLOW;
	}
	if (ctx->protocol != IPPROTO_UDP || !name_host(&peer)) {
		name_peer(ctx, &peer, &port);
		name_resolver(ctx->sk, &peer, port);
	}
	ctx->user_ip4 = peer.word[3];
	ctx->user_port = bpf_htons(port);
	return ALLOW;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct addr peer = {
		{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	__u16 port = bpf_ntohs(ctx->user_port);

	if (!name_virtual(ctx->sk, &peer)) {
		name_peer(ctx, &peer, &port);
		name_resolver(ctx->sk, &peer, port);
	}
	redirect6(ctx, &peer, port);
	return ALLOW;
}

/*
 * Whether a socket is connected to a peer on the container's own loopback. AT is the socket's
 * address.
 */
static __always_inline bool peer_is_on_loopback(struct bpf_sock_addr *ctx, const struct addr *at)
{
	__u8 protocol = *(volatile __u32 *)&ctx->protocol; /* as in has_port */
	struct bpf_sock *sk = ctx->sk;
	struct addr peer;
	__u16 port;

	if (!container()->loopback || !sk || !sk->dst_port)
		return false;
	peer = peer_of(sk);
	if (loopback(&peer)) /* or an alias of udp.h */
		return !is_with_host(sk);
	port = bpf_ntohs(sk->dst_port);
	return same(at, &peer) && (asks(sk) || asked_by(ctx, protocol, sk, at, &port));
}

/*
 * The name that the program shall see, or NULL for the socket's own. A port of 0 was the host's to
 * choose. A socket that was bound to the wildcard shows, once connected, the address that its peer
 * sees. Where the container's loopback is on the host, a connected socket that no rule has bound
 * shows the port that its peer sees too: the host's, unless the peer is on that loopback. A socket
 * that was moved to the host keeps the port that it had before.
 */
static __always_inline struct binding *view(struct bpf_sock_addr *ctx, bool peer_on_loopback,
					    bool *keep_addr)
{
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (!sk)
		return NULL;
	b = binding_of(sk);
	/* An accepted socket loses its name by connect(AF_UNSPEC). */
	if (!b || !has_port_of(sk, b))
		return NULL;
	if (container()->loopback && sk->dst_port && !b->ingress && !b->published &&
	    !peer_on_loopback && (wildcard(&b->view) || same(&b->view, &b->host)))
		return NULL;
	*keep_addr = wildcard(&b->view) && sk->dst_port;
	return b;
}

SEC("cgroup/getsockname4")
int getsockname4(struct bpf_sock_addr *ctx)
{
	struct addr at = mapped(ctx->user_ip4);
	bool keep_addr = true, peer_on_loopback = peer_is_on_loopback(ctx, &at);
	struct binding *b = view(ctx, peer_on_loopback, &keep_addr);
	struct stand_in *s = stood_in(ctx->sk);

	if (s) {
		ctx->user_ip4 = s->own;
		if (s->own_port)
			ctx->user_port = bpf_htons(s->own_port);
		return ALLOW;
	}
	if (!keep_addr)
		ctx->user_ip4 = b->view.word[3];
	else if (ctx->sk && is_with_host(ctx->sk))
		ctx->user_ip4 = bpf_htonl(OWN_ADDRESS);
	else if (ctx->sk && asks_nameserver(ctx->sk, &at))
		ctx->user_ip4 = at.word[3];
	else if (peer_on_loopback && !loopback(&at))
		ctx->user_ip4 = bpf_htonl(0x7f000001); /* which the kernel does not know */
	if (b && b->view_port)
		ctx->user_port = bpf_htons(b->view_port);
	return ALLOW;
}

SEC("cgroup/getsockname6")
int getsockname6(struct bpf_sock_addr *ctx)
{
	struct addr at = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	__u16 port = bpf_ntohs(ctx->user_port);
	bool keep_addr = true, peer_on_loopback = peer_is_on_loopback(ctx, &at);
	struct binding *b = view(ctx, peer_on_loopback, &keep_addr);

	if (!keep_addr)
		at = b->view;
	else if (ctx->sk && asks_nameserver(ctx->sk, &at))
		; /* it says the address */
	else if (peer_on_loopback && !loopback(&at))
		at = localhost(is_mapped(&at));
	redirect6(ctx, &at, b && b->view_port ? b->view_port : port);
	return ALLOW;
}

#endif
