/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A container's egress rules as an image in memory. Package policy writes the image (snapshot.go),
 * and C programs read from it where a destination lies.
 *
 * The image is a header and three arrays, in the machine's byte order, without pointers. It may
 * change while it is read (see board.h), so every index is checked when it is used.
 */
#ifndef TSUGIKI_RULES_H
#define TSUGIKI_RULES_H

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
	uint32_t endpoint; /* or RULES_ASK */
};

/* The endpoint of a range that is for one protocol: readers of the image do not know the protocol
 * of a socket. */
#define RULES_ASK 0xffffffffu

struct rules_endpoint {
	uint64_t netns; /* SO_NETNS_COOKIE; 0: not an IP endpoint */
};

_Static_assert(sizeof(struct rules) == 24, "rules has no padding");
_Static_assert(sizeof(struct rules_prefix) == 32, "prefix has no padding");
_Static_assert(sizeof(struct rules_range) == 8, "range has no padding");

/*
 * Finds the endpoint through which ADDR and PORT (host byte order) are reached, in the SIZE bytes
 * at IMAGE. Returns the endpoint's index; RULES_OWN if the destination lies in the container's own
 * namespace; RULES_BROKEN if the image makes no sense, or says RULES_ASK.
 */
int64_t rules_find(const void *image, size_t size, const uint8_t addr[16], uint16_t port,
		   struct rules_endpoint *found);

#define RULES_OWN    (-1)
#define RULES_BROKEN (-2)

#endif
