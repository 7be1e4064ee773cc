// SPDX-License-Identifier: Apache-2.0
/*
 * The spare of the gate pool.
 *
 * Theory of operation
 *
 * The pool has the only descriptors of idle gates, so one signal must not end it. The pool has a
 * spare: a process of its own (clone(2) without CLONE_THREAD) with the same memory (CLONE_VM) and
 * the same table of descriptors (CLONE_FILES). The spare waits for the end of the pool, and the
 * pool for the end of its spare. So some microseconds after the end of one process, there are two
 * again:
 *
 *	the spare is killed	the pool starts another
 *	the pool is killed	the spare is the pool, and starts a spare. It goes on with the
 *				table of gates (idle.h) as the killed process has left it
 *
 * The spare needs no messages, and its state cannot be out of date. It has no privilege that the
 * pool does not have. Both end by two signals at once, or if the kernel runs out of memory, because
 * it kills all processes that share memory.
 *
 * Both also share one thread-local storage. The spare does not touch it while it waits, because its
 * system calls do not fail.
 */
#define _GNU_SOURCE
#include "spare.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "idle.h"

#define SPARE_STACK (64 * 1024)

/* The pool may run on one stack, and its spare has the other one. */
static _Alignas(64) char spare_stacks[2][SPARE_STACK];
static unsigned int spare_stack; /* the spare's */
static bool spare_there;
static void (*spare_take_over)(void);

static int spare_wait(void *stack)
{
	struct pollfd pool = {.fd = POOL_FD_SELF, .events = POLLIN};

	(void)prctl(PR_SET_NAME, "tsugiki-spare");
	while (poll(&pool, 1, -1) != 1)
		;
	spare_stack = stack == spare_stacks[0];
	spare_there = false;
	spare_take_over();
	return 1;
}

/* Moves a file to a number. */
static bool spare_move(int file, int number)
{
	bool moved = file >= 0 && dup2(file, number) >= 0;

	if (file >= 0)
		close(file);
	return moved;
}

bool spare_start(void (*take_over)(void))
{
	char *stack = spare_stacks[spare_stack];
	int file = -1;

	spare_take_over = take_over;
	if (!spare_move((int)syscall(SYS_pidfd_open, getpid(), 0), POOL_FD_SELF))
		return false;
	if (clone(spare_wait, stack + SPARE_STACK, CLONE_VM | CLONE_FILES | CLONE_PIDFD | SIGCHLD,
		  stack, &file) < 0)
		return false;
	(void)spare_move(file, POOL_FD_SPARE); /* the number is in use, so this does not fail */
	spare_there = true;
	return true;
}

bool spare_is_there(void)
{
	return spare_there;
}

void spare_ended(void)
{
	spare_there = false;
}
