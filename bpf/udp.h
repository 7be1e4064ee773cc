/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * UDP of programs that know IPv4 only, on an IPv6-only network (docs/design/translate.md).
 *
 * Theory of operation. The program's socket is one of AF_INET on the host, as for its loopback.
 * What it sends to a virtual address goes to the alias of that (virtual.h), by the host's loopback
 * device. There translate.bpf.c makes IPv6 of it, and of what comes back IPv4 from the alias.
 *
 *	connect, sendmsg	judge the IPv6 address behind a virtual one by the rules. The
 *				way leads to the alias. A program that names an alias gets
 *				ENETUNREACH, and so does an IPv6 socket
 *	getpeername, recvmsg	name the virtual address
 *	getsockname		a socket that is connected to one has the container's address
 *	packets that leave	for an alias are judged again, each of them. They need somebody
 *				who translates: else a service of the host's would get them
 *	packets that arrive	from an alias need the loopback's id as their priority. A client
 *				hears hosts that it has sent to, a published server hears all
 *
 * Somebody translates as long as the socket of the container's DNS proxy is there: it ends before
 * the programs of translate.bpf.c, when its process does.
 */
#ifndef TSUGIKI_UDP_H
#define TSUGIKI_UDP_H

#include "heard.h"
#include "loopback.h"
#include "nat64.h"
#include "virtual.h"

#define RESOLVER_PORT 53
/* The container's IPv4 address, 192.0.0.2 (RFC 7335). */
#define OWN_ADDRESS 0xc0000002

/* Its IPv6 address, 100::1 (agent/container/own.go). */
static __always_inline struct addr own_address6(void)
{
	struct addr a = {{bpf_htonl(0x01000000), 0, 0, bpf_htonl(1)}};

	return a;
}

static __always_inline bool is_virtual(const struct addr *a)
{
	__u32 pool = container()->pool;

	return pool && is_mapped(a) && in_pool(a->word[3], pool);
}

static __always_inline bool is_alias(const struct addr *a)
{
	__u32 pool = container()->pool;

	return pool && is_mapped(a) && in_pool(a->word[3], aliases_of(pool));
}

/* Whether a rule has published a UDP server at an IPv6 address. */
static __always_inline bool is_published(struct bpf_sock *sk)
{
	struct binding *b = binding_of(sk);

	return b && b->published;
}

/* Whether a socket may send to a host: by a rule, or because the host has asked it. */
static __always_inline bool may_reach(void *ctx, struct bpf_sock *sk, const struct addr *alias,
				      __u16 port)
{
	struct virtual_host *host = host_of(alias);
	struct addr to;

	if (!host || !host->device)
		return false;
	to = host->addr;
	if (is_published(sk) && known_peer(ctx, &to, port))
		return true;
	return !host->peer && endpoint_for(IPPROTO_UDP, &to, port);
}

/* A destination that was judged, with the number of the rules by which it was: an address in the
 * pool has 17 bits. All of it is one word, which is read and written whole. */
static __always_inline __u64 reached(const struct addr *alias, __u16 port)
{
	return (__u64)container()->rules << 33 |
	       (__u64)(bpf_ntohl(alias->word[3]) & ~POOL_MASK) << 16 | port;
}

/* Whether a socket remembers that it may reach a host. */
static __always_inline bool remembers(struct bpf_sock *sk, __u64 destination)
{
	struct member *m = member(sk);

	return m && *(volatile __u64 *)&m->reached == destination;
}

/*
 * The same as may_reach. A socket remembers the last host that a rule let it reach: datagrams are
 * judged by each change of the rules, of what names have opened, and of who is behind a virtual
 * address, all of which change the number of the rules.
 */
static __always_inline bool reaches(void *ctx, struct bpf_sock *sk, const struct addr *alias,
				    __u16 port)
{
	__u64 now = reached(alias, port); /* before the judgement, which a change follows */
	struct virtual_host *host;
	struct member *m;

	if (remembers(sk, now))
		return true;
	if (!may_reach(ctx, sk, alias, port))
		return false;
	host = host_of(alias);
	m = member(sk);
	/* Those that the programs have chosen, they also give to others. */
	if (m && host && !host->peer && !host->heard && !is_published(sk))
		m->reached = now;
	return true;
}

/* The same of a datagram that leaves. If its socket is connected to the alias, it must still be
 * that of the host which the socket has connected to. */
static __always_inline bool may_leave_for(void *ctx, struct bpf_sock *sk, const struct addr *alias,
					  __u16 port)
{
	if (!reaches(ctx, sk, alias, port))
		return false;
	/* Volatile, or the compiler computes a pointer into the socket, which may not be. */
	if (*(volatile __u32 *)&sk->dst_ip4 != alias->word[3] || sk->dst_port != bpf_htons(port))
		return true;
	return is_meant(sk, alias);
}

/* Whether a call is one about a virtual address or an alias. Then TO becomes the alias, or VERDICT
 * says that there is no way. */
static __always_inline bool leads_to_host(struct bpf_sock_addr *ctx, struct addr *to, __u16 port,
					  bool connects, int *verdict)
{
	struct bpf_sock *sk = *(struct bpf_sock *volatile *)&ctx->sk; /* as in has_port */
	bool alias = is_alias(to);
	struct virtual_host *host;

	if (ctx->protocol != IPPROTO_UDP || !sk)
		return false;
	if (!alias && !is_virtual(to) && (ctx->family != AF_INET || !leads_behind(to, port)))
		return false;
	*verdict = DENY;
	to->word[3] = in_net(to->word[3], aliases_of(container()->pool));
	if (alias || ctx->family != AF_INET || !reaches(ctx, sk, to, port))
		return true;
	host = host_of(to);
	if (connects && (!host || !means(sk, host)))
		return true;
	join_loopback(sk, false);
	hear(sk, to, 0);
	*verdict = ALLOW;
	return true;
}

/* Names a host by its virtual address; one behind the NAT64 that was not answered for a name by its
 * IPv4 address. */
static __always_inline bool name_host(struct addr *peer)
{
	struct virtual_host *host;
	__u32 behind = 0;

	if (!is_alias(peer))
		return false;
	host = host_of(peer);
	if (host && host->heard)
		behind = extract(&host->addr);
	peer->word[3] = behind ? behind : in_net(peer->word[3], container()->pool);
	return true;
}

/* Whether a socket is connected to a virtual address. */
static __always_inline bool is_with_host(struct bpf_sock *sk)
{
	/* Volatile, or the compiler computes a pointer into the socket, which may not be. */
	struct addr peer = mapped(*(volatile __u32 *)&sk->dst_ip4);

	return sk->protocol == IPPROTO_UDP && sk->dst_port && is_alias(&peer);
}

/* Whether the container's DNS proxy is there. */
static __always_inline bool somebody_translates(struct __sk_buff *skb)
{
	struct location *l = location_of(PRIVATE, IPPROTO_UDP, RESOLVER_PORT);
	struct addr at = localhost(true);
	struct bpf_sock *sk;
	bool is;

	if (!l)
		return false;
	sk = socket_at(skb, IPPROTO_UDP, &at, l->port);
	if (!sk)
		return false;
	is = is_of_loopback(sk) && known_port(sk) == RESOLVER_PORT;
	bpf_sk_release(sk);
	return is;
}

/* Whether a datagram from an alias may reach a socket. */
static __always_inline bool hears_host(struct bpf_sock *sk, const struct addr *alias, __u16 port)
{
	struct virtual_host *host;
	struct heard *h;
	struct addr from;

	if (is_published(sk) || remembers(sk, reached(alias, port)))
		return true;
	if (sk->dst_port)
		return is_meant(sk, alias);
	h = bpf_sk_storage_get(&heard_by_socket, sk, 0, 0);
	host = host_of(alias);
	if (!h || !host || host->peer || !is_heard(h, alias, 0))
		return false;
	from = host->addr;
	return endpoint_for(IPPROTO_UDP, &from, port);
}

#endif
