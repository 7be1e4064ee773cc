/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The hosts that a UDP socket hears, in sets (heard.h). Who includes this has `same`. */
#ifndef TSUGIKI_HEARDSET_H
#define TSUGIKI_HEARDSET_H

#include "policy.h"

/* A place that is in the table, as the verifier of 6.1 sees too: the mask must come last,
 * and in 64 bits. */
static __always_inline __u64 heard_place(__u64 at)
{
	__asm__ volatile("" : "+r"(at));
	return at & (HEARD_MAX - 1);
}

/* The first of the places where an address may be. */
static __always_inline __u32 heard_set(const struct addr *a)
{
	__u32 hash = a->word[0] ^ a->word[1] ^ a->word[2] ^ a->word[3];

	hash ^= hash >> 16;
	hash ^= hash >> 8;
	return hash * HEARD_WAYS % HEARD_MAX;
}

/* Whether a socket hears an address; port 0 is those of which a rule lets it send to. A
 * function of its own, as number_for is. */
__noinline __u64 is_heard(const struct heard *h, const struct addr *a, __u32 port)
{
	__u32 set, i;

	if (!h || !a)
		return 0;
	set = heard_set(a);
	for (i = 0; i < HEARD_WAYS; i++) {
		const struct heard_peer *p = &h->peer[heard_place(set + i)];

		if (same(&p->addr, a) && p->port == port)
			return 1;
	}
	return 0;
}

/* Adds an address that is not there. */
static __always_inline void note_heard(struct heard *h, const struct addr *a, __u16 port)
{
	h->peer[heard_place(heard_set(a) + h->next++ % HEARD_WAYS)] =
		(struct heard_peer){.addr = *a, .port = port};
}

#endif
