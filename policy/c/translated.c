// SPDX-License-Identifier: Apache-2.0
/* This code uses no system call and no C library: it is part of programs. */
#include "translated.h"

#include <string.h>

#define TRANSLATED_AF_INET  2
#define TRANSLATED_AF_INET6 10

#define TRANSLATED_EINVAL	22
#define TRANSLATED_EAFNOSUPPORT 97
#define TRANSLATED_ENETUNREACH	101

#define TRANSLATED_DNS_PORT 53

/* Of a pool of 15 bits. */
#define TRANSLATED_POOL_MASK 0xfffe0000

static const uint8_t translated_mapped[12] = {[10] = 0xff, [11] = 0xff};

/* The container's address, 192.0.0.2 (RFC 7335). */
static const uint8_t translated_own[4] = {192, 0, 0, 2};

static bool translated_is_dns(const struct translated_in *to)
{
	const uint8_t *b = (const uint8_t *)&to->port;

	return b[0] == 0 && b[1] == TRANSLATED_DNS_PORT;
}

struct translated_in6 translated_to6(const struct translated_in *to)
{
	struct translated_in6 name = {.family = TRANSLATED_AF_INET6, .port = to->port};

	memcpy(name.addr, translated_mapped, sizeof(translated_mapped));
	memcpy(&name.addr[sizeof(translated_mapped)], to->addr, sizeof(to->addr));
	return name;
}

bool translated_is_near(const struct translated_in *to)
{
	static const uint8_t any[4];

	return to->addr[0] == 127 || translated_is_dns(to) ||
	       memcmp(to->addr, any, sizeof(any)) == 0;
}

bool translated_is_virtual(const struct board *b, const struct translated_in *to)
{
	const uint8_t *a = to->addr;
	uint32_t addr = (uint32_t)a[0] << 24 | (uint32_t)a[1] << 16 | (uint32_t)a[2] << 8 | a[3];

	return b->virtual_pool != 0 && !translated_is_dns(to) &&
	       (addr & TRANSLATED_POOL_MASK) == b->virtual_pool;
}

bool translated_asks(int error, const struct translated_in *to)
{
	switch (error) {
	case TRANSLATED_ASK_SUPERVISOR:
	case TRANSLATED_EINVAL:
	case TRANSLATED_EAFNOSUPPORT: /* it is no IPv6 socket */
		return true;
	case TRANSLATED_ENETUNREACH:
		/* A socket that has had an IPv6 source has no way to the loopback any more. */
		return translated_is_near(to);
	}
	return false;
}

bool translated_to4(const struct translated_in6 *name, bool peer, struct translated_in *to)
{
	static const uint8_t none[16];
	bool is_mapped = memcmp(name->addr, translated_mapped, sizeof(translated_mapped)) == 0;

	if (peer && !is_mapped)
		return false;
	*to = (struct translated_in){.family = TRANSLATED_AF_INET, .port = name->port};
	if (is_mapped)
		memcpy(to->addr, &name->addr[sizeof(translated_mapped)], sizeof(to->addr));
	else if (memcmp(name->addr, none, sizeof(none)) != 0)
		memcpy(to->addr, translated_own, sizeof(to->addr));
	return true;
}

struct translated_in translated_nobody(uint16_t port)
{
	return (struct translated_in){
		.family = TRANSLATED_AF_INET, .port = port, .addr = {192, 0, 0, 7}};
}
