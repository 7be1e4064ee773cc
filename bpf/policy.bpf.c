/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The security boundary of a grafted container.
 *
 * Theory of operation. A container's host sockets are made by its keeper, in
 * the keeper's cgroup, and these programs are attached to that cgroup. The
 * kernel runs them on the cgroup in which a socket was *created*, so they see
 * every use of it, whoever holds it by then: after dup, fork, SCM_RIGHTS or
 * connect(AF_UNSPEC), by raw system calls or io_uring, and with a sockaddr that
 * another thread has changed since the supervisor looked at it.
 *
 * A container's own loopback is in its own namespace, where its servers are not
 * that an ingress rule has brought here. A destination there that such a server
 * has is rewritten to where the server is, if the socket that listens there is
 * this container's indeed. Datagrams to the other servers there, from a socket
 * that has not been moved, go by the relay: see relay.h.
 *
 * connect, sendmsg: the longest matching prefix of the destination must name an
 *   endpoint of this container that lives in the socket's own namespace; the
 *   endpoint's address becomes the source.
 *   A socket that was bound to an endpoint by its name (AF_GRAFT) reaches what no
 *   rule speaks of through that one, but for special destinations.
 * bind: only what the supervisor wrote into binding_by_socket beforehand.
 * recvmsg: remembers the peers of unconnected UDP servers, for whom there is no
 *   egress rule, so that they can be answered.
 * getsockname: tells the program the name that it bound.
 * setsockopt: refuses what would lead a socket around the other hooks.
 * listen: a socket that was never bound listens on any address and a port that
 *   the kernel picks, past every bind hook. The supervisor never lets that
 *   happen; should a program get there by a race, nobody can reach it.
 *
 * A sockaddr of a family that the kernel will refuse anyway is passed on, so that
 * the program gets the kernel's errno for it.
 *
 * Oldest kernel: 5.15. What is denied is EPERM for the program.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "options.h"
#include "policy.h"

#define AF_UNSPEC 0
#define AF_INET	  2
#define AF_INET6  10

#define DENY  0
#define ALLOW 1

/*
 * What belongs to one container. The programs are loaded once for many, and find
 * theirs by the cgroup that they were called for: its storage ends with the cgroup
 * and its last socket, as their being attached does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct container);
} container_by_cgroup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct counts);
} counts_by_cgroup SEC(".maps");

#define TRIE(entries, from, to)                                                                    \
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);                                                       \
	__uint(map_flags, BPF_F_NO_PREALLOC);                                                      \
	__uint(max_entries, entries);                                                              \
	__type(key, struct from);                                                                  \
	__type(value, struct to)

/*
 * What the supervisors write is in tables that all containers share: a table of its own
 * for each took 20 KiB, most of it for rows to come. A row's key begins with the number of
 * its container, which is always looked up whole: so a container finds its own rows and no
 * others, whatever the rest of the key is. How many rows each may have, package policy sees
 * to; there is room for all of them.
 *
 * They are tries for one more reason. What a running program has found stays what it was
 * until the program ends: the kernel waits a grace period before the memory of a trie's row
 * becomes another row, which it does not for a hash table's. That other row may be another
 * container's.
 */
#define ALL(each) (CONTAINERS_MAX * (each))
#define SHARED(name, entries, from, to)                                                            \
	struct {                                                                                   \
		TRIE(entries, from, to);                                                           \
	} name SEC(".maps")

/* Twice, for those of two tables while one takes the other's place. */
SHARED(egress_by_prefix, ALL(2 * EGRESS_PREFIXES_MAX), prefix, egress);
SHARED(endpoint_by_number, ALL(ENDPOINTS_MAX), number, endpoint);
SHARED(name_by_number, ALL(NAMED_MAX), number, endpoint_name);
SHARED(location_by_service, ALL(SERVICES_MAX), service, location);

/* Of types that only tables in tables have, the compiler writes down no more than the
 * names, unless a variable has them too. */
const union {
	struct sender sender;
	struct peer peer;
} types = {};

/*
 * What the programs write themselves is in tables of each container, by its id: none can
 * fill another's.
 */
#define TABLES(name, table)                                                                        \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                          \
		__uint(max_entries, CONTAINERS_MAX);                                               \
		__type(key, __u32);                                                                \
		__array(values, struct table);                                                     \
	} name SEC(".maps")

struct address_by_sender {
	TRIE(RELAY_SENDERS_MAX, sender, addr);
};

/* Only of containers that have had a UDP server. */
struct udp_peers {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UDP_PEERS_MAX);
	__type(key, struct peer);
	__type(value, __u8);
};

TABLES(sender_tables, address_by_sender);
TABLES(peer_tables, udp_peers);

/* Inherited by accepted sockets, whose getsockname needs it too. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct binding);
} binding_by_socket SEC(".maps");

/* Not inherited: what is accepted is an ordinary socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct graft_socket);
} graft_by_socket SEC(".maps");

/* Only for those that have had an option delayed. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct graft_queue);
} queue_by_socket SEC(".maps");

static __always_inline struct container *container(void)
{
	return bpf_get_local_storage(&container_by_cgroup, 0);
}

static __always_inline void *find(void *tables, const void *key)
{
	__u32 id = container()->id;
	void *table = bpf_map_lookup_elem(tables, &id);

	return table ? bpf_map_lookup_elem(table, key) : NULL;
}

/* What the supervisor of this container has noted about a socket, or NULL. */
static __always_inline struct binding *binding_of(struct bpf_sock *sk)
{
	struct binding *b = bpf_sk_storage_get(&binding_by_socket, sk, 0, 0);

	return b && b->container == container()->id ? b : NULL;
}

static __always_inline bool serves(struct bpf_sock *sk)
{
	struct binding *b = binding_of(sk);

	return b && b->ingress;
}

static __always_inline void count_connection(enum connection direction)
{
	struct counts *counts = bpf_get_local_storage(&counts_by_cgroup, 0);

	counts->connections[direction]++;
}

static __always_inline int deny(enum denial what)
{
	struct counts *counts = bpf_get_local_storage(&counts_by_cgroup, 0);

	counts->denials[what]++;
	return DENY;
}

static __always_inline struct addr mapped(__u32 ip4)
{
	return (struct addr){{0, 0, bpf_htonl(0xffff), ip4}};
}

static __always_inline bool same(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline bool is_mapped(const struct addr *a)
{
	return !a->word[0] && !a->word[1] && a->word[2] == bpf_htonl(0xffff);
}

/* True of ::, and of ::ffff:0.0.0.0, the wildcard of a mapped address. */
static __always_inline bool wildcard(const struct addr *a)
{
	return !a->word[0] && !a->word[1] && !a->word[3] &&
	       (!a->word[2] || a->word[2] == bpf_htonl(0xffff));
}

/*
 * Whether only a rule that names a destination, or a part of these, covers it: `special`
 * of package policy. A function of its own, not a static one, is verified once, for any
 * arguments: inline, each of its ways would be followed to the end of each program.
 */
__noinline int special_words(__u32 a, __u32 b, __u32 c, __u32 d)
{
	__u32 low = bpf_ntohl(d);

	if (!a && !b && c == bpf_htonl(0xffff))
		return low >> 24 == 0 || low >> 24 == 127 || low >> 16 == 0xa9fe ||
		       low >> 28 == 0xe || low == 0xffffffff;
	if (!a && !b && !c)
		return low <= 1;
	return (a & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (a & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

static __always_inline bool special(const struct addr *a)
{
	return special_words(a->word[0], a->word[1], a->word[2], a->word[3]);
}

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

/* The number of the endpoint for a port, or ENDPOINTS_MAX. A function of its own, as
 * special_words is: inline, each turn of the loop would be followed to the end. */
__noinline __u64 number_for(const struct egress *e, __u32 port)
{
	__u32 i;

	if (!e)
		return ENDPOINTS_MAX;
	for (i = 0; i < EGRESS_RANGES_MAX && i < e->count; i++)
		if (port >= e->range[i].first && port <= e->range[i].last)
			return e->range[i].endpoint;
	return ENDPOINTS_MAX;
}

/* The endpoint through which this destination is reached, or NULL. */
static __always_inline struct endpoint *endpoint_for(const struct addr *to, __u16 port)
{
	struct prefix key = {.bits = KEY_BITS(key), .container = container()->id, .addr = *to};
	struct egress *e;
	__u64 number; /* not cut to 32 bits, which the verifier would follow twice */

	e = bpf_map_lookup_elem(&egress_by_prefix, &key);
	if (!e || (!e->special && special(to)))
		return NULL;
	number = number_for(e, port);
	return number < ENDPOINTS_MAX ? endpoint_of(number) : NULL;
}

/* The same, if it is in the namespace of the socket that the program was called for. */
static __always_inline struct endpoint *egress(void *ctx, const struct addr *to, __u16 port)
{
	struct endpoint *ep = endpoint_for(to, port);

	return ep && ep->netns == bpf_get_netns_cookie(ctx) ? ep : NULL;
}

static __always_inline bool loopback(const struct addr *a)
{
	if (a->word[0] || a->word[1])
		return false;
	if (a->word[2] == bpf_htonl(0xffff))
		return bpf_ntohl(a->word[3]) >> 24 == 127;
	return !a->word[2] && a->word[3] == bpf_htonl(1);
}

/* Whether a packet's source is an address, or, if that is the wildcard, one that the host may
 * choose: it chooses its loopback for nothing but that. A control message may name it. */
static __always_inline bool fits(const struct addr *wanted, const struct addr *from,
				 const struct addr *to)
{
	if (!wildcard(wanted))
		return same(wanted, from);
	return !loopback(from) || special(to);
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

/* The socket, not a connected one, that hears what is sent to an address. The
 * caller releases it. */
static __always_inline struct bpf_sock *socket_at(void *ctx, __u8 protocol, const struct addr *at,
						  __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = sizeof(tuple.ipv6);

	if (at->word[2] == bpf_htonl(0xffff)) {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = bpf_htonl(0x7f000001);
		tuple.ipv4.daddr = at->word[3];
		tuple.ipv4.dport = bpf_htons(port);
	} else {
		tuple.ipv6.saddr[3] = bpf_htonl(1);
		__builtin_memcpy(tuple.ipv6.daddr, at, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.dport = bpf_htons(port);
	}
	if (protocol == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
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

/*
 * Whether a destination is one of the container's own servers on the host. If
 * so, TO and PORT become its address there; port 0, where nobody listens, if it
 * has gone.
 */
static __always_inline bool own_server(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	struct service key = {.bits = KEY_BITS(key),
			      .container = container()->id,
			      .port = *port,
			      .protocol = ctx->protocol};
	struct location *l;

	if (!loopback(to))
		return false;
	key.is4 = to->word[2] == bpf_htonl(0xffff);
	l = bpf_map_lookup_elem(&location_by_service, &key);
	if (!l)
		return false;
	if (!wildcard(&l->addr))
		*to = l->addr;
	*port = l->port;
	if (!ours(ctx, key.protocol, to, l->port))
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

#include "relay.h"
#include "held.h"
#include "packets.h"

static __always_inline struct addr source6(struct bpf_sock *sk)
{
	return (struct addr){{sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]}};
}

/* A UDP server that connects to who has asked it, and keeps its own name. */
static __always_inline bool answers(struct bpf_sock_addr *ctx, const struct addr *to, __u16 port)
{
	return ctx->protocol == IPPROTO_UDP && ctx->sk && serves(ctx->sk) &&
	       known_peer(ctx, to, port);
}

/*
 * A UDP socket that stayed connected would reach whoever has the address when the
 * server has gone; one that is not connected is looked at with each datagram.
 */
static __always_inline bool connects_to_own(struct bpf_sock_addr *ctx, struct addr *to, __u16 *port)
{
	return ctx->protocol == IPPROTO_TCP && own_server(ctx, to, port);
}

static __always_inline bool by_name4(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct addr from = mapped(ctx->sk ? ctx->sk->src_ip4 : 0);

	return by_name(ctx, to, &from);
}

static __always_inline bool by_name6(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct bpf_sock *sk = ctx->sk;
	struct addr from;

	if (!sk)
		return false;
	from = source6(sk);
	return by_name(ctx, to, &from);
}

/* UDP sockets whose source is that of an endpoint they have connected through. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} lent_by_socket SEC(".maps");

/* Whether a socket's source is an endpoint's: lent at a connect, or bound for a client. */
static __always_inline bool lent(struct bpf_sock *sk, const struct addr *at)
{
	struct binding *b = binding_of(sk);

	return (b && !b->ingress && same(&b->host, at)) ||
	       bpf_sk_storage_get(&lent_by_socket, sk, 0, 0);
}

/*
 * Whether the source that a socket has is right for an endpoint: the endpoint's own, one
 * that an ingress rule or a name gave it, or, where the host chooses, what the host chose
 * for a former peer of a UDP socket. What it has besides is another endpoint's.
 */
static __always_inline bool keeps_source(struct bpf_sock *sk, const struct endpoint *ep,
					 const struct addr *at, const struct addr *to)
{
	struct binding *b = binding_of(sk);

	if (same(at, &ep->addr))
		return true;
	if (special(at)) /* it is for special destinations */
		return special(to) && wildcard(&ep->addr);
	if (b && b->ingress && same(&b->host, at))
		return true;
	return wildcard(&ep->addr) && sk->protocol == IPPROTO_UDP && !lent(sk, at);
}

/* Whether a socket that connects through an endpoint need not be given a source. */
static __always_inline bool has_source(struct bpf_sock *sk, const struct endpoint *ep,
				       const struct addr *at, const struct addr *to)
{
	if (!sk)
		return true;
	if (wildcard(at))
		return wildcard(&ep->addr) && !ep->port;
	return keeps_source(sk, ep, at, to);
}

/* Notes that an endpoint has lent its address to a socket, which TCP shows by itself: it
 * has none else once it is not connected. */
static __always_inline void lend(struct bpf_sock *sk, const struct endpoint *ep)
{
	if (!sk || sk->protocol != IPPROTO_UDP)
		return;
	if (wildcard(&ep->addr))
		bpf_sk_storage_delete(&lent_by_socket, sk);
	else
		bpf_sk_storage_get(&lent_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct sockaddr_in from = {.sin_family = AF_INET};
	struct addr at, to = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct endpoint *ep;

	if (ctx->user_family != AF_INET)
		return ALLOW;
	if (answers(ctx, &to, port))
		return tries(ctx, &to);
	ep = egress(ctx, &to, port);
	if (!ep && by_name4(ctx, &to))
		return tries(ctx, &to);
	if (!ep) {
		if (!connects_to_own(ctx, &to, &port))
			return deny(DENIED_CONNECT);
		ctx->user_ip4 = to.word[3];
		ctx->user_port = bpf_htons(port);
		return ALLOW;
	}
	at = mapped(ctx->sk ? ctx->sk->src_ip4 : 0);
	if (has_source(ctx->sk, ep, &at, &to))
		return tries(ctx, &to);
	from.sin_addr.s_addr = ep->addr.word[3];
	from.sin_port = bpf_htons(ep->port);
	if (bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from)))
		return deny(DENIED_CONNECT);
	lend(ctx->sk, ep);
	return tries(ctx, &to);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct sockaddr_in6 from = {.sin6_family = AF_INET6};
	struct addr to = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	struct endpoint *ep;
	struct addr at;

	if (ctx->user_family != AF_INET6)
		return ALLOW;
	if (answers(ctx, &to, port))
		return tries(ctx, &to);
	ep = egress(ctx, &to, port);
	if (!ep && by_name6(ctx, &to))
		return tries(ctx, &to);
	if (!ep) {
		if (!connects_to_own(ctx, &to, &port))
			return deny(DENIED_CONNECT);
		redirect6(ctx, &to, port);
		return ALLOW;
	}
	at = sk ? source6(sk) : (struct addr){};
	if (has_source(sk, ep, &at, &to))
		return tries(ctx, &to);
	__builtin_memcpy(&from.sin6_addr, &ep->addr, sizeof(from.sin6_addr));
	from.sin6_port = bpf_htons(ep->port);
	if (bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from)))
		return deny(DENIED_CONNECT);
	lend(sk, ep);
	return tries(ctx, &to);
}

static __always_inline int may_bind(struct bpf_sock_addr *ctx, const struct addr *to, __u16 port)
{
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (!sk)
		return deny(DENIED_BIND);
	b = binding_of(sk);
	if (!b || b->host_port != port || !same(&b->host, to))
		return deny(DENIED_BIND);
	return ALLOW;
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	struct addr to = mapped(ctx->user_ip4);

	/* AF_UNSPEC passes for AF_INET where the address is the wildcard. */
	if (ctx->user_family != AF_INET && (ctx->user_family != AF_UNSPEC || ctx->user_ip4))
		return ALLOW;
	return may_bind(ctx, &to, bpf_ntohs(ctx->user_port));
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	struct addr to = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};

	if (ctx->user_family != AF_INET6)
		return ALLOW;
	return may_bind(ctx, &to, bpf_ntohs(ctx->user_port));
}

/*
 * A datagram without a destination of its own, on a connected socket: the hook
 * runs because of a control message, which may name another source.
 */
static __always_inline bool to_connected_peer(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	return !ctx->user_port && sk->dst_port;
}

/*
 * Whether a datagram may leave by an endpoint, and then whether its source is the
 * endpoint's, rather than the socket's own. A socket that another endpoint has lent its
 * address could not hear the answer.
 */
static __always_inline bool leaves_by(struct bpf_sock *sk, const struct endpoint *ep,
				      const struct addr *at, const struct addr *to,
				      bool *as_its_own)
{
	*as_its_own = serves(sk) || (!wildcard(at) && keeps_source(sk, ep, at, to));
	return *as_its_own || wildcard(at) || !lent(sk, at);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct addr at, to = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	struct endpoint *ep;
	__u32 bound;
	bool own;

	if (!sk)
		return deny(DENIED_SENDMSG);
	begins(sk, &to);
	if (is_relay(sk, container()->relay_port4))
		return relay_answer4(ctx);
	/*
	 * An AF_INET6 socket that sends to a mapped address comes here too; its
	 * src_ip4 is the address of which its src_ip6 is the mapped form.
	 */
	bound = sk->src_ip4;
	if (!to_connected_peer(ctx, sk)) {
		ep = egress(ctx, &to, port);
		if (!ep && !known_peer(ctx, &to, port) && !by_name4(ctx, &to)) {
			/* The kernel takes the wildcard for the loopback. */
			if (wildcard(&to))
				to = mapped(bpf_htonl(0x7f000001));
			if (!own_server(ctx, &to, &port))
				return relay4(ctx, sk, &to, port) ? ALLOW : deny(DENIED_SENDMSG);
			hear(sk, &to, port);
			ctx->user_ip4 = to.word[3];
			ctx->user_port = bpf_htons(port);
			return ALLOW;
		}
		at = mapped(bound);
		if (ep && !leaves_by(sk, ep, &at, &to, &own))
			return deny(DENIED_SENDMSG);
		hear(sk, &to, 0);
		if (ep && !own) {
			bound = ep->addr.word[3];
			if (!wildcard(&at) && !bound)
				ctx->msg_src_ip4 = 0;
		}
	}
	if (bound)
		ctx->msg_src_ip4 = bound;
	return ALLOW;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr to = {{ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]}};
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	struct endpoint *ep;
	struct addr bound;
	bool own, stale = false;

	if (!sk)
		return deny(DENIED_SENDMSG);
	if (is_relay(sk, container()->relay_port6))
		return relay_answer6(ctx);
	bound = source6(sk);
	if (!to_connected_peer(ctx, sk)) {
		ep = egress(ctx, &to, port);
		if (!ep && !known_peer(ctx, &to, port) && !by_name6(ctx, &to)) {
			if (wildcard(&to))
				to = (struct addr){{0, 0, 0, bpf_htonl(1)}};
			if (!own_server(ctx, &to, &port))
				return relay6(ctx, sk, &to, port) ? ALLOW : deny(DENIED_SENDMSG);
			hear(sk, &to, port);
			redirect6(ctx, &to, port);
			return ALLOW;
		}
		if (ep && !leaves_by(sk, ep, &bound, &to, &own))
			return deny(DENIED_SENDMSG);
		hear(sk, &to, 0);
		if (ep && !own) {
			stale = !wildcard(&bound);
			bound = ep->addr;
		}
	}
	if (stale || !wildcard(&bound)) {
		ctx->msg_src_ip6[0] = bound.word[0];
		ctx->msg_src_ip6[1] = bound.word[1];
		ctx->msg_src_ip6[2] = bound.word[2];
		ctx->msg_src_ip6[3] = bound.word[3];
	}
	return ALLOW;
}

static __always_inline int remember(struct bpf_sock_addr *ctx, const struct addr *from)
{
	struct peer key = {.addr = *from, .port = bpf_ntohs(ctx->user_port)};
	struct bpf_sock *sk = ctx->sk;
	__u32 id = container()->id;
	__u8 seen = 1;
	void *peers;

	if (!sk || !serves(sk))
		return ALLOW;
	peers = bpf_map_lookup_elem(&peer_tables, &id);
	if (!peers)
		return ALLOW;
	key.socket = bpf_get_socket_cookie(ctx);
	if (!bpf_map_lookup_elem(peers, &key))
		bpf_map_update_elem(peers, &key, &seen, BPF_ANY);
	return ALLOW;
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
	return remember(ctx, &from);
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
	return remember(ctx, &from);
}

/*
 * The name that the program shall see, or NULL for the socket's own. A port of
 * 0 was the host's to choose. A socket that was bound to the wildcard shows,
 * once connected, the address that its peer sees.
 */
static __always_inline struct binding *view(struct bpf_sock_addr *ctx, bool *keep_addr)
{
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (!sk)
		return NULL;
	b = binding_of(sk);
	/* An accepted socket loses its name by connect(AF_UNSPEC). */
	if (!b || b->host_port != sk->src_port)
		return NULL;
	*keep_addr = wildcard(&b->view) && sk->dst_port;
	return b;
}

SEC("cgroup/getsockname4")
int getsockname4(struct bpf_sock_addr *ctx)
{
	bool keep_addr = false;
	struct binding *b = view(ctx, &keep_addr);

	if (!b)
		return ALLOW;
	if (!keep_addr)
		ctx->user_ip4 = b->view.word[3];
	if (b->view_port)
		ctx->user_port = bpf_htons(b->view_port);
	return ALLOW;
}

SEC("cgroup/getsockname6")
int getsockname6(struct bpf_sock_addr *ctx)
{
	bool keep_addr = false;
	struct binding *b = view(ctx, &keep_addr);

	if (!b)
		return ALLOW;
	if (!keep_addr) {
		ctx->user_ip6[0] = b->view.word[0];
		ctx->user_ip6[1] = b->view.word[1];
		ctx->user_ip6[2] = b->view.word[2];
		ctx->user_ip6[3] = b->view.word[3];
	}
	if (b->view_port)
		ctx->user_port = bpf_htons(b->view_port);
	return ALLOW;
}

/* Whether a socket would get back the datagrams that it has sent. */
static __always_inline bool sends_back(struct bpf_sockopt *ctx)
{
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	__u32 flags;

	if (!ctx->sk || ctx->sk->protocol != IPPROTO_UDP || value + 4 > end)
		return false;
	flags = *(__u32 *)value;
	return flags & OPTIONS_TIMESTAMPING_SENT && !(flags & OPTIONS_TIMESTAMPING_NO_DATA);
}

SEC("cgroup/setsockopt")
int setsockopt(struct bpf_sockopt *ctx)
{
	__u32 bit;

	/* The kernel need not see more of a value than the program passed. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	if (ctx->level == 0 && ctx->optname == OPTIONS_PROOF)
		return DENY;
	bit = held_bit(ctx->level, ctx->optname);
	if (bit)
		return hold(ctx, bit);
	if (options_timestamping(ctx->level, ctx->optname) && sends_back(ctx))
		return deny(DENIED_SETSOCKOPT);
	if (!options_refused(ctx->level, ctx->optname))
		return ALLOW;
	if (ctx->level == 1 && ctx->sk && is_relay(ctx->sk, container()->relay_port4))
		return ALLOW; /* it has to be bound to the loopback device */
	return deny(DENIED_SETSOCKOPT);
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
		count_connection(CONNECTION_OUT);
		return 1;
	}
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		count_connection(CONNECTION_IN);
	else if (ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return 1;
	if (!sk)
		return 1;
	b = binding_of(sk);
	if (b && b->ingress && b->host_port == sk->src_port)
		return 1;
	bpf_setsockopt(ctx, 1 /* SOL_SOCKET */, 25 /* SO_BINDTODEVICE */, (void *)loopback,
		       sizeof(loopback));
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
