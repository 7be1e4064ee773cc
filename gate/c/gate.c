// SPDX-License-Identifier: Apache-2.0
/* The board of a gate. */
#define _GNU_SOURCE
#include "gate.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* From linux/fcntl.h (5.1), which the C library may not include. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

struct gate gate;

static bool gate_cookie(uint64_t *cookie)
{
	socklen_t length = sizeof(*cookie);
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool ok = s >= 0 && getsockopt(s, SOL_SOCKET, SO_NETNS_COOKIE, cookie, &length) == 0;

	if (s >= 0)
		close(s);
	return ok;
}

bool gate_make_board(struct gate *g)
{
	const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	int file = memfd_create("board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint64_t host = 0;
	struct board *b = MAP_FAILED;

	if (file >= 0 && ftruncate(file, BOARD_SIZE) == 0 && gate_cookie(&host))
		b = mmap(NULL, BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	g->board_file = file;
	g->board = b == MAP_FAILED ? NULL : b;
	if (g->board == NULL || fcntl(file, F_ADD_SEALS, seals) != 0)
		return false;
	b->magic = BOARD_MAGIC;
	b->version = BOARD_VERSION;
	b->own = g->cookie;
	b->host = host;
	b->host_first = g->host_first;
	b->datagrams = g->datagrams;
	b->untrapped = g->untrapped;
	b->virtual_pool = g->virtual_pool;
	return true;
}
