/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Virtual IPv4 addresses of IPv6 hosts (docs/design/translate.md), and their aliases. A virtual
 * address 198.18.0.0/15 is one that programs see. A host may have no route to it. So datagrams go
 * to its alias, the same address of 127.18.0.0/15, by the host's loopback device, where
 * translate.bpf.c makes IPv6 of them.
 */
#ifndef TSUGIKI_VIRTUAL_H
#define TSUGIKI_VIRTUAL_H

#include "policy.h"

#define VIRTUAL_NET   198
#define ALIAS_NET     127
#define VIRTUAL_HOSTS 131072 /* 2^17 */
/* Whether an IPv4 address is one of 18.0.0/15 behind the first octet. */
static __always_inline bool in_pool(__u32 ip4, __u32 net)
{
	return (bpf_ntohl(ip4) & 0xfffe0000) == (net << 24 | 18 << 16);
}

/* The same address with another first octet. */
static __always_inline __u32 in_net(__u32 ip4, __u32 net)
{
	return bpf_htonl((bpf_ntohl(ip4) & 0x00ffffff) | net << 24);
}

#endif
