/* SPDX-License-Identifier: Apache-2.0 */
/* Where a socket is, and where a destination lies: what the gate would find. */
#ifndef TSUGIKI_SHIM_DECIDE_H
#define TSUGIKI_SHIM_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../policy/c/board.h"

/* The container's board, or NULL as long as it is not worth while, or in vain. */
const struct board *shim_board(void);

/*
 * The mark for a call that sends a socket to an address: MARK_PASS if the socket is
 * where the destination lies, as the gate would find.
 */
uint64_t shim_mark(int number, const void *address, size_t length);

/* SO_NETNS_COOKIE (71) or SO_COOKIE (57) of a socket; 0 if it has none. */
uint64_t shim_cookie(int number, int which);

/*
 * Whether LENGTH bytes at ADDRESS can be read: a bad pointer is the kernel's to
 * refuse. rt_sigprocmask(2) reads its set of eight bytes before it finds fault
 * with `how`.
 */
bool shim_readable(const void *address, size_t length);

#endif
