// SPDX-License-Identifier: Apache-2.0
/*
 * Host sockets that were made in advance.
 *
 * They are parked under high numbers of the process's descriptor table, with
 * close-on-exec. To take one is to move it to the lowest number that is free, where
 * socket(2) would have put it. (Queues of one socket per message in a socketpair(2),
 * which would keep them out of the table, cost three times as much.)
 *
 * The program may close a parked socket with all other files, or put another file under its number.
 * So the shim knows a parked socket by its inode, and checks the inode before it uses the socket.
 * (SO_COOKIE would do too. But getsockopt(2) of a host socket runs a kernel program, and takes five
 * times as long.)
 *
 * A child of fork(2) has copies of its parent's parked sockets. They would keep connections open
 * that the parent has closed, so the child closes them at once (pthread_atfork(3)). The parent
 * first waits until no thread uses the pools, so that the child knows all parked sockets. A child
 * that was made without the C library, or by _Fork(3), closes the copies when it first calls the
 * shim: it finds a page wiped (MADV_WIPEONFORK, 4.14). A child of vfork(2) shares the page, and is
 * recognized by its process id. No child ever uses the copies.
 */
#include "pool.h"

#include <stddef.h>

#include "decide.h"
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
#define POOL_MSG_DONTWAIT  0x40
#define POOL_CMSG_CLOEXEC  0x40000000
#define POOL_F_SETFL	   4
#define POOL_F_DUPFD	   0
#define POOL_DUPFD_CLOEXEC 1030
#define POOL_F_SETFD	   2
#define POOL_RLIMIT_NOFILE 7

/* The longest time that a fork waits for other threads. These may wait for the gate, or for a CPU.
 * Only one that has left by longjmp(3), or has ended, takes as long: 10 seconds. */
#define POOL_WAIT_NS 100000
#define POOL_WAITS   100000

/* Threads that can use the pools at once. Others make their sockets themselves. */
#define POOL_USERS 32

/* Sockets of a kind that a process makes before it gets some in advance. */
#define POOL_PATIENCE 3
/* And that it makes after it got none. */
#define POOL_REPENTANCE 1000
/* How many at first; later, MARK_BATCH_MAX. */
#define POOL_FIRST 8
/* The first number for parked sockets: few programs have such numbers, and it fits a table of
 * 256. */
#define POOL_NUMBER 224
/* Of the descriptors that a process may have, one in this many may be parked. */
#define POOL_SHARE 32

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

struct pool_place {
	uint64_t inode; /* see pool_inode */
	int number;
};

struct pool {
	/* A bit for each place that is taken, below a count of fillings. */
	_Atomic uint64_t parked;
	atomic_int calls;
	atomic_bool filling;
	struct pool_place place[MARK_BATCH_MAX];
};

#define POOL_FILLINGS 48 /* shift */
#define POOL_PLACES   ((1ull << POOL_FILLINGS) - 1)

_Static_assert(MARK_BATCH_MAX <= POOL_FILLINGS, "a bit for each place");

static struct pool pools[2][2]; /* by family and type */

/* In a page of its own: the process, 0 if it is a child that does not know. */
static _Atomic(atomic_int *) pool_owner;

/* Threads that are at the pools, by their thread pointers. */
static _Atomic(void *) pool_users[POOL_USERS];
static atomic_uint pool_forks; /* that are under way: leave the pools alone */

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

/* Makes the gate make COUNT sockets. Returns the number of sockets that are now in NUMBERS. */
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

/* How many descriptors the process can spare. */
static unsigned int pool_spare(void)
{
	uint64_t limit[2];

	if (KERNEL4(__NR_prlimit64, 0, POOL_RLIMIT_NOFILE, NULL, limit) != 0)
		return 0;
	limit[0] /= POOL_SHARE;
	return limit[0] < MARK_BATCH_MAX ? (unsigned int)limit[0] : MARK_BATCH_MAX;
}

/* Makes the page that a child finds wiped. */
static bool pool_prepare(void)
{
	enum { PAGE = 4096, READ_WRITE = 3, PRIVATE_ANONYMOUS = 0x22, WIPEONFORK = 18 };
	atomic_int *page, *none = NULL;
	long at;

	if (atomic_load(&pool_owner) != NULL)
		return true;
	at = KERNEL6(__NR_mmap, NULL, PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
	if (at < 0 && at > -PAGE)
		return false;
	page = (atomic_int *)at;
	if (KERNEL3(__NR_madvise, page, PAGE, WIPEONFORK) != 0) {
		KERNEL2(__NR_munmap, page, PAGE);
		return false;
	}
	atomic_store(page, (int)KERNEL0(__NR_getpid));
	if (!atomic_compare_exchange_strong(&pool_owner, &none, page))
		KERNEL2(__NR_munmap, page, PAGE);
	return true;
}

/* Returns the device and the inode of an open file; 0 if that is no file of the kernel's own. */
static uint64_t pool_inode(int number)
{
	/* struct stat; in that of all 64-bit machines these two come first. */
	struct {
		uint64_t device, inode, rest[16];
	} st;

	if (KERNEL2(__NR_fstat, number, &st) != 0 || st.inode > UINT32_MAX)
		return 0;
	return st.device << 32 | st.inode;
}

/* Parks a copy of a socket, if it can. */
static bool pool_park(struct pool_place *place, int number)
{
	long high = KERNEL3(__NR_fcntl, number, POOL_DUPFD_CLOEXEC, POOL_NUMBER);

	if (high < 0)
		return false;
	place->number = (int)high;
	place->inode = pool_inode((int)high);
	return true;
}

/* Closes descriptors, which mostly have numbers one after another. */
static void pool_close(const int *numbers, int count)
{
	int run = 1;

	for (int first = 0; first < count; first += run) {
		for (run = 1; first + run < count && numbers[first + run] == numbers[first] + run;)
			run++;
		if (run == 1 ||
		    KERNEL3(__NR_close_range, numbers[first], numbers[first] + run - 1, 0) != 0)
			for (int i = first; i < first + run; i++)
				KERNEL1(__NR_close, numbers[i]);
	}
}

/* Only one thread does this at a time, and only when no place is taken. */
static bool pool_fill(struct pool *p, int family, int type)
{
	uint64_t before = atomic_load(&p->parked), now = before + (1ull << POOL_FILLINGS);
	unsigned int count = pool_spare(), places = 0;
	int numbers[MARK_BATCH_MAX], got;

	if (before >> POOL_FILLINGS == 0 && count > POOL_FIRST)
		count = POOL_FIRST;
	if (count == 0 || !pool_prepare())
		return false;
	got = pool_order(family, type, count, numbers);
	for (int i = 0; i < got; i++)
		if (pool_park(&p->place[places], numbers[i]))
			now |= 1ull << places++;
	pool_close(numbers, got);
	atomic_store(&p->parked, now);
	return places > 0;
}

/* Whether the file of a place is still the parked socket. */
static bool pool_is_there(const struct pool_place *place)
{
	return place->inode != 0 && pool_inode(place->number) == place->inode;
}

/* Marks one of the places as free, whatever file is there now. */
static bool pool_remove(struct pool *p, struct pool_place *place)
{
	uint64_t parked = atomic_load(&p->parked);

	do {
		if ((parked & POOL_PLACES) == 0)
			return false;
		*place = p->place[__builtin_ctzll(parked)];
	} while (!atomic_compare_exchange_weak(&p->parked, &parked, parked & (parked - 1)));
	return true;
}

/* Takes a socket out of one of the places, or returns -1. */
static int pool_take(struct pool *p, int type)
{
	struct pool_place place;
	long number;

	if (!pool_remove(p, &place) || !pool_is_there(&place))
		return -1;
	number = KERNEL3(__NR_fcntl, place.number,
			 type & POOL_CLOEXEC ? POOL_DUPFD_CLOEXEC : POOL_F_DUPFD, 0);
	if (number >= 0)
		KERNEL1(__NR_close, place.number);
	else if (!(type & POOL_CLOEXEC)) /* the table is full but for this one */
		KERNEL3(__NR_fcntl, place.number, POOL_F_SETFD, 0);
	if (number < 0)
		number = place.number;
	if (type & POOL_NONBLOCK)
		KERNEL3(__NR_fcntl, number, POOL_F_SETFL, 2 /* O_RDWR */ | POOL_NONBLOCK);
	return (int)number;
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

/* Takes a socket, and orders more first if necessary. */
static int pool_get(struct pool *p, int type, int family)
{
	const struct board *b = shim_board();
	int number;

	if (b == NULL || atomic_load(&b->nested) || atomic_load(&b->traced))
		return -1;
	number = pool_take(p, type);
	if (number >= 0 || (atomic_load(&p->parked) & POOL_PLACES) != 0 ||
	    atomic_exchange(&p->filling, true))
		return number;
	if (!pool_fill(p, family, type & POOL_TYPE_MASK))
		atomic_store(&p->calls, POOL_PATIENCE - POOL_REPENTANCE);
	atomic_store(&p->filling, false);
	return pool_take(p, type);
}

/* Whether the parked sockets are this process's. */
static bool pool_is_ours(void)
{
	atomic_int *owner = atomic_load(&pool_owner);

	if (owner == NULL)
		return true;
	if (atomic_load(owner) == 0)
		shim_forked();
	return atomic_load(owner) == KERNEL0(__NR_getpid);
}

/* Notes that this thread is at the pools, in a place for pool_leave; false if it may not be. A
 * thread that is noted is in a signal handler, or has left by longjmp(3): it stays noted. */
static bool pool_enter(_Atomic(void *) **place)
{
	void *self = __builtin_thread_pointer(), *nobody = NULL;

	*place = NULL;
	for (int i = 0; i < POOL_USERS; i++)
		if (atomic_load_explicit(&pool_users[i], memory_order_relaxed) == self)
			return true;
	for (int i = 0; i < POOL_USERS && *place == NULL; i++, nobody = NULL)
		if (atomic_compare_exchange_strong(&pool_users[i], &nobody, self))
			*place = &pool_users[i];
	return *place != NULL;
}

/* A fork that did not wait any longer may have given the place to another thread. */
static void pool_leave(_Atomic(void *) *place)
{
	void *self = __builtin_thread_pointer();

	if (place != NULL)
		atomic_compare_exchange_strong(place, &self, NULL);
}

int shim_take_socket(int family, int type, int protocol)
{
	struct pool *p = pool_of(family, type, protocol);
	_Atomic(void *) *place;
	int number = -1;

	if (p == NULL || !pool_is_ours())
		return -1;
	if (atomic_load(&p->calls) < POOL_PATIENCE) {
		atomic_fetch_add(&p->calls, 1);
		return -1;
	}
	if (!pool_enter(&place))
		return -1;
	if (atomic_load(&pool_forks) == 0)
		number = pool_get(p, type, family);
	pool_leave(place);
	return number;
}

/* Closes the parked sockets of a pool. Returns whether there were any. */
static bool pool_drop(struct pool *p)
{
	struct pool_place place;
	bool dropped = false;

	while (pool_remove(p, &place)) {
		if (pool_is_there(&place)) {
			KERNEL1(__NR_close, place.number);
			dropped = true;
		}
	}
	return dropped;
}

bool shim_drop_sockets(void)
{
	bool dropped = false;

	if (!pool_is_ours())
		return false;
	for (int i = 0; i < 4; i++)
		dropped = pool_drop(&pools[i / 2][i % 2]) || dropped;
	return dropped;
}

void shim_before_fork(void)
{
	static const long pause[] = {0, POOL_WAIT_NS}; /* seconds, nanoseconds */
	int waits = POOL_WAITS;

	atomic_fetch_add(&pool_forks, 1);
	for (int i = 0; i < POOL_USERS; i++) {
		void *user = atomic_load(&pool_users[i]);

		if (user == NULL || user == __builtin_thread_pointer())
			continue;
		for (; atomic_load(&pool_users[i]) == user && waits > 0; waits--)
			KERNEL2(__NR_nanosleep, pause, NULL);
		if (waits == 0) /* it will never leave: once is enough */
			atomic_compare_exchange_strong(&pool_users[i], &user, NULL);
	}
}

void shim_after_fork(void)
{
	atomic_fetch_sub(&pool_forks, 1);
}

void shim_forked(void)
{
	atomic_int *owner = atomic_load(&pool_owner);

	atomic_store(&pool_forks, 0);
	for (int i = 0; i < POOL_USERS; i++)
		atomic_store(&pool_users[i], NULL);
	for (int i = 0; i < 4; i++) {
		struct pool *p = &pools[i / 2][i % 2];

		pool_drop(p);
		atomic_store(&p->calls, 0);
		atomic_store(&p->filling, false);
	}
	if (owner != NULL)
		atomic_store(owner, (int)KERNEL0(__NR_getpid));
}
