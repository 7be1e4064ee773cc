/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A container's egress rules as an image in memory, which package policy writes
 * (snapshot.go) and C programs read: where a destination lies.
 *
 * The image is a header and three arrays, in the machine's byte order, without
 * pointers. It is made by ourselves and sealed; rules_check nevertheless proves
 * every index once, so that rules_find need not.
 */
#ifndef TSUGIKI_RULES_H
#define TSUGIKI_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RULES_MAGIC   0x6b747372u /* "rstk" */
#define RULES_VERSION 1

struct rules {
	uint32_t magic;
	uint32_t version;
	uint32_t prefixes;  /* struct rules_prefix, longest first */
	uint32_t endpoints; /* struct rules_endpoint */
	uint32_t ranges;    /* struct rules_range */
	uint32_t zero;
	/* the arrays follow in this order */
};

struct rules_prefix {
	uint8_t addr[16]; /* IPv4 as ::ffff:a.b.c.d */
	uint32_t bits;	  /* 0..128 */
	uint32_t first;	  /* of its ranges */
	uint32_t count;
	uint32_t zero;
};

struct rules_range {
	uint16_t first;
	uint16_t last;
	uint32_t endpoint;
};

struct rules_endpoint {
	uint64_t netns; /* SO_NETNS_COOKIE; 0: not an IP endpoint */
};

_Static_assert(sizeof(struct rules) == 24, "rules has no padding");
_Static_assert(sizeof(struct rules_prefix) == 32, "prefix has no padding");
_Static_assert(sizeof(struct rules_range) == 8, "range has no padding");

/* Whether SIZE bytes at IMAGE are rules in which every index is in range. */
bool rules_check(const void *image, size_t size);

/*
 * The endpoint through which ADDR and PORT (host byte order) are reached, or
 * NULL if they lie in the container's own namespace.
 */
const struct rules_endpoint *rules_find(const struct rules *r, const uint8_t addr[16],
					uint16_t port);

/* The endpoints themselves, r->endpoints of them. */
const struct rules_endpoint *rules_endpoints(const struct rules *r);

#endif
