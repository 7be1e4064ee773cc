// SPDX-License-Identifier: Apache-2.0
#include "rules.h"

#include <stdbool.h>
#include <string.h>

/* Whether the array of COUNT entries at OFFSET fits. Moves OFFSET to the end of the array. */
static bool rules_fits(uint64_t *offset, uint32_t count, size_t entry, size_t size)
{
	*offset += (uint64_t)count * entry;
	return *offset <= size;
}

static bool rules_contains(const struct rules_prefix *p, const uint8_t addr[16])
{
	unsigned int bytes = p->bits / 8, rest = p->bits % 8;

	if (memcmp(p->addr, addr, bytes) != 0)
		return false;
	return rest == 0 || ((p->addr[bytes] ^ addr[bytes]) >> (8 - rest)) == 0;
}

int64_t rules_find(const void *image, size_t size, const uint8_t addr[16], uint16_t port,
		   struct rules_endpoint *found)
{
	const struct rules_prefix *prefixes;
	const struct rules_endpoint *endpoints;
	const struct rules_range *ranges;
	uint64_t offset = sizeof(struct rules);
	struct rules r;

	if (size < sizeof(r))
		return RULES_BROKEN;
	memcpy(&r, image, sizeof(r));
	if (r.magic != RULES_MAGIC || r.version != RULES_VERSION)
		return RULES_BROKEN;
	prefixes = (const void *)((const char *)image + offset);
	if (!rules_fits(&offset, r.prefixes, sizeof(*prefixes), size))
		return RULES_BROKEN;
	endpoints = (const void *)((const char *)image + offset);
	if (!rules_fits(&offset, r.endpoints, sizeof(*endpoints), size))
		return RULES_BROKEN;
	ranges = (const void *)((const char *)image + offset);
	if (!rules_fits(&offset, r.ranges, sizeof(*ranges), size))
		return RULES_BROKEN;
	for (uint32_t i = 0; i < r.prefixes; i++) {
		struct rules_prefix p = prefixes[i];

		if (p.bits > 128 || p.first > r.ranges || p.count > r.ranges - p.first)
			return RULES_BROKEN;
		if (!rules_contains(&p, addr))
			continue;
		for (uint32_t n = 0; n < p.count; n++) {
			struct rules_range range = ranges[p.first + n];

			if (port < range.first || range.last < port)
				continue;
			if (range.endpoint >= r.endpoints)
				return RULES_BROKEN;
			*found = endpoints[range.endpoint];
			return range.endpoint;
		}
		return RULES_OWN;
	}
	return RULES_OWN;
}
