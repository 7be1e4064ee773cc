/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where a destination lies: by a rule, by the name of an endpoint, on the container's own
 * loopback, or at who has asked a server.
 */
#ifndef TSUGIKI_REACH_H
#define TSUGIKI_REACH_H

#include "addr.h"

/*
 * The endpoint of a number that was found just now. It is looked up anew where it is: what
 * was known of the container before may be from before the number was given.
 */
static __always_inline struct endpoint *endpoint_of(__u64 number)
{
	struct number key = {.bits = KEY_BITS(key), .number = number};

	if (number < ENDPOINTS_AT_HAND)
		return &container()->endpoint[number];
	key.container = container()->id;
	return bpf_map_lookup_elem(&endpoint_by_number, &key);
}

/* The number of the endpoint for a port of a protocol, or ENDPOINTS_MAX. A function of its own, as
 * special_words is: inline, each turn of the loop would be followed to the end. */
__noinline __u64 number_for(const struct egress *e, __u32 protocol, __u32 port)
{
	__u32 i;

	if (!e)
		return ENDPOINTS_MAX;
	for (i = 0; i < EGRESS_RANGES_MAX && i < e->count; i++)
		if (port >= e->range[i].first && port <= e->range[i].last &&
		    (!e->range[i].protocol || e->range[i].protocol == protocol))
			return e->range[i].endpoint;
	return ENDPOINTS_MAX;
}

/* The number of the endpoint through which this destination is reached, or ENDPOINTS_MAX. It is
 * not cut to 32 bits, which the verifier would follow twice. */
static __always_inline __u64 endpoint_number(__u32 protocol, const struct addr *to, __u16 port)
{
	struct prefix key = {.bits = KEY_BITS(key), .container = container()->id, .addr = *to};
	struct egress *e = bpf_map_lookup_elem(&egress_by_prefix, &key);

	if (!e || (!e->special && special(to)))
		return ENDPOINTS_MAX;
	return number_for(e, protocol, port);
}

/* The endpoint, or NULL. */
static __always_inline struct endpoint *endpoint_for(__u32 protocol, const struct addr *to,
						     __u16 port)
{
	__u64 number = endpoint_number(protocol, to, port);

	return number < ENDPOINTS_MAX ? endpoint_of(number) : NULL;
}

/* The same, if it is in the namespace of the socket that the program was called for. */
static __always_inline struct endpoint *egress(struct bpf_sock_addr *ctx, const struct addr *to,
					       __u16 port)
{
	struct endpoint *ep = endpoint_for(ctx->protocol, to, port);

	return ep && ep->netns == bpf_get_netns_cookie(ctx) ? ep : NULL;
}

/* Whether the endpoint that a socket was bound to by its name leads from an address
 * of its own to a destination. */
static __always_inline bool named_reaches(const struct binding *b, const struct addr *to,
					  const struct addr *from)
{
	struct number name = {
		.bits = KEY_BITS(name), .container = container()->id, .number = b->named};

	if (!b->named || !bpf_map_lookup_elem(&name_by_number, &name))
		return false; /* there is none, or it has been deleted */
	if (!fits(&b->host, from, to))
		return false;
	/* An IPv6 endpoint speaks for no IPv4 address. */
	return is_mapped(to) == is_mapped(&b->host) && !special(to);
}

/*
 * Whether a socket that the program has bound to an endpoint by its name may
 * reach a destination through it: any but those that only a rule can cover. It
 * must still have the endpoint's address, and its port unless it has none any
 * more: the kernel takes one from a socket that it gave one to when that is
 * disconnected.
 */
static __always_inline bool by_name(struct bpf_sock_addr *ctx, const struct addr *to,
				    const struct addr *from)
{
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (!sk)
		return false;
	b = binding_of(sk);
	if (!b || b->netns != bpf_get_netns_cookie(ctx))
		return false;
	if (sk->src_port && sk->src_port != b->host_port)
		return false;
	return named_reaches(b, to, from);
}

/* The socket that hears what is sent to an address: not a connected one, unless it is
 * connected to `from`. The caller releases it. */
static __always_inline struct bpf_sock *socket_for(void *ctx, __u8 protocol,
						   const struct addr *from, __u16 from_port,
						   const struct addr *at, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = sizeof(tuple.ipv6);

	if (at->word[2] == bpf_htonl(0xffff)) {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = from->word[3];
		tuple.ipv4.sport = bpf_htons(from_port);
		tuple.ipv4.daddr = at->word[3];
		tuple.ipv4.dport = bpf_htons(port);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, from, sizeof(tuple.ipv6.saddr));
		tuple.ipv6.sport = bpf_htons(from_port);
		__builtin_memcpy(tuple.ipv6.daddr, at, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.dport = bpf_htons(port);
	}
	if (protocol == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

/* The host's loopback address of a family. */
static __always_inline struct addr localhost(bool is4)
{
	return is4 ? mapped(bpf_htonl(0x7f000001)) : (struct addr){{0, 0, 0, bpf_htonl(1)}};
}

/* The same, for what the loopback sends from a port of nobody's. */
static __always_inline struct bpf_sock *socket_at(void *ctx, __u8 protocol, const struct addr *at,
						  __u16 port)
{
	struct addr from = localhost(is_mapped(at));

	return socket_for(ctx, protocol, &from, 0, at, port);
}

/* Whether the socket that is served at an address is this container's. */
static __always_inline bool ours(void *ctx, __u8 protocol, const struct addr *at, __u16 port)
{
	struct bpf_sock *sk = socket_at(ctx, protocol, at, port);
	struct binding *b;

	if (!sk)
		return false;
	b = binding_of(sk);
	bpf_sk_release(sk);
	return b && b->ingress;
}

/* The row of a port of the container's loopback, if that is on the host; else of its own. */
static __always_inline struct location *location_of(enum service_kind kind, __u8 protocol,
						    __u16 port)
{
	const struct container *c = container();
	struct service key = {.bits = KEY_BITS(key),
			      .owner = c->id,
			      .port = port,
			      .protocol = protocol,
			      .kind = kind};

	if (!c->loopback)
		return bpf_map_lookup_elem(&location_by_service, &key);
	key.owner = c->loopback;
	return bpf_map_lookup_elem(&location_by_loopback, &key);
}

/*
 * Whether a destination is one of the container's own servers on the host. If
 * so, TO and PORT become its address there; port 0, where nobody listens, if it
 * has gone. TO is the loopback address afterwards if it was the wildcard, which
 * the kernel takes for that.
 */
static __always_inline bool own_server(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	__u8 protocol = ctx->protocol;
	struct location *l;

	if (wildcard(to))
		to->word[3] = is_mapped(to) ? bpf_htonl(0x7f000001) : bpf_htonl(1);
	if (!loopback(to))
		return false;
	l = location_of(is_mapped(to) ? SERVED4 : SERVED6, protocol, *port);
	if (!l)
		return false;
	if (!wildcard(&l->addr))
		*to = l->addr;
	*port = l->port;
	if (!ours(ctx, protocol, to, l->port))
		*port = 0;
	return true;
}

static __always_inline bool known_peer(void *ctx, const struct addr *to, __u16 port)
{
	struct peer key = {.socket = bpf_get_socket_cookie(ctx), .addr = *to, .port = port};

	return find(&peer_tables, &key);
}

static __always_inline void redirect6(struct bpf_sock_addr *ctx, const struct addr *to, __u16 port)
{
	ctx->user_ip6[0] = to->word[0];
	ctx->user_ip6[1] = to->word[1];
	ctx->user_ip6[2] = to->word[2];
	ctx->user_ip6[3] = to->word[3];
	ctx->user_port = bpf_htons(port);
}

static __always_inline struct addr user6(struct bpf_sock_addr *ctx)
{
	return (struct addr){
		{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
}

static __always_inline struct addr source6(struct bpf_sock *sk)
{
	return (struct addr){{sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]}};
}

#endif
