/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a gate that need no system call. */
#ifndef TSUGIKI_GATE_DECIDE_H
#define TSUGIKI_GATE_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kind of socket that a socket(2) asks for. The function returns false if a gate does not make
 * such sockets. HOST_FIRST is the board's host_first. */
struct gate_kind {
	int family;
	int type;
	int protocol;
	bool nonblock;
	bool close_on_exec;
};

bool gate_kind_of(unsigned int host_first, int family, int type, int protocol,
		  struct gate_kind *kind);

/*
 * Whether ioctl(2) with this request tells of interfaces, addresses or neighbours. The kernel must
 * not carry on with such a request: by then there may be a host socket under the number.
 */
bool gate_ioctl_is_passed(uint32_t request);

/* Whether sockets of a family belong to no network namespace, and so are refused. */
bool gate_family_is_elsewhere(int family);

/* Whether bind(2) to an address is passed on to the supervisor. */
bool gate_bind_is_passed(const uint8_t *address, size_t length);

#endif
