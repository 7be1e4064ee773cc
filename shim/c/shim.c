// SPDX-License-Identifier: Apache-2.0
/*
 * libtsugiki.so: spares dynamic programs the round trips to the gate.
 *
 * Theory of operation
 *
 * The container's seccomp filter traps the calls that decide about a socket, and the gate and the
 * supervisor answer them. The shim knows most of the answers beforehand: from the board
 * (policy/c/board.h), which it maps, and from the socket, whose namespace the kernel tells. It
 * replaces
 *
 *   socket	by taking one of the host sockets that the gate has made in advance
 *		(pool.c), or by a system call with the mark MARK_PASS (marks.h), which the
 *		filter lets through, if it is to be the container's own;
 *   connect	by a system call with MARK_PASS, if the socket is where the destination
 *		lies;
 *   sendto and its kin, likewise, where rules divide the destinations of datagrams
 *		(send.c);
 *   connect, accept, getsockname and getpeername, where IPv4 is translated (translate.c).
 *
 * In all other cases, and after any fault, the shim makes the program's call unchanged, with
 * MARK_ASK, and the filter traps the call. So the shim has no state to lose: the filter serves a
 * program that forks, executes, closes all descriptors, passes sockets on or makes system calls by
 * itself. The shim's calls have no privilege (see marks.h).
 *
 * The shim does not replace calls that the filter does not check. Replaced calls on the data path
 * go on at once if there is nothing to decide.
 *
 * Rules of the house. No C library: glibc and musl load the same file, and where a
 * function of theirs is used it is by a weak reference. No allocation and no lock.
 * Signal handlers, cancelled threads and the children of vfork may call in at any
 * time. errno is changed only by a call that fails.
 */
#include <stddef.h>

#include "decide.h"
#include "kernel.h"
#include "libc.h"
#include "marks.h"
#include "pool.h"
#include "translate.h"

#define SHIM_EMFILE 24

extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso) SHIM_WEAK;
extern int pthread_atfork(void (*prepare)(void), void (*parent)(void),
			  void (*child)(void)) SHIM_WEAK;

SHIM_EXPORT int socket(int family, int type, int protocol);
SHIM_EXPORT int connect(int number, const void *address, unsigned int length);
SHIM_EXPORT int bind(int number, const void *address, unsigned int length);

__attribute__((constructor)) static void shim_start(void)
{
	/* Now: it may allocate, which must not happen within another call. */
	if (__register_atfork != NULL)
		__register_atfork(shim_before_fork, shim_after_fork, shim_forked, NULL);
	else if (pthread_atfork != NULL)
		pthread_atfork(shim_before_fork, shim_after_fork, shim_forked);
}

int socket(int family, int type, int protocol)
{
	uint64_t mark = shim_socket_mark(family, type, protocol);
	long number = mark == MARK_PASS ? -1 : shim_take_socket(family, type, protocol);

	if (number >= 0)
		return (int)number;
	number = KERNEL6(__NR_socket, family, type, protocol, 0, 0, mark);
	/* What is parked takes up room in the process's table. */
	if (number == -SHIM_EMFILE && shim_drop_sockets())
		number = KERNEL6(__NR_socket, family, type, protocol, 0, 0, mark);
	return (int)shim_result(number);
}

int connect(int number, const void *address, unsigned int length)
{
	long args[6] = {number, (long)address, length}, result;
	struct shim_asked asked = {0};

	if (shim_translates())
		return (int)shim_result(shim_connect_translated(number, address, length));
	args[5] = (long)shim_mark(number, address, length, &asked);
	result = shim_waiting_call(__NR_connect, args);
	shim_learn(number, &asked);
	return (int)shim_result(result);
}

int bind(int number, const void *address, unsigned int length)
{
	return (int)shim_result(KERNEL6(__NR_bind, number, address, length, 0, 0, MARK_ASK));
}
