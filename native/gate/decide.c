// SPDX-License-Identifier: Apache-2.0
/*
 * The gate's decisions, without a system call: these are fed by programs and
 * fuzzed.
 */
#include "gate.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define GATE_TYPE_MASK 0xf

/* The shortest struct sockaddr_in6 that the kernel takes, RFC 2133's. */
#define GATE_IN6_MIN 24

static const uint8_t gate_loopback6[16] = {[15] = 1};
static const uint8_t gate_mapped[12] = {[10] = 0xff, [11] = 0xff};

struct gate_address gate_look_up(const struct rules *rules, const uint8_t *bytes, size_t length)
{
	struct gate_address a = {.where = GATE_NO_IP};
	uint8_t addr[16] = {[10] = 0xff, [11] = 0xff};
	const struct rules_endpoint *ep;
	uint16_t family;

	if (length < sizeof(struct sockaddr_in))
		return a;
	memcpy(&family, bytes, sizeof(family));
	if (family == AF_INET) {
		a.is4 = true;
		memcpy(&addr[12], &bytes[4], 4);
	} else if (family == AF_INET6 && length >= GATE_IN6_MIN) {
		memcpy(addr, &bytes[8], sizeof(addr));
	} else {
		return a;
	}
	a.loopback = memcmp(addr, gate_loopback6, sizeof(addr)) == 0 ||
		     (memcmp(addr, gate_mapped, sizeof(gate_mapped)) == 0 && addr[12] == 127);
	ep = rules_find(rules, addr, (uint16_t)(bytes[2] << 8 | bytes[3]));
	if (ep == NULL) {
		a.where = GATE_OWN;
	} else if (ep->netns == 0) {
		a.where = GATE_OTHER;
	} else {
		a.where = GATE_HOST;
		a.netns = ep->netns;
	}
	return a;
}

bool gate_kind_of(unsigned int born, int family, int type, int protocol, struct gate_kind *kind)
{
	const int flags = SOCK_NONBLOCK | SOCK_CLOEXEC;

	if (!(born & (family == AF_INET ? GATE_BORN_4 : GATE_BORN_6)))
		return false;
	if ((family != AF_INET && family != AF_INET6) || (type & ~(GATE_TYPE_MASK | flags)))
		return false;
	switch (type & GATE_TYPE_MASK) {
	case SOCK_STREAM:
		/* The kernel programs do not see all that MPTCP does; TCP is
		 * what its callers fall back to. */
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
	kind->type = type & ~SOCK_CLOEXEC;
	kind->close_on_exec = type & SOCK_CLOEXEC;
	return true;
}
