// SPDX-License-Identifier: Apache-2.0
/*
 * The gate's decisions, without a system call. Programs control their input, so they are fuzzed.
 */
#include "decide.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "../../include/tsugiki/graft.h"
#include "../../policy/c/board.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define GATE_TYPE_MASK 0xf

bool gate_kind_of(unsigned int host_first, int family, int type, int protocol,
		  struct gate_kind *kind)
{
	const int flags = SOCK_NONBLOCK | SOCK_CLOEXEC;

	if (!(host_first & (family == AF_INET ? BOARD_HOST_FIRST_4 : BOARD_HOST_FIRST_6)))
		return false;
	if ((family != AF_INET && family != AF_INET6) || (type & ~(GATE_TYPE_MASK | flags)))
		return false;
	switch (type & GATE_TYPE_MASK) {
	case SOCK_STREAM:
		/* The kernel programs do not see all that MPTCP does. Its callers fall back to
		 * TCP. */
		if (protocol != 0 && protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP)
			return false;
		kind->protocol = IPPROTO_TCP;
		break;
	case SOCK_DGRAM:
		if (protocol != 0 && protocol != IPPROTO_UDP)
			return false;
		kind->protocol = IPPROTO_UDP;
		break;
	default:
		return false;
	}
	kind->family = family;
	kind->type = type & GATE_TYPE_MASK;
	kind->nonblock = type & SOCK_NONBLOCK;
	kind->close_on_exec = type & SOCK_CLOEXEC;
	return true;
}

/* The requests of linux/sockios.h and linux/wireless.h, except those about the socket itself
 * (intercept/filter/ioctl.go). */
bool gate_ioctl_is_passed(uint32_t request)
{
	return (request & 0xfffffd00) == 0x8900 && request >= 0x8910 && request != SIOCOUTQNSD;
}

/* The same families as in intercept/filter/table.go. */
bool gate_family_is_elsewhere(int family)
{
	return family == 40 /* AF_VSOCK */ || family == 42 /* AF_QIPCRTR */;
}

bool gate_bind_is_passed(const uint8_t *address, size_t length)
{
	uint16_t family;

	if (length < sizeof(struct sockaddr_in))
		return false;
	memcpy(&family, address, sizeof(family));
	/* An IPv4 socket also accepts the wildcard with AF_UNSPEC. */
	return family == AF_INET || family == AF_INET6 || family == AF_UNSPEC || family == AF_GRAFT;
}
