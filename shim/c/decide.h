/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out where a socket is and where a destination lies, as the gate does. */
#ifndef TSUGIKI_SHIM_DECIDE_H
#define TSUGIKI_SHIM_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../policy/c/board.h"

/* Returns the container's board, or NULL. It asks for the board only at a process's second call,
 * and no more after some failures. */
const struct board *shim_board(void);

/* A connect to the container's own addresses that may lead to the host: only the supervisor knows.
 */
struct shim_asked {
	uint64_t netns; /* where the socket was before; 0: the call is no such connect */
	bool is4;
};

/* Returns the mark for a call with a destination: MARK_PASS if the gate would let the kernel carry
 * on, because the socket is where the destination lies; else MARK_ASK. It fills ASKED in, unless
 * that is NULL. */
uint64_t shim_mark(int number, const void *address, size_t length, struct shim_asked *asked);

/* Notes, after a connect that only the supervisor could decide, where the socket is by then: the
 * next ones are made there (habit.h). */
void shim_learn(int number, const struct shim_asked *asked);

/* Returns the mark for socket(2): MARK_PASS if the kernel is to make the socket in the container's
 * own namespace, because the gate makes none of the family on the host, or because the socket is
 * likely to be connected there (habit.h); else MARK_ASK. It does not ask for the board. */
uint64_t shim_socket_mark(int family, int type, int protocol);

/* Whether connects and sends of a container are not trapped. B is its board, or NULL. */
bool shim_is_untrapped(const struct board *b);

/* Whether IPv4 is translated in the container, as far as the process knows its board. */
bool shim_translates(void);

/* Whether the supervisor may have to exchange connections that the container accepts, as far as the
 * process knows. */
bool shim_is_relayed(void);

/* Whether LENGTH bytes at ADDRESS can be read. The kernel, and not the shim, refuses a bad pointer.
 * (rt_sigprocmask(2) reads its set of eight bytes before it refuses `how`.) */
bool shim_readable(const void *address, size_t length);

#endif
