/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sockets that begin to listen, and connections that are established. */
#ifndef TSUGIKI_LISTEN_H
#define TSUGIKI_LISTEN_H

#include "loopback.h"
#include "trace.h"

/* Has connections to a listener's address of IPv6 led to it, if it has one: see steer.bpf.c. */
static __always_inline void steer_to(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct second *second = bpf_sk_storage_get(&second_by_socket, sk, 0, 0);
	struct steered key = {};
	__u32 slot;

	if (!second || second->container != container()->id || !serves_here(sk))
		return;
	key.netns = second->netns;
	key.addr = second->addr;
	key.port = second->port;
	for (slot = 0; slot < STEER_SLOTS; slot++) {
		key.slot = slot;
		if (!bpf_sock_hash_update(ctx, &steered_listeners, &key, BPF_NOEXIST))
			return;
	}
}

/*
 * There is no way to refuse a listen(2), nor to end a socket, from here. Bound to
 * the loopback device it is out of reach of all but the host's own processes. A
 * connection that a listener took before it was bound so is cut off likewise:
 * its packets do not find it any more.
 */
SEC("sockops")
int guard_listen(struct bpf_sock_ops *ctx)
{
	static const char loopback[] = "lo";
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		counts()->connections[CONNECTION_OUT]++;
		return 1;
	}
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		counts()->connections[CONNECTION_IN]++;
	else if (ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return 1;
	if (!sk)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		steer_to(ctx, sk);
	if (container()->loopback) {
		/* Whom it hears, the packets' program sees to. */
		if (ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
			count_decision(DECIDED_LISTEN);
			join_loopback(sk, false);
		}
		return 1;
	}
	b = binding_of(sk);
	if (b && b->ingress && has_port_of(sk, b))
		return 1;
	bpf_setsockopt(ctx, 1 /* SOL_SOCKET */, 25 /* SO_BINDTODEVICE */, (void *)loopback,
		       sizeof(loopback));
	return 1;
}

#endif
