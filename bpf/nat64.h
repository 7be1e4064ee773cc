/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * IPv4 hosts that are reached by UDP behind a NAT64 (RFC 6052).
 *
 * Theory of operation. Programs name such a host by its IPv4 address. Its datagrams need an alias
 * as those for a virtual address do (virtual.h). There are fewer aliases than IPv4 hosts. So these
 * programs choose one when a program sends to the host, of the second half of the pool, as
 * translate.bpf.c does for hosts that ask servers. It is that host's until PEER_NS after its last
 * datagram, and longer if nobody needs it.
 *
 * A socket that is connected keeps the alias. Where that has become another host's, the socket
 * neither sends nor hears any more: meant_by_socket has the host that it has connected to.
 */
#ifndef TSUGIKI_NAT64_H
#define TSUGIKI_NAT64_H

#include "reach.h"
#include "virtual.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct addr);
} meant_by_socket SEC(".maps");

/* The host behind a virtual address or its alias, or NULL. */
static __always_inline struct virtual_host *host_of(const struct addr *a)
{
	struct virtual_addr key = {.bits = KEY_BITS(key),
				   .addr = in_net(a->word[3], container()->pool)};

	return find(&host_tables, &key);
}

/* Whether an IPv4 address, in host order, is one of the Internet: Embed of package translate. A
 * function of its own, as number_for is. */
__noinline int of_internet(__u32 a)
{
	return a >> 24 != 10 && a >> 22 != 0x6440 >> 6 && a >> 20 != 0xac1 && a >> 8 != 0xc00000 &&
	       a >> 8 != 0xc00002 && a >> 16 != 0xc0a8 && a >> 17 != 0xc612 >> 1 &&
	       a >> 8 != 0xc63364 && a >> 8 != 0xcb0071;
}

/* Whether an IPv4 address, in host order, may be a single remote host's behind the NAT64. */
static __always_inline bool is_behind(__u32 ip4)
{
	struct addr a = mapped(bpf_htonl(ip4));

	return !special(&a) && ip4 >> 28 != 0xf &&
	       (!container()->nat64.internet || of_internet(ip4));
}

/* The two halves of an IPv6 address, in host order. */
static __always_inline __u64 half(const struct addr *a, int n)
{
	return (__u64)bpf_ntohl(a->word[2 * n]) << 32 | bpf_ntohl(a->word[2 * n + 1]);
}

/* The bits of an IPv4 address that are in the second half, after the octet that is 0 (RFC 6052
 * section 2.2). */
static __always_inline __u32 in_second(void)
{
	return (container()->nat64.bits - 32) & 63;
}

/* The IPv6 address of a host behind the NAT64. It returns false if there is none. */
static __always_inline bool embed(const struct addr *ip4, struct addr *to)
{
	const struct nat64 *n = &container()->nat64;
	__u32 low = bpf_ntohl(ip4->word[3]), bits = in_second();
	__u64 first = half(&n->prefix, 0), second = half(&n->prefix, 1);

	if (!n->bits || !n->device || !is_mapped(ip4) || !is_behind(low))
		return false;
	if (n->bits == 96) {
		second |= low;
	} else {
		first |= (__u64)low >> bits;
		second = (low & ((1ULL << bits) - 1)) << (56 - bits);
	}
	*to = (struct addr){{bpf_htonl(first >> 32), bpf_htonl(first), bpf_htonl(second >> 32),
			     bpf_htonl(second)}};
	return true;
}

/* The IPv4 address of a host behind the NAT64, in network order, or 0. */
static __always_inline __u32 extract(const struct addr *a)
{
	__u64 first = half(a, 0), second = half(a, 1);
	__u32 bits = in_second(), ip4;
	struct addr again, name;

	if (!container()->nat64.bits)
		return 0;
	if (container()->nat64.bits == 96)
		ip4 = second;
	else
		ip4 = first << bits | (second >> (56 - bits) & ((1ULL << bits) - 1));
	name = mapped(bpf_htonl(ip4));
	return embed(&name, &again) && same(&again, a) ? name.word[3] : 0;
}

/* Finds a free virtual address for a host, or one that has not been used for a while. */
static __always_inline __u32 free_alias(void *hosts, __u64 now)
{
	struct virtual_addr key = {.bits = 32};
	struct virtual_host *there;
	__u32 found = 0;
	int i;

	for (i = 0; i < PEER_CHOICE; i++) {
		__u32 n = bpf_get_prandom_u32() & 0xffff;

		if (n == 0 || n == 0xffff)
			continue;
		key.addr = bpf_htonl(container()->pool | PEERS | n);
		there = bpf_map_lookup_elem(hosts, &key);
		if (!there)
			return key.addr;
		if (now - there->heard >= PEER_NS)
			found = key.addr;
	}
	return found;
}

/* Deletes the virtual address of a host, if that is still NAME. */
static __always_inline void forget_name(void *virtuals, const struct addr *host, __u32 name)
{
	__u32 *is = bpf_map_lookup_elem(virtuals, host);

	if (is && *is == name)
		bpf_map_delete_elem(virtuals, host);
}

/* Chooses a virtual address for a host behind the NAT64; 0: there is none. */
static __always_inline __u32 choose_for(const struct addr *host)
{
	const struct nat64 *n = &container()->nat64;
	struct virtual_host row = {.addr = *host, .source = n->source, .device = n->device};
	void *hosts = table_of(&host_tables), *virtuals = table_of(&virtual_tables);
	struct virtual_addr key = {.bits = 32};
	struct virtual_host *there;
	struct addr gone;
	__u32 *other;

	if (!hosts || !virtuals)
		return 0;
	row.heard = bpf_ktime_get_ns();
	key.addr = free_alias(hosts, row.heard);
	if (!key.addr)
		return 0;
	there = bpf_map_lookup_elem(hosts, &key);
	if (there) {
		gone = there->addr;
		forget_name(virtuals, &gone, key.addr);
	}
	if (bpf_map_update_elem(hosts, &key, &row, BPF_ANY))
		return 0;
	if (!bpf_map_update_elem(virtuals, &row.addr, &key.addr, BPF_NOEXIST))
		return key.addr;
	other = bpf_map_lookup_elem(virtuals, &row.addr); /* another CPU's */
	return other ? *other : 0;
}

/* The virtual address of a host, or 0. */
static __always_inline __u32 name_of(const struct addr *a)
{
	__u32 *known = find(&virtual_tables, a);
	void *virtuals = table_of(&virtual_tables);
	struct virtual_host *host;
	struct addr name;

	if (!known || !virtuals)
		return 0;
	name = mapped(*known);
	host = host_of(&name);
	if (host && same(&host->addr, a))
		return name.word[3];
	/* Another CPU has chosen the same one for another host. */
	forget_name(virtuals, a, name.word[3]);
	return 0;
}

/*
 * Whether a destination is an IPv4 host behind the NAT64 to which a rule leads, and none of a rule
 * for IPv4. Then TO becomes its virtual address.
 */
static __always_inline bool leads_behind(struct addr *to, __u16 port)
{
	const struct nat64 *n = &container()->nat64;
	struct virtual_host *host;
	struct addr behind, alias;
	__u32 name;

	if (!embed(to, &behind) || endpoint_for(IPPROTO_UDP, to, port))
		return false;
	name = name_of(&behind);
	if (!name && !endpoint_for(IPPROTO_UDP, &behind, port))
		return false;
	if (!name)
		name = choose_for(&behind);
	if (!name)
		return false;
	alias = mapped(name);
	host = host_of(&alias);
	if (!host || !same(&host->addr, &behind))
		return false;
	*to = alias;
	if (host->heard) { /* the way there may be another one now */
		host->source = n->source;
		host->device = n->device;
	}
	return true;
}

/* Whether the alias to which a socket is connected is still that of the host it has connected to.
 */
static __always_inline bool is_meant(struct bpf_sock *sk, const struct addr *alias)
{
	struct addr *meant = bpf_sk_storage_get(&meant_by_socket, sk, 0, 0);
	struct virtual_host *host;

	if (!meant)
		return true;
	host = host_of(alias);
	return host && same(meant, &host->addr);
}

/* Notes to which host a socket connects. */
static __always_inline bool means(struct bpf_sock *sk, const struct virtual_host *host)
{
	struct addr *meant = bpf_sk_storage_get(&meant_by_socket, sk, 0,
						host->heard ? BPF_SK_STORAGE_GET_F_CREATE : 0);

	if (meant)
		*meant = host->addr;
	return meant || !host->heard;
}

#endif
