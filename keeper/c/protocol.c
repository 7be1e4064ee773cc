// SPDX-License-Identifier: Apache-2.0
/* Checks of a request, apart from the keeper so that they can be fuzzed. */
#include "protocol.h"

#include <errno.h>
#include <string.h>

/*
 * Family, type and protocol come from the program's socket(2). The kernel judges them, and the
 * program gets the kernel's errno.
 */
static int keeper_parse_sockets(const struct keeper_request *request, unsigned int fds)
{
	if (request->count < 1 || request->count > KEEPER_BATCH_MAX)
		return EPROTO;
	if (request->number || request->events || request->data || fds)
		return EPROTO;
	return 0;
}

static int keeper_parse_epoll(const struct keeper_request *request, unsigned int fds)
{
	if (request->family || request->type || request->protocol || request->count)
		return EPROTO;
	if (request->number < 0 || fds != 2)
		return EPROTO;
	if (request->op == KEEPER_EPOLL_DEL && (request->events || request->data))
		return EPROTO;
	return 0;
}

int keeper_parse(const void *bytes, size_t length, unsigned int fds, struct keeper_request *request)
{
	memset(request, 0, sizeof(*request));
	if (length != sizeof(*request))
		return EPROTO;
	memcpy(request, bytes, sizeof(*request));
	if (request->version != KEEPER_VERSION)
		return EPROTO;

	switch (request->op) {
	case KEEPER_SOCKETS:
		return keeper_parse_sockets(request, fds);
	case KEEPER_EPOLL_ADD:
	case KEEPER_EPOLL_DEL:
		return keeper_parse_epoll(request, fds);
	default:
		return EPROTO;
	}
}
