// SPDX-License-Identifier: Apache-2.0
/*
 * Host sockets that were made in advance.
 *
 * They wait in a queue: one end of a socketpair(2) whose other end is closed, with
 * one socket in each message. recvmsg(2) then does what socket(2) does: it
 * installs a descriptor under the lowest number that is free. What waits in a queue
 * is in nobody's descriptor table, so a child that inherits the queue holds
 * nothing of its parent's, and no two processes ever take the same socket.
 * Nevertheless a child closes it after fork(2): who holds it could look at what is
 * in it (MSG_PEEK), and it may become another user.
 *
 * A queue is filled, when it has been emptied, by the process itself with what
 * the gate sends in one message. The descriptors under way so count against the
 * program's user and limits (unix(7), ETOOMANYREFS).
 *
 * The queue has a number of the program's descriptor table, a high one. A program
 * may close it, with all others, or put something else there: so it is known by
 * its SO_COOKIE, which is asked each time.
 */
#include "shim.h"

#include <stddef.h>

#include "kernel.h"
#include "marks.h"

#define POOL_AF_UNIX   1
#define POOL_AF_INET   2
#define POOL_AF_INET6  10
#define POOL_STREAM    1
#define POOL_DGRAM     2
#define POOL_SEQPACKET 5
#define POOL_TYPE_MASK 0xf
#define POOL_CLOEXEC   02000000
#define POOL_NONBLOCK  04000
#define POOL_TCP       6
#define POOL_UDP       17

#define POOL_SOL_SOCKET	   1
#define POOL_SCM_RIGHTS	   1
#define POOL_SO_COOKIE	   57
#define POOL_MSG_DONTWAIT  0x40
#define POOL_MSG_NOSIGNAL  0x4000
#define POOL_CMSG_CLOEXEC  0x40000000
#define POOL_F_GETFL	   3
#define POOL_F_SETFL	   4
#define POOL_DUPFD_CLOEXEC 1030
#define POOL_RLIMIT_NOFILE 7

/* Sockets of a kind that a process makes before it gets some in advance. */
#define POOL_PATIENCE 3
/* And that it makes after it got none. */
#define POOL_REPENTANCE 1000
/* How many at first; later, MARK_BATCH_MAX. */
#define POOL_FIRST 8
/* Where a queue's number is looked for: where few programs come, and small enough
 * for a table of 256. */
#define POOL_NUMBER 224
/* Under a limit of fewer descriptors, none is to spare. */
#define POOL_LIMIT_MIN 512

/* The kernel's struct msghdr and cmsghdr, on 64-bit machines. */
struct pool_iovec {
	void *base;
	size_t length;
};

struct pool_message {
	void *name;
	int name_length;
	struct pool_iovec *iov;
	size_t iov_count;
	void *control;
	size_t control_length;
	unsigned int flags;
};

struct pool_rights {
	size_t length;
	int level;
	int type;
	int number[MARK_BATCH_MAX];
};

#define POOL_RIGHTS(count) (offsetof(struct pool_rights, number) + sizeof(int) * (count))

struct pool {
	/* SO_COOKIE << POOL_SHIFT | number; 0: there is no queue. */
	_Atomic uint64_t queue;
	atomic_int calls;
	atomic_bool filling;
	atomic_bool filled; /* at least once */
};

#define POOL_SHIFT 16

static struct pool pools[2][2]; /* by family and type */

static int pool_number(uint64_t queue)
{
	return (int)(queue & ((1 << POOL_SHIFT) - 1));
}

static bool pool_is_there(uint64_t queue)
{
	return shim_cookie(pool_number(queue), POOL_SO_COOKIE) == queue >> POOL_SHIFT;
}

/* Receives up to COUNT descriptors; returns how many, -1 if there is no message. */
static int pool_receive(int from, int *numbers, unsigned int count, int flags)
{
	struct pool_rights rights;
	char byte;
	struct pool_iovec iov = {&byte, 1};
	struct pool_message msg = {.iov = &iov,
				   .iov_count = 1,
				   .control = &rights,
				   .control_length = POOL_RIGHTS(count)};
	long n = KERNEL3(__NR_recvmsg, from, &msg, flags | POOL_MSG_DONTWAIT);

	if (n <= 0)
		return -1;
	if (msg.control_length < POOL_RIGHTS(1) || rights.level != POOL_SOL_SOCKET ||
	    rights.type != POOL_SCM_RIGHTS)
		return 0;
	count = (unsigned int)((rights.length - POOL_RIGHTS(0)) / sizeof(int));
	for (unsigned int i = 0; i < count; i++)
		numbers[i] = rights.number[i];
	return (int)count;
}

static bool pool_send(int to, int number)
{
	struct pool_rights rights = {.length = POOL_RIGHTS(1),
				     .level = POOL_SOL_SOCKET,
				     .type = POOL_SCM_RIGHTS,
				     .number = {number}};
	char byte = 0;
	struct pool_iovec iov = {&byte, 1};
	struct pool_message msg = {.iov = &iov,
				   .iov_count = 1,
				   .control = &rights,
				   .control_length = POOL_RIGHTS(1) + sizeof(int)};

	return KERNEL3(__NR_sendmsg, to, &msg, POOL_MSG_DONTWAIT | POOL_MSG_NOSIGNAL) == 1;
}

/* Has the gate make COUNT sockets; returns how many there are now in NUMBERS. */
static int pool_order(int family, int type, unsigned int count, int *numbers)
{
	int pair[2], got = -1;

	if (KERNEL4(__NR_socketpair, POOL_AF_UNIX, POOL_SEQPACKET | POOL_CLOEXEC, 0, pair) != 0)
		return -1;
	if (KERNEL6(__NR_socket, MARK_FAMILY, MARK_BATCH, pair[1], family << 8 | type, count,
		    MARK_SHIM) > 0)
		got = pool_receive(pair[0], numbers, count, POOL_CMSG_CLOEXEC);
	KERNEL1(__NR_close, pair[0]);
	KERNEL1(__NR_close, pair[1]);
	return got;
}

static bool pool_fill(struct pool *p, int family, int type)
{
	unsigned int count = atomic_load(&p->filled) ? MARK_BATCH_MAX : POOL_FIRST;
	int numbers[MARK_BATCH_MAX], pair[2], got;
	uint64_t limit[2], cookie, none = 0;
	long high;

	if (KERNEL4(__NR_prlimit64, 0, POOL_RLIMIT_NOFILE, NULL, limit) != 0 ||
	    limit[0] < POOL_LIMIT_MIN)
		return false;
	got = pool_order(family, type, count, numbers);
	if (got <= 0)
		return false;
	if (KERNEL4(__NR_socketpair, POOL_AF_UNIX, POOL_SEQPACKET | POOL_CLOEXEC, 0, pair) != 0)
		pair[0] = pair[1] = -1;
	for (int i = 0; i < got; i++) {
		if (pair[1] >= 0)
			pool_send(pair[1], numbers[i]);
		KERNEL1(__NR_close, numbers[i]);
	}
	if (pair[0] < 0)
		return false;
	KERNEL1(__NR_close, pair[1]);
	high = KERNEL3(__NR_fcntl, pair[0], POOL_DUPFD_CLOEXEC, POOL_NUMBER);
	KERNEL1(__NR_close, pair[0]);
	if (high < 0)
		return false;
	cookie = shim_cookie((int)high, POOL_SO_COOKIE);
	if (high >> POOL_SHIFT || cookie == 0 ||
	    !atomic_compare_exchange_strong(&p->queue, &none,
					    cookie << POOL_SHIFT | (uint64_t)high)) {
		KERNEL1(__NR_close, high);
		return false;
	}
	atomic_store(&p->filled, true);
	return true;
}

/* Takes a socket from the queue; one that is empty is closed. */
static int pool_take(struct pool *p, int type)
{
	uint64_t queue = atomic_load(&p->queue);
	int number = -1;

	if (queue == 0)
		return -1;
	if (!pool_is_there(queue)) {
		atomic_compare_exchange_strong(&p->queue, &queue, 0);
		return -1;
	}
	if (pool_receive(pool_number(queue), &number, 1,
			 type & POOL_CLOEXEC ? POOL_CMSG_CLOEXEC : 0) < 0) {
		if (atomic_compare_exchange_strong(&p->queue, &queue, 0))
			KERNEL1(__NR_close, pool_number(queue));
		return -1;
	}
	if (number >= 0 && type & POOL_NONBLOCK)
		KERNEL3(__NR_fcntl, number, POOL_F_SETFL, 2 /* O_RDWR */ | POOL_NONBLOCK);
	return number;
}

static struct pool *pool_of(int family, int type, int protocol)
{
	int kind = type & POOL_TYPE_MASK;

	if ((family != POOL_AF_INET && family != POOL_AF_INET6) ||
	    type & ~(POOL_TYPE_MASK | POOL_CLOEXEC | POOL_NONBLOCK))
		return NULL;
	if (kind == POOL_STREAM && (protocol == 0 || protocol == POOL_TCP))
		return &pools[family == POOL_AF_INET6][0];
	if (kind == POOL_DGRAM && (protocol == 0 || protocol == POOL_UDP))
		return &pools[family == POOL_AF_INET6][1];
	return NULL;
}

int shim_take_socket(int family, int type, int protocol)
{
	struct pool *p = pool_of(family, type, protocol);
	const struct board *b;
	int number;

	if (p == NULL || atomic_fetch_add(&p->calls, 1) < POOL_PATIENCE)
		return -1;
	b = shim_board();
	if (b == NULL || atomic_load(&b->nested) || atomic_load(&b->traced))
		return -1;
	number = pool_take(p, type);
	if (number >= 0 || atomic_load(&p->queue) != 0 || atomic_exchange(&p->filling, true))
		return number;
	if (!pool_fill(p, family, type & POOL_TYPE_MASK))
		atomic_store(&p->calls, POOL_PATIENCE - POOL_REPENTANCE);
	atomic_store(&p->filling, false);
	return pool_take(p, type);
}

void shim_forked(void)
{
	for (int i = 0; i < 4; i++) {
		struct pool *p = &pools[i / 2][i % 2];
		uint64_t queue = atomic_load(&p->queue);

		if (queue != 0 && pool_is_there(queue))
			KERNEL1(__NR_close, pool_number(queue));
		atomic_store(&p->queue, 0);
		atomic_store(&p->calls, 0);
		atomic_store(&p->filling, false);
	}
}
