/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IPv4 addresses of programs whose IPv4 is translated (docs/design/translate.md): what the gate and
 * the preloaded library both do with them. Their TCP sockets are IPv6 ones, which the kernel
 *programs show as AF_INET.
 *
 *	to the kernel	a.b.c.d is ::ffff:a.b.c.d
 *	from the kernel	::ffff:a.b.c.d is a.b.c.d; any other address of the socket's own is the
 *			container's; any other peer has a name that only the supervisor knows
 */
#ifndef TSUGIKI_TRANSLATED_ADDRESSES_H
#define TSUGIKI_TRANSLATED_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>

#include "board.h"

/* The errno by which connect6 says that the supervisor has to decide (bpf/mapped.h):
 * EPROTONOSUPPORT, which connect(2) on an IP socket does not have. */
#define TRANSLATED_ASK_SUPERVISOR 93

/* struct sockaddr_in and struct sockaddr_in6. Numbers are in network order, but for the family. */
struct translated_in {
	uint16_t family, port;
	uint8_t addr[4];
	uint8_t zero[8];
};

struct translated_in6 {
	uint16_t family, port;
	uint32_t flow;
	uint8_t addr[16];
	uint32_t scope;
};

_Static_assert(sizeof(struct translated_in) == 16, "struct sockaddr_in");
_Static_assert(sizeof(struct translated_in6) == 28, "struct sockaddr_in6");

/* The form in which the kernel takes an IPv4 destination. */
struct translated_in6 translated_to6(const struct translated_in *to);

/* Whether a destination is on the container's loopback, which also has the DNS proxy. */
bool translated_is_near(const struct translated_in *to);

/* Whether a destination is one of the container's virtual addresses, whose hosts the kernel
 * programs know. */
bool translated_is_virtual(const struct board *b, const struct translated_in *to);

/* Whether the supervisor has to be asked after the kernel has refused, with an errno, to connect to
 * the IPv6 form of a destination. */
bool translated_asks(int error, const struct translated_in *to);

/* The IPv4 form of a socket's name, or of its PEER's; false if only the supervisor knows one. */
bool translated_to4(const struct translated_in6 *name, bool peer, struct translated_in *to);

/* The name of a peer who has no other: 192.0.0.7. */
struct translated_in translated_nobody(uint16_t port);

#endif
