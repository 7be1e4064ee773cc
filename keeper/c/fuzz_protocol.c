// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer target: no bytes make keeper_parse() touch memory that is not its
 * own, and whatever it accepts is within what the keeper relies on.
 */
#include "protocol.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_check(const struct keeper_request *request, unsigned int fds)
{
	switch (request->op) {
	case KEEPER_SOCKETS:
		if (request->count < 1 || request->count > KEEPER_BATCH_MAX || fds != 0)
			abort();
		break;
	case KEEPER_EPOLL_ADD:
	case KEEPER_EPOLL_DEL:
		if (request->number < 0 || fds != 2)
			abort();
		break;
	default:
		abort();
	}
}

/* The first byte is the number of descriptors, the rest is the message. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct keeper_request request;
	unsigned int fds;

	if (size == 0)
		return 0;
	fds = data[0] % (KEEPER_FDS_MAX + 1);
	if (keeper_parse(data + 1, size - 1, fds, &request) == 0) {
		if (size - 1 != sizeof(request) || memcmp(&request, data + 1, sizeof(request)) != 0)
			abort();
		fuzz_check(&request, fds);
	}
	return 0;
}
