// SPDX-License-Identifier: Apache-2.0
/* Decides about a call from the board and from the socket itself (see shim.c). */
#include "decide.h"

#include "../../policy/c/habit.h"
#include "kernel.h"
#include "marks.h"

/* linux/socket.h; the C library's headers are not for us. */
#define SHIM_SOL_SOCKET	     1
#define SHIM_SO_NETNS_COOKIE 71
#define SHIM_SOCKADDR_MIN    16 /* the filter's: struct sockaddr_in */

#define SHIM_SO_TYPE   3
#define SHIM_INET      2
#define SHIM_INET6     10
#define SHIM_STREAM    1
#define SHIM_TYPE_MASK 0xf
#define SHIM_TCP       6

#define SHIM_EINVAL 22

/* Connects that are worth a trap, before the board is asked for. */
#define SHIM_PATIENCE 1
/* How often in vain. */
#define SHIM_TRIES 3

static _Atomic(const struct board *) shim_mapped;
static struct habit shim_habits[2]; /* of IPv6 and of IPv4 */
static atomic_uint shim_calls;
static atomic_uint shim_failures;

/* SO_NETNS_COOKIE of a socket; 0 if it has none. */
static uint64_t shim_netns(int number)
{
	unsigned int length = sizeof(uint64_t);
	uint64_t cookie = 0;

	if (KERNEL5(__NR_getsockopt, number, SHIM_SOL_SOCKET, SHIM_SO_NETNS_COOKIE, &cookie,
		    &length) != 0)
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

/* Whether the gate makes sockets of a family on the host first. */
static bool shim_is_host_first(const struct board *b, int family)
{
	return b->host_first & (family == SHIM_INET ? BOARD_HOST_FIRST_4 : BOARD_HOST_FIRST_6);
}

/* Notes that a socket is connected to the container's own namespace or to the host's side, if
 * sockets of its family are made on the host first and it is one of TCP. */
static void shim_note(int number, const struct board *b, bool is4, bool own, bool in_place)
{
	int family = is4 ? SHIM_INET : SHIM_INET6, type = 0;
	struct habit *h = &shim_habits[is4];
	unsigned int length = sizeof(type);

	if (shim_is_host_first(b, family) && habit_is_told(h, own, in_place) &&
	    KERNEL5(__NR_getsockopt, number, SHIM_SOL_SOCKET, SHIM_SO_TYPE, &type, &length) == 0 &&
	    type == SHIM_STREAM)
		habit_note(h, own, in_place);
}

static bool shim_in_place(int number, const struct board *b, const struct board_address *to,
			  struct shim_asked *asked)
{
	struct board_place place = board_place_for(b, to);
	bool lies = place.verdict == BOARD_IN_PLACE;

	if (place.verdict == BOARD_LOOK)
		lies = shim_netns(number) == place.netns;
	if (place.verdict != BOARD_ASK) {
		shim_note(number, b, to->is4, to->where == BOARD_OWN, lies);
	} else if (asked != NULL && to->where == BOARD_OWN) {
		asked->is4 = to->is4;
		asked->netns = shim_netns(number);
	}
	return lies && !(place.unbound && place.verdict == BOARD_LOOK && shim_is_bound(number));
}

/* Whether the shim may decide what is on a board. */
static bool shim_decides(const struct board *b)
{
	return b != NULL && !atomic_load(&b->traced) && !atomic_load(&b->nested);
}

bool shim_is_untrapped(const struct board *b)
{
	return b != NULL && b->untrapped;
}

bool shim_translates(void)
{
	const struct board *b = atomic_load(&shim_mapped);

	return b != NULL && b->untrapped & BOARD_TRANSLATED;
}

bool shim_is_relayed(void)
{
	const struct board *b = atomic_load(&shim_mapped);

	return b != NULL && (b->untrapped & BOARD_RELAYED || atomic_load(&b->expects));
}

uint64_t shim_socket_mark(int family, int type, int protocol)
{
	const struct board *b = atomic_load(&shim_mapped);
	bool tcp =
		(type & SHIM_TYPE_MASK) == SHIM_STREAM && (protocol == 0 || protocol == SHIM_TCP);

	if (b == NULL || (family != SHIM_INET && family != SHIM_INET6))
		return MARK_ASK;
	if (!shim_is_host_first(b, family)) /* from the container's beginning to its end */
		return MARK_PASS;
	/* Until a socket has been moved, board_place_for takes all sockets for the host's. */
	return tcp && shim_decides(b) && atomic_load(&b->own_sockets) &&
			       habit_is_own(&shim_habits[family == SHIM_INET])
		       ? MARK_PASS
		       : MARK_ASK;
}

void shim_learn(int number, const struct shim_asked *asked)
{
	const struct board *b = atomic_load(&shim_mapped); /* not NULL if ASKED is filled in */
	uint64_t now = asked->netns == 0 ? 0 : shim_netns(number);

	if (now != 0)
		shim_note(number, b, asked->is4, now == b->own, now == asked->netns);
}

uint64_t shim_mark(int number, const void *address, size_t length, struct shim_asked *asked)
{
	const struct board *b = shim_board();
	struct board_address to;

	if (length < SHIM_SOCKADDR_MIN)
		return MARK_PASS;
	if (shim_translates())
		return MARK_ASK; /* the next call is translate.c's */
	if (shim_is_untrapped(b))
		return MARK_PASS;
	if (length > BOARD_ADDRESS_MAX)
		length = BOARD_ADDRESS_MAX;
	if (!shim_decides(b) || !shim_readable(address, length))
		return MARK_ASK;
	to = board_look_up(b, BOARD_SIZE, address, length);
	if (to.where == BOARD_NO_IP)
		return MARK_PASS;
	return shim_in_place(number, b, &to, asked) ? MARK_PASS : MARK_ASK;
}
