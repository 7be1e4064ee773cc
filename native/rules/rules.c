// SPDX-License-Identifier: Apache-2.0
#include "rules.h"

#include <string.h>

static const struct rules_prefix *rules_prefixes(const struct rules *r)
{
	return (const struct rules_prefix *)(r + 1);
}

const struct rules_endpoint *rules_endpoints(const struct rules *r)
{
	return (const struct rules_endpoint *)(rules_prefixes(r) + r->prefixes);
}

static const struct rules_range *rules_ranges(const struct rules *r)
{
	return (const struct rules_range *)(rules_endpoints(r) + r->endpoints);
}

bool rules_check(const void *image, size_t size)
{
	const struct rules *r = image;
	uint64_t need = sizeof(*r);

	if (size < sizeof(*r) || r->magic != RULES_MAGIC || r->version != RULES_VERSION)
		return false;
	need += (uint64_t)r->prefixes * sizeof(struct rules_prefix);
	need += (uint64_t)r->endpoints * sizeof(struct rules_endpoint);
	need += (uint64_t)r->ranges * sizeof(struct rules_range);
	if (need != size)
		return false;
	for (uint32_t i = 0; i < r->prefixes; i++) {
		const struct rules_prefix *p = &rules_prefixes(r)[i];

		if (p->bits > 128 || p->first > r->ranges || p->count > r->ranges - p->first)
			return false;
	}
	for (uint32_t i = 0; i < r->ranges; i++)
		if (rules_ranges(r)[i].endpoint >= r->endpoints)
			return false;
	return true;
}

static bool rules_contains(const struct rules_prefix *p, const uint8_t addr[16])
{
	unsigned int bytes = p->bits / 8, rest = p->bits % 8;

	if (memcmp(p->addr, addr, bytes) != 0)
		return false;
	return rest == 0 || ((p->addr[bytes] ^ addr[bytes]) >> (8 - rest)) == 0;
}

const struct rules_endpoint *rules_find(const struct rules *r, const uint8_t addr[16],
					uint16_t port)
{
	for (uint32_t i = 0; i < r->prefixes; i++) {
		const struct rules_prefix *p = &rules_prefixes(r)[i];
		const struct rules_range *range = &rules_ranges(r)[p->first];

		if (!rules_contains(p, addr))
			continue;
		for (uint32_t n = p->count; n > 0; n--, range++)
			if (range->first <= port && port <= range->last)
				return &rules_endpoints(r)[range->endpoint];
		return NULL;
	}
	return NULL;
}
