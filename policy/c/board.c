// SPDX-License-Identifier: Apache-2.0
/* This code uses no system call and no C library: it is part of programs, and fuzzed. */
#include "board.h"

#include <string.h>

#include "rules.h"

#define BOARD_INET  2
#define BOARD_INET6 10

/* struct sockaddr_in; and the shortest struct sockaddr_in6 that the kernel takes,
 * RFC 2133's. */
#define BOARD_IN_MIN  16
#define BOARD_IN6_MIN 24

static const uint8_t board_mapped[12] = {[10] = 0xff, [11] = 0xff};

static const uint8_t board_zeros[15];

/* Whether the kernel takes an address for a loopback address. It takes a wildcard for one, too. */
static bool board_is_loopback(const uint8_t addr[16])
{
	if (memcmp(addr, board_mapped, sizeof(board_mapped)) == 0)
		return addr[12] == 127 || memcmp(&addr[12], board_zeros, 4) == 0;
	return memcmp(addr, board_zeros, sizeof(board_zeros)) == 0 && addr[15] <= 1;
}

static enum board_where board_find(const struct board *b, size_t size, const uint8_t addr[16],
				   uint16_t port, uint64_t *netns)
{
	struct rules_endpoint ep = {0};
	uint32_t before = atomic_load_explicit(&b->sequence, memory_order_acquire);
	int64_t found =
		rules_find((const char *)b + BOARD_RULES, size - BOARD_RULES, addr, port, &ep);

	atomic_thread_fence(memory_order_acquire);
	if (before % 2 || before != atomic_load_explicit(&b->sequence, memory_order_relaxed) ||
	    found == RULES_BROKEN)
		return BOARD_BUSY;
	if (found == RULES_OWN)
		return BOARD_OWN;
	*netns = ep.netns;
	return ep.netns == 0 ? BOARD_OTHER : BOARD_HOST;
}

/* Reads a sockaddr of at least BOARD_IN_MIN bytes. Returns its family; 0 if it is not a complete IP
 * sockaddr. An IPv4 address is mapped. */
static uint16_t board_read(const uint8_t *bytes, size_t length, uint8_t addr[16])
{
	uint16_t family;

	memcpy(&family, bytes, sizeof(family));
	if (family == BOARD_INET) {
		memcpy(addr, board_mapped, sizeof(board_mapped));
		memcpy(&addr[12], &bytes[4], 4);
	} else if (family == BOARD_INET6 && length >= BOARD_IN6_MIN) {
		memcpy(addr, &bytes[8], 16);
	} else {
		return 0;
	}
	return family;
}

bool board_bind_is_free(const struct board *b, const uint8_t *bytes, size_t length)
{
	uint8_t addr[16];

	if (!(b->untrapped & BOARD_UNTRAPPED_PORT_0) || length < BOARD_IN_MIN || bytes[2] != 0 ||
	    bytes[3] != 0)
		return false;
	return board_read(bytes, length, addr) != 0 && board_is_loopback(addr);
}

struct board_address board_look_up(const struct board *b, size_t size, const uint8_t *bytes,
				   size_t length)
{
	struct board_address a = {.where = BOARD_NO_IP};
	uint8_t addr[16];
	uint16_t family;

	if (length < BOARD_IN_MIN)
		return a;
	family = board_read(bytes, length, addr);
	if (family == 0)
		return a;
	a.is4 = family == BOARD_INET;
	a.loopback = board_is_loopback(addr);
	a.port = (uint16_t)(bytes[2] << 8 | bytes[3]);
	a.where = board_find(b, size, addr, a.port, &a.netns);
	return a;
}

static bool board_all_are_on_host(const struct board *b, bool is4)
{
	return (b->host_first & (is4 ? BOARD_HOST_FIRST_4 : BOARD_HOST_FIRST_6)) != 0 &&
	       !atomic_load(&b->own_sockets) && !atomic_load(&b->bound_clients);
}

/* Whether a port of the container's loopback may lead to a server on the host. */
static bool board_may_serve(const struct board *b, uint16_t port)
{
	uint32_t served;

	if (!atomic_load(&b->services))
		return false;
	served = atomic_load(&b->served);
	return served == 0 || served & BOARD_SERVED(port);
}

struct board_place board_place_for(const struct board *b, const struct board_address *to)
{
	struct board_place p = {.verdict = BOARD_LOOK};

	switch (to->where) {
	case BOARD_HOST:
		if (to->netns == b->host && board_all_are_on_host(b, to->is4))
			p.verdict = BOARD_IN_PLACE;
		p.netns = to->netns;
		p.unbound = atomic_load(&b->bound_clients);
		return p;
	case BOARD_OWN:
		/* A server of the container's loopback may be on the host. And for an AF_GRAFT
		 * socket, the rules do not decide alone. */
		if (atomic_load(&b->afgraft_sockets) ||
		    (to->loopback && board_may_serve(b, to->port)))
			p.verdict = BOARD_ASK;
		p.netns = b->own;
		return p;
	default:
		p.verdict = BOARD_ASK;
		return p;
	}
}
