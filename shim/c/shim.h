/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the shim need of each other, see shim.c. */
#ifndef TSUGIKI_SHIM_H
#define TSUGIKI_SHIM_H

#include "../../policy/c/board.h"

#define SHIM_EXPORT __attribute__((visibility("default")))
#define SHIM_WEAK   __attribute__((weak))

/* The container's board, or NULL as long as it is not worth while, or in vain. */
const struct board *shim_board(void);

/*
 * The mark for a call that sends a socket to an address: MARK_PASS if the socket is
 * where the destination lies, as the gate would find.
 */
uint64_t shim_mark(int number, const void *address, size_t length);

/*
 * A host socket that was made in advance, as socket(2) would return it, or -1
 * where there is none: the caller then asks for one.
 */
int shim_take_socket(int family, int type, int protocol);

/* SO_NETNS_COOKIE (71) or SO_COOKIE (57) of a socket; 0 if it has none. */
uint64_t shim_cookie(int number, int which);

/*
 * Whether LENGTH bytes at ADDRESS can be read: a bad pointer is the kernel's to
 * refuse. rt_sigprocmask(2) reads its set of eight bytes before it finds fault
 * with `how`.
 */
bool shim_readable(const void *address, size_t length);

/* Sets errno, as the C library does, if RESULT is one. */
long shim_result(long result);

/* A system call that may wait, which is where a thread can be cancelled. */
long shim_waiting_call(long number, const long args[6]);

/* Closes the sockets that were made in advance; returns whether there were any. */
bool shim_drop_sockets(void);

/* Around a fork(2): in the parent, and in the child, which closes its copies of
 * what is its parent's. */
void shim_before_fork(void);
void shim_after_fork(void);
void shim_forked(void);

#endif
