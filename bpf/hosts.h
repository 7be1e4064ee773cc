/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which hosts a container speaks with by UDP, and which of its sockets hears one: for
 * translate.bpf.c. */
#ifndef TSUGIKI_HOSTS_H
#define TSUGIKI_HOSTS_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "virtual.h"

#define AF_INET	 2
#define AF_INET6 10
#define LOOPBACK 1 /* the device's number in each namespace */

/* The container's loopback, see loopback.h. */
volatile const __u32 loopback_id;
/* The container's pool, see virtual.h. */
volatile const __u32 pool;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIRTUAL_HOSTS);
	__type(key, struct virtual_addr);
	__type(value, struct virtual_host);
} host_by_virtual SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIRTUAL_HOSTS);
	__type(key, struct addr);
	__type(value, __u32); /* network order */
} virtual_by_host SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* a private port */
	__type(value, struct published);
} published_by_private SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct published);
	__type(value, __u32);
} private_by_published SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct member);
} loopback_by_socket SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct binding);
} binding_by_socket SEC(".maps");

/* Who speaks with whom, of one datagram. */
struct flow {
	struct addr host, here; /* the remote, and the address of this host */
	__u16 host_port, here_port;
	__u32 alias;
	__u16 port;  /* of the container's socket */
	__u16 known; /* the same as programs know it, in host order */
};

static __always_inline bool same(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

static __always_inline bool unspecified(const struct addr *a)
{
	return !a->word[0] && !a->word[1] && !a->word[2] && !a->word[3];
}

/* Whether a source is no single host's that could be answered: ::/32, which has the loopback and
 * mapped addresses, link-local and multicast addresses. */
static __always_inline bool special(const struct addr *a)
{
	return !a->word[0] || (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (a->word[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

static __always_inline bool is_ours(struct bpf_sock *sk)
{
	struct member *m = bpf_sk_storage_get(&loopback_by_socket, sk, 0, 0);

	return m && m->loopback == loopback_id;
}

/* The port that programs know a socket by, as in loopback.h. */
static __always_inline __u16 known_port(struct bpf_sock *sk)
{
	struct binding *b = bpf_sk_storage_get(&binding_by_socket, sk, 0, 0);

	return b && b->view_port && b->host_port == sk->src_port ? b->view_port : sk->src_port;
}

static __always_inline struct virtual_host *host_of(__u32 ip4)
{
	struct virtual_addr key = {.bits = 32, .addr = in_net(ip4, pool)};

	return bpf_map_lookup_elem(&host_by_virtual, &key);
}

/* Deletes the virtual address of a host, if that is still NAME: its name may have been asked since,
 * and given another address. */
static __always_inline void forget_name(const struct addr *host, __u32 name)
{
	__u32 *is = bpf_map_lookup_elem(&virtual_by_host, host);

	if (is && *is == name)
		bpf_map_delete_elem(&virtual_by_host, host);
}

/* The virtual address of a host, or 0. */
static __always_inline __u32 name_of(const struct addr *a)
{
	__u32 *known = bpf_map_lookup_elem(&virtual_by_host, a);
	struct virtual_host *host;
	__u32 name;

	if (!known)
		return 0;
	name = *known;
	host = host_of(name);
	if (host && same(&host->addr, a))
		return name;
	forget_name(a, name); /* another CPU has chosen the same one for another host */
	return 0;
}

/* Chooses a virtual address for a host that has none. It is 0 where all that were tried are in use.
 */
static __always_inline __u32 choose(const struct flow *f, __u32 device)
{
	struct virtual_host row = {.addr = f->host, .source = f->here, .device = device};
	struct virtual_addr key = {.bits = 32};
	struct virtual_host *there;
	__u64 now = bpf_ktime_get_ns();
	struct addr gone;
	__u32 *other;
	int i;

	row.heard = now;
	row.peer = device == LOOPBACK;
	for (i = 0; i < PEER_CHOICE; i++) {
		__u32 n = bpf_get_prandom_u32() & 0xffff;

		key.addr = bpf_htonl(pool | PEERS | n);
		there = bpf_map_lookup_elem(&host_by_virtual, &key);
		if (n == 0 || n == 0xffff || (there && now - there->heard < PEER_NS))
			continue;
		if (there) {
			gone = there->addr;
			forget_name(&gone, key.addr);
		}
		if (bpf_map_update_elem(&host_by_virtual, &key, &row, BPF_ANY))
			return 0;
		if (!bpf_map_update_elem(&virtual_by_host, &row.addr, &key.addr, BPF_NOEXIST))
			return key.addr;
		/* Another CPU has chosen one for this host; or there is no room. */
		other = bpf_map_lookup_elem(&virtual_by_host, &row.addr);
		return other ? *other : 0;
	}
	return 0;
}

/* The socket that gets a datagram on the loopback. The caller releases it. */
static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct flow *f)
{
	struct bpf_sock_tuple tuple = {};

	tuple.ipv4.saddr = f->alias;
	tuple.ipv4.sport = f->host_port;
	tuple.ipv4.daddr = bpf_htonl(0x7f000001);
	tuple.ipv4.dport = f->port;
	return bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Whether a socket of the container hears a datagram. */
static __always_inline bool hears(struct __sk_buff *skb, struct flow *f)
{
	struct bpf_sock *sk = socket_of(skb, f);
	bool ours;

	if (!sk)
		return false;
	ours = sk->family == AF_INET && is_ours(sk);
	f->known = known_port(sk);
	bpf_sk_release(sk);
	return ours;
}

/* Whether an IPv6 socket hears a datagram. */
static __always_inline bool is_anothers(struct __sk_buff *skb, const struct flow *f)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;

	__builtin_memcpy(tuple.ipv6.saddr, &f->host, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &f->here, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = f->host_port;
	tuple.ipv6.dport = f->here_port;
	sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* Finds the container's socket for a datagram, and the sender's alias. DEVICE is the one by which
 * the datagram came; 0: it is known that the container has sent there. */
static __always_inline bool find_socket(struct __sk_buff *skb, struct flow *f, __u32 device)
{
	struct published key = {.addr = f->here, .port = bpf_ntohs(f->here_port)};
	__u32 *private = bpf_map_lookup_elem(&private_by_published, &key);
	__u32 chosen = name_of(&f->host);
	struct virtual_host *host;

	f->port = private ? bpf_htons(*private) : f->here_port;
	if (!chosen && private && device && !special(&f->host))
		chosen = choose(f, device);
	if (!chosen)
		return false;
	f->alias = in_net(chosen, aliases_of(pool));
	host = host_of(chosen);
	if (!host || !same(&host->addr, &f->host) ||
	    (!private && (!same(&host->source, &f->here) || is_anothers(skb, f))))
		return false;
	/* What nobody hears may be forged: it says nothing about where the host is. */
	if (!hears(skb, f))
		return false;
	if (host->heard) {
		host->heard = bpf_ktime_get_ns();
		host->device = device ? device : host->device;
		host->peer |= device == LOOPBACK;
	}
	return true;
}

#endif
