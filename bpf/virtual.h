/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Virtual IPv4 addresses of IPv6 hosts (docs/design/translate.md), and their aliases. A virtual
 * address is one that programs see, of a pool, 198.18.0.0/15 mostly. A host may have no route to
 * it. So datagrams go to its alias, with 127 for the first octet, by the host's loopback device,
 * where translate.bpf.c makes IPv6 of them. A pool is given by its first address, in host order.
 */
#ifndef TSUGIKI_VIRTUAL_H
#define TSUGIKI_VIRTUAL_H

#include "policy.h"

#define VIRTUAL_HOSTS 131072 /* 2^17 */
#define POOL_MASK     0xfffe0000

/* The second half of a pool, of which the virtual addresses are that the programs choose. */
#define PEERS	    0x00010000
#define PEER_CHOICE 8			  /* tries */
#define PEER_NS	    (300ULL * 1000000000) /* 5 min, as of a NAT (RFC 4787, REQ-5) */

/* The first alias of a pool. */
static __always_inline __u32 aliases_of(__u32 pool)
{
	return (pool & 0x00ffffff) | 127 << 24;
}

static __always_inline bool in_pool(__u32 ip4, __u32 pool)
{
	return (bpf_ntohl(ip4) & POOL_MASK) == pool;
}

/* The same address of another pool. */
static __always_inline __u32 in_net(__u32 ip4, __u32 pool)
{
	return bpf_htonl((bpf_ntohl(ip4) & ~POOL_MASK) | pool);
}

#endif
