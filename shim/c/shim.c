// SPDX-License-Identifier: Apache-2.0
/*
 * libtsugiki.so: spares dynamic programs the round trips to the gate.
 *
 * Theory of operation
 *
 * The container's seccomp filter traps the calls that decide about a socket, and
 * the gate and the supervisor answer them. The shim knows most of the answers
 * beforehand: from the board (rules/board.h), which it maps, and from the socket
 * itself, which the kernel says the namespace of. It replaces
 *
 *   socket	by taking one of the host sockets that the gate has made in advance
 *		(pool.c);
 *   connect	by a system call with the mark MARK_PASS (marks.h), which the filter
 *		lets through, if the socket is where the destination lies;
 *   sendto and its kin, likewise, where rules divide the destinations of datagrams
 *		(send.c).
 *
 * In all other cases, and whenever anything is not as it should be, it makes the
 * program's call as it is, with MARK_ASK, and that is trapped. So there is no
 * state to lose: a program that forks, executes, closes all descriptors, passes
 * sockets on or makes system calls by itself is served by the filter, and what the
 * shim does not know it asks. Nothing that it does is a right (see marks.h).
 *
 * Calls that the filter does not look at are not replaced; those on the data path
 * that are go on at once where nothing is to be decided.
 *
 * Rules of the house. No C library: glibc and musl load the same file, and where a
 * function of theirs is used it is by a weak reference. No allocation and no lock.
 * Signal handlers, cancelled threads and the children of vfork may call in at any
 * time. errno is changed only by a call that fails.
 */
#include "shim.h"

#include <stddef.h>

#include "kernel.h"
#include "marks.h"

/* linux/socket.h; the C library's headers are not for us. */
#define SHIM_SOL_SOCKET	     1
#define SHIM_SO_NETNS_COOKIE 71
#define SHIM_SOCKADDR_MIN    16 /* the filter's: struct sockaddr_in */

#define SHIM_EINVAL 22
#define SHIM_EMFILE 24

/* Connects and binds that are worth a trap, before the board is asked for. */
#define SHIM_PATIENCE 1
/* How often in vain. */
#define SHIM_TRIES 3

extern int *__errno_location(void) SHIM_WEAK;
extern int pthread_setcanceltype(int type, int *old) SHIM_WEAK;
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso) SHIM_WEAK;
extern int pthread_atfork(void (*prepare)(void), void (*parent)(void),
			  void (*child)(void)) SHIM_WEAK;

SHIM_EXPORT int socket(int family, int type, int protocol);
SHIM_EXPORT int connect(int number, const void *address, unsigned int length);
SHIM_EXPORT int bind(int number, const void *address, unsigned int length);

static _Atomic(const struct board *) shim_mapped;
static atomic_uint shim_calls;
static atomic_uint shim_failures;

__attribute__((constructor)) static void shim_start(void)
{
	/* Now: it may allocate, which must not happen within another call. */
	if (__register_atfork != NULL)
		__register_atfork(shim_before_fork, shim_after_fork, shim_forked, NULL);
	else if (pthread_atfork != NULL)
		pthread_atfork(shim_before_fork, shim_after_fork, shim_forked);
}

long shim_result(long result)
{
	if (result >= 0)
		return result;
	if (__errno_location != NULL)
		*__errno_location() = (int)-result;
	return -1;
}

long shim_waiting_call(long number, const long args[6])
{
	enum { ASYNCHRONOUS = 1 };
	int old;
	long result;

	if (pthread_setcanceltype == NULL)
		return kernel6(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	pthread_setcanceltype(ASYNCHRONOUS, &old);
	result = kernel6(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	pthread_setcanceltype(old, NULL);
	return result;
}

uint64_t shim_cookie(int number, int which)
{
	unsigned int length = sizeof(uint64_t);
	uint64_t cookie = 0;

	if (KERNEL5(__NR_getsockopt, number, SHIM_SOL_SOCKET, which, &cookie, &length) != 0)
		return 0;
	return cookie;
}

const struct board *shim_board(void)
{
	enum { READ = 1, SHARED = 1 };
	const struct board *b = atomic_load(&shim_mapped), *other = NULL;
	long file, at;

	if (b != NULL || atomic_load(&shim_failures) >= SHIM_TRIES)
		return b;
	if (atomic_fetch_add(&shim_calls, 1) < SHIM_PATIENCE)
		return NULL;
	file = KERNEL6(__NR_socket, MARK_FAMILY, MARK_BOARD, 0, 0, 0, MARK_SHIM);
	if (file < 0) {
		atomic_fetch_add(&shim_failures, 1);
		return NULL;
	}
	at = KERNEL6(__NR_mmap, NULL, BOARD_SIZE, READ, SHARED, file, 0);
	KERNEL1(__NR_close, file);
	if (at < 0 && at > -4096) {
		atomic_fetch_add(&shim_failures, 1);
		return NULL;
	}
	b = (const struct board *)at;
	if (b->magic != BOARD_MAGIC || b->version != BOARD_VERSION) {
		KERNEL2(__NR_munmap, b, BOARD_SIZE);
		atomic_store(&shim_failures, SHIM_TRIES);
		return NULL;
	}
	if (!atomic_compare_exchange_strong(&shim_mapped, &other, b)) {
		KERNEL2(__NR_munmap, b, BOARD_SIZE);
		b = other; /* another thread was faster */
	}
	return b;
}

bool shim_readable(const void *address, size_t length)
{
	enum { PAGE = 4096, WORD = 8 };
	uintptr_t first = (uintptr_t)address & ~(uintptr_t)(WORD - 1);
	uintptr_t last = ((uintptr_t)address + length - 1) & ~(uintptr_t)(WORD - 1);

	if (KERNEL4(__NR_rt_sigprocmask, ~0U, first, NULL, WORD) != -SHIM_EINVAL)
		return false;
	return first / PAGE == last / PAGE ||
	       KERNEL4(__NR_rt_sigprocmask, ~0U, last, NULL, WORD) == -SHIM_EINVAL;
}

/* Whether an IP socket has a port, which has its place in both families' names. */
static bool shim_is_bound(int number)
{
	uint16_t name[14] = {0};
	unsigned int length = sizeof(name);

	return KERNEL3(__NR_getsockname, number, name, &length) != 0 || name[1] != 0;
}

static bool shim_in_place(int number, const struct board *b, const struct board_address *to)
{
	struct board_place place = board_place_for(b, to);

	if (place.verdict != BOARD_LOOK)
		return place.verdict == BOARD_IN_PLACE;
	return shim_cookie(number, SHIM_SO_NETNS_COOKIE) == place.netns &&
	       !(place.unbound && shim_is_bound(number));
}

uint64_t shim_mark(int number, const void *address, size_t length)
{
	const struct board *b = shim_board();
	struct board_address to;

	if (length < SHIM_SOCKADDR_MIN)
		return MARK_PASS;
	if (length > BOARD_ADDRESS_MAX)
		length = BOARD_ADDRESS_MAX;
	if (b == NULL || atomic_load(&b->traced) || atomic_load(&b->nested) ||
	    !shim_readable(address, length))
		return MARK_ASK;
	to = board_look_up(b, BOARD_SIZE, address, length);
	if (to.where == BOARD_NO_IP)
		return MARK_PASS;
	return shim_in_place(number, b, &to) ? MARK_PASS : MARK_ASK;
}

int socket(int family, int type, int protocol)
{
	long number = shim_take_socket(family, type, protocol);

	if (number >= 0)
		return (int)number;
	number = KERNEL6(__NR_socket, family, type, protocol, 0, 0, MARK_ASK);
	/* What is parked takes up room in the process's table. */
	if (number == -SHIM_EMFILE && shim_drop_sockets())
		number = KERNEL6(__NR_socket, family, type, protocol, 0, 0, MARK_ASK);
	return (int)shim_result(number);
}

int connect(int number, const void *address, unsigned int length)
{
	const long args[6] = {number, (long)address,
			      length, [5] = (long)shim_mark(number, address, length)};

	return (int)shim_result(shim_waiting_call(__NR_connect, args));
}

int bind(int number, const void *address, unsigned int length)
{
	return (int)shim_result(KERNEL6(__NR_bind, number, address, length, 0, 0, MARK_ASK));
}
