/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Datagrams from a host socket to the container's own loopback.
 *
 * Theory of operation. An unconnected UDP socket that was created on the host first may
 * send to a server on the container's loopback, which is in another namespace.
 * The datagram goes to the container's relay (package relay) instead, by the
 * host's loopback. What the relay has to know travels in the addresses:
 *
 *	to 127.0.0.K:P	becomes, from SECRET4:port to 127.K.P:RELAY4
 *	to [::1]:P	becomes, from [100::SECRET:P]:port to [::1]:RELAY6
 *
 * where P is 16 bits of an address, and port the sender's own. 100::/64 is
 * nobody's (RFC 6666). The secrets are this container's: by them the relay knows
 * that a datagram came past here, and from nobody else on the host. (A program
 * that names another device in IPV6_PKTINFO can send its own to the wire, where
 * nobody takes ::1.) A socket that sent so is marked, for good, and where it can
 * be answered is remembered by its port.
 *
 * The relay answers to the address that the sender is to see, in the same form,
 * 127.K.P or 100::SECRET:P, and the sender's port. Its own sockets are in this
 * cgroup: sendmsg makes that the source, and looks up the destination. If no
 * socket of the container has that port any more, the answer is refused, so that
 * it does not reach whoever has it now.
 *
 * recvmsg makes the source that which the program has sent to.
 */
#ifndef TSUGIKI_RELAY_H
#define TSUGIKI_RELAY_H

#include "reach.h"

/* Of the container whose programs have sent by it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} relayed_sockets SEC(".maps");

/* Whether this is one of the relay's own sockets, PORT being theirs: 0 until all
 * is set up. */
static __always_inline bool is_relay(struct bpf_sock *sk, __u16 port)
{
	struct binding *b;

	if (sk->src_port != port)
		return false;
	b = binding_of(sk);
	return b && b->relay;
}

/*
 * Notes where a sender can be answered. Where there is no room its datagram goes all
 * the same: the relay, which knows who is gone, drops it and makes room.
 */
static __always_inline bool note_sender(struct bpf_sock *sk, const struct addr *at, __u8 is4)
{
	struct sender key = {.bits = KEY_BITS(key), .port = sk->src_port, .is4 = is4};
	void *senders = table_of(&sender_tables);
	struct addr *known;
	__u32 *whose;

	whose = bpf_sk_storage_get(&relayed_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!whose || !senders)
		return false;
	*whose = container()->id;
	known = bpf_map_lookup_elem(senders, &key);
	if (!known || !same(known, at))
		bpf_map_update_elem(senders, &key, at, BPF_ANY);
	return true;
}

/* Whether there is a relay that a socket can send to: one that is connected
 * could not hear an answer, nor be found. */
static __always_inline bool relay_for(struct bpf_sock_addr *ctx, struct bpf_sock *sk, __u16 port)
{
	return port && !sk->dst_port && bpf_get_netns_cookie(ctx) == container()->relay_netns;
}

/* Leads a datagram to the relay, if that is where it belongs. */
static __always_inline bool relay4(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				   const struct addr *to, __u16 port)
{
	__u32 host = bpf_ntohl(to->word[3]) & 0xff;
	const struct container *c = container();
	struct addr at = mapped(sk->src_ip4);

	/* The last one, with port 65535, would be a broadcast. */
	if (to->word[3] != bpf_htonl(0x7f000000 | host) || host == 0 || host == 255)
		return false;
	if (!relay_for(ctx, sk, c->relay_port4))
		return false;
	if (wildcard(&at))
		at = mapped(bpf_htonl(0x7f000001));
	if (!note_sender(sk, &at, 1))
		return false;
	ctx->msg_src_ip4 = c->relay_from4;
	ctx->user_ip4 = bpf_htonl(0x7f000000 | host << 16 | port);
	ctx->user_port = bpf_htons(c->relay_port4);
	return true;
}

static __always_inline bool relay6(struct bpf_sock_addr *ctx, struct bpf_sock *sk,
				   const struct addr *to, __u16 port)
{
	struct addr at = {{sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]}};
	const struct container *c = container();

	if (!loopback(to) || !relay_for(ctx, sk, c->relay_port6))
		return false;
	if (wildcard(&at))
		at = *to;
	if (!note_sender(sk, &at, 0))
		return false;
	ctx->msg_src_ip6[0] = c->relay_from6.word[0];
	ctx->msg_src_ip6[1] = c->relay_from6.word[1];
	ctx->msg_src_ip6[2] = c->relay_from6.word[2];
	ctx->msg_src_ip6[3] = c->relay_from6.word[3] | bpf_htonl(port);
	redirect6(ctx, to, c->relay_port6);
	return true;
}

/* Where a sender can be answered, or NULL if it is gone. */
static __always_inline struct addr *sender_at(struct bpf_sock_addr *ctx, __u16 port, __u8 is4)
{
	struct sender key = {.bits = KEY_BITS(key), .port = port, .is4 = is4};
	struct addr *at = find(&sender_tables, &key);
	struct bpf_sock *sk;
	__u32 *whose;
	bool lives;

	if (!at)
		return NULL;
	sk = socket_at(ctx, IPPROTO_UDP, at, port);
	if (!sk)
		return NULL;
	whose = bpf_sk_storage_get(&relayed_sockets, sk, 0, 0);
	lives = whose && *whose == container()->id;
	bpf_sk_release(sk);
	return lives ? at : NULL;
}

static __always_inline int relay_answer4(struct bpf_sock_addr *ctx)
{
	struct addr *at = sender_at(ctx, bpf_ntohs(ctx->user_port), 1);

	if (!at)
		return DENY;
	ctx->msg_src_ip4 = ctx->user_ip4;
	ctx->user_ip4 = at->word[3];
	return ALLOW;
}

static __always_inline int relay_answer6(struct bpf_sock_addr *ctx)
{
	__u16 port = bpf_ntohs(ctx->user_port);
	struct addr *at = sender_at(ctx, port, 0);

	if (!at)
		return DENY;
	ctx->msg_src_ip6[0] = ctx->user_ip6[0];
	ctx->msg_src_ip6[1] = ctx->user_ip6[1];
	ctx->msg_src_ip6[2] = ctx->user_ip6[2];
	ctx->msg_src_ip6[3] = ctx->user_ip6[3];
	redirect6(ctx, at, port);
	return ALLOW;
}

/*
 * Whether a datagram came from the relay. If so, FROM and PORT become its
 * sender's on the container's loopback. Nobody else has the relay's port.
 */
static __always_inline bool relayed(struct bpf_sock_addr *ctx, struct addr *from, __u16 *port)
{
	const struct container *c = container();
	__u32 low = bpf_ntohl(from->word[3]);

	if (*port != c->relay_port4 && *port != c->relay_port6)
		return false;
	if (bpf_get_netns_cookie(ctx) != c->relay_netns)
		return false;
	if (*port == c->relay_port4 && from->word[2] == bpf_htonl(0xffff) && low >> 24 == 127)
		from->word[3] = bpf_htonl(0x7f000000 | ((low >> 16) & 0xff));
	else if (*port == c->relay_port6 && from->word[0] == c->relay_from6.word[0] &&
		 from->word[2] == c->relay_from6.word[2])
		*from = (struct addr){{0, 0, 0, bpf_htonl(1)}};
	else
		return false;
	*port = low;
	return true;
}

#endif
