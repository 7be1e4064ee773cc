/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Addresses: IPv4 ones are mapped, ::ffff:a.b.c.d. */
#ifndef TSUGIKI_ADDR_H
#define TSUGIKI_ADDR_H

#include "tables.h"

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

#endif
