// SPDX-License-Identifier: Apache-2.0
/*
 * The gate's services for the shim, asked for by others: sockets in batches, and
 * the board.
 */
#include "attack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/un.h>

#include "../../../../policy/c/board.h"
#include "../../../../shim/c/marks.h"

enum { PAIRS_TCP = AF_INET << 8 | SOCK_STREAM };

static long pairs_order(long number, long kind, long count)
{
	return syscall(SYS_socket, MARK_FAMILY, MARK_BATCH, number, kind, count, MARK_SHIM);
}

static void pairs_make(int *pair)
{
	attack_need("make pair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
}

/* Takes what was sent and returns how many descriptors there were. */
static int pairs_take(int from)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * 64)];
		struct cmsghdr align;
	} control;
	char bytes[16];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	struct cmsghdr *c;
	int count, number;

	if (recvmsg(from, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (c == NULL)
		return 0;
	count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	for (int i = 0; i < count; i++) {
		memcpy(&number, CMSG_DATA(c) + sizeof(int) * (size_t)i, sizeof(number));
		close(number);
	}
	return count;
}

/* Orders as the shim does. */
static void pairs_decent(const char *step)
{
	int pair[2];
	long count;

	pairs_make(pair);
	count = pairs_order(pair[1], PAIRS_TCP, 4);
	attack_note(step, "%ld of 4, %d came", count, pairs_take(pair[0]));
	close(pair[0]);
	close(pair[1]);
}

static void pairs_refused(const char *step, long number, long kind, long count)
{
	long result = pairs_order(number, kind, count);

	attack_say(step, result);
}

/* Numbers that are no end of a pair of ours. */
static void pairs_numbers(void)
{
	static const struct {
		const char *name;
		int family, type;
	} kinds[] = {
		{"TCP socket", AF_INET, SOCK_STREAM},	  {"UDP socket", AF_INET, SOCK_DGRAM},
		{"unconnected", AF_UNIX, SOCK_SEQPACKET}, {"unix stream", AF_UNIX, SOCK_STREAM},
		{"unix datagram", AF_UNIX, SOCK_DGRAM},
	};
	int file[2], fd;

	attack_need("make pipe", pipe(file));
	pairs_refused("refused: pipe", file[1], PAIRS_TCP, 4);
	pairs_refused("refused: closed", 999, PAIRS_TCP, 4);
	pairs_refused("refused: negative", -1, PAIRS_TCP, 4);
	pairs_refused("refused: huge", 1L << 40 | 999, PAIRS_TCP, 4);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		char step[64];

		snprintf(step, sizeof(step), "refused: %s", kinds[i].name);
		fd = (int)attack_need("make socket", socket(kinds[i].family, kinds[i].type, 0));
		pairs_refused(step, fd, PAIRS_TCP, 4);
		close(fd);
	}
	attack_need("make pair", socketpair(AF_UNIX, SOCK_STREAM, 0, file));
	pairs_refused("refused: stream pair", file[1], PAIRS_TCP, 4);
	attack_need("make pair", socketpair(AF_UNIX, SOCK_DGRAM, 0, file));
	pairs_refused("refused: datagram pair", file[1], PAIRS_TCP, 4);
	fd = open("/dev/null", O_RDWR | O_PATH);
	pairs_refused("refused: path", fd, PAIRS_TCP, 4);
}

static void pairs_counts(void)
{
	static const long counts[] = {0,	-1,	  MARK_BATCH_MAX + 1, 255,
				      1L << 31, 1L << 32, INT64_MIN};
	static const long kinds[] = {0,
				     -1,
				     AF_UNIX << 8 | SOCK_STREAM,
				     AF_INET << 8 | SOCK_RAW,
				     0xffff,
				     AF_INET << 8,
				     SOCK_STREAM};
	int pair[2];

	pairs_make(pair);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		pairs_refused("refused: count", pair[1], PAIRS_TCP, counts[i]);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		pairs_refused("refused: kind", pair[1], kinds[i], 4);
	for (long what = 0; what < 5; what++)
		if (what != MARK_BOARD && what != MARK_BATCH)
			attack_say("refused: service", syscall(SYS_socket, MARK_FAMILY, what,
							       pair[1], PAIRS_TCP, 4, MARK_SHIM));
	attack_note("sent to a refused one", "%d", pairs_take(pair[0]));
}

/* "pairs": each wrong order by itself, and decent ones in between. */
static int pairs_run(int argc, char **argv)
{
	int pair[2], one = 1;

	(void)argc, (void)argv;
	pairs_decent("decent 1");
	pairs_numbers();
	pairs_decent("decent 2");
	pairs_counts();
	pairs_decent("decent 3");
	pairs_make(pair);
	setsockopt(pair[0], SOL_SOCKET, SO_RCVBUF, &one, sizeof(one));
	setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &one, sizeof(one));
	attack_note("small buffer", "%s",
		    pairs_order(pair[1], PAIRS_TCP, 32) == pairs_take(pair[0]) ? "ok" : "lost");
	close(pair[0]); /* nobody is there */
	pairs_refused("refused: half closed", pair[1], PAIRS_TCP, 4);
	pairs_decent("decent 4");
	attack_say("socket", attack_socket(AF_INET, SOCK_STREAM));
	return 0;
}

/* "pair-of-other PATH": a socket that is connected to somebody else's server. */
static int pairs_other(int argc, char **argv)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), ends[2];

	strncpy(at.sun_path, argv[argc - 1], sizeof(at.sun_path) - 1);
	attack_need("connect", connect(fd, (struct sockaddr *)&at, sizeof(at)));
	pairs_refused("refused: other's server", fd, PAIRS_TCP, 4);
	/* Of a pair that its parent has made. */
	pairs_make(ends);
	if (fork() == 0) {
		pairs_refused("refused: parent's pair", ends[1], PAIRS_TCP, 4);
		_exit(0);
	}
	wait(NULL);
	pairs_decent("decent");
	attack_need("say that it is over", send(fd, "end", 3, 0));
	return 0;
}

/*
 * "pair-kept ADDR": orders that are never taken, in several processes. Others get
 * their sockets all the same, one by one.
 */
static int pairs_kept(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	int pair[2], got = 0, fd;

	for (int i = 0; i < 4; i++) {
		if (fork() != 0)
			continue;
		for (int k = 0; k < 50; k++) {
			pairs_make(pair);
			pairs_order(pair[1], PAIRS_TCP, 32);
		}
		attack_hold();
		_exit(0);
	}
	pairs_make(pair);
	pairs_order(pair[1], PAIRS_TCP, 32);
	for (int i = 0; i < 100; i++) {
		fd = attack_socket(to.sa.sa_family, SOCK_STREAM);
		got += connect(fd, &to.sa, to.len) == 0;
		close(fd);
	}
	attack_note("connections", "%d", got);
	attack_note("in vain", "%ld", pairs_order(pair[1], PAIRS_TCP, 32));
	attack_hold();
	while (wait(NULL) > 0)
		;
	return 0;
}

/* "orders COUNT": as fast as it can, with another thread that closes the pair. */
static atomic_int orders_number = -1;

static void *orders_closer(void *arg)
{
	for (;;)
		close(atomic_exchange(&orders_number, -1));
	return arg;
}

static int pairs_orders(int argc, char **argv)
{
	int pair[2], kinds[] = {PAIRS_TCP, AF_INET6 << 8 | SOCK_STREAM, AF_INET << 8 | SOCK_DGRAM};
	long served = 0;
	pthread_t thread;

	for (int i = 0; i < atoi(argv[argc - 1]); i++) {
		pairs_make(pair);
		if (i == atoi(argv[argc - 1]) / 2)
			pthread_create(&thread, NULL, orders_closer, NULL);
		if (i >= atoi(argv[argc - 1]) / 2) {
			int copy = fcntl(pair[1], F_DUPFD_CLOEXEC, 600);

			atomic_store(&orders_number, copy);
			served += pairs_order(copy, kinds[i % 3], 1 + i % 3) > 0;
			close(atomic_exchange(&orders_number, -1));
		} else {
			served += pairs_order(pair[1], kinds[i % 3], 1 + i % 3) > 0;
		}
		if (i % 7 != 0)
			pairs_take(pair[0]);
		close(pair[0]);
		close(pair[1]);
	}
	attack_note("served", "%s", served > 0 ? "some" : "none");
	attack_say("socket", attack_socket(AF_INET, SOCK_STREAM));
	attack_hold();
	_exit(0);
}

static void board_write(const char *how, int fd)
{
	char step[64], byte = 1;
	void *at;

	snprintf(step, sizeof(step), "%s: write", how);
	attack_say(step, pwrite(fd, &byte, 1, 0));
	snprintf(step, sizeof(step), "%s: shrink", how);
	attack_say(step, ftruncate(fd, 0));
	snprintf(step, sizeof(step), "%s: grow", how);
	attack_say(step, ftruncate(fd, 2 * BOARD_SIZE));
	snprintf(step, sizeof(step), "%s: punch", how);
	attack_say(step, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	snprintf(step, sizeof(step), "%s: zero", how);
	attack_say(step, fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096));
	snprintf(step, sizeof(step), "%s: map", how);
	at = mmap(NULL, BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	attack_say(step, at == MAP_FAILED ? -1 : 0);
	snprintf(step, sizeof(step), "%s: seal", how);
	attack_say(step, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	at = mmap(NULL, BOARD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	attack_need("map board", at == MAP_FAILED ? -1 : 0);
	snprintf(step, sizeof(step), "%s: unprotect", how);
	attack_say(step, mprotect(at, BOARD_SIZE, PROT_READ | PROT_WRITE));
	snprintf(step, sizeof(step), "%s: remove", how);
	attack_say(step, madvise(at, BOARD_SIZE, MADV_REMOVE));
	snprintf(step, sizeof(step), "%s: memory", how);
	attack_say(step, pwrite(open("/proc/self/mem", O_RDWR), &byte, 1, (off_t)(intptr_t)at));
}

/* All but what the gate counts: it does so when it has answered. */
static bool board_is_same(const char *before, const struct board *now)
{
	return memcmp(before, now, BOARD_COUNTERS) == 0 &&
	       memcmp(before + BOARD_RULES, (const char *)now + BOARD_RULES,
		      BOARD_SIZE - BOARD_RULES) == 0;
}

/* "board": every way to write to it. */
static int pairs_board(int argc, char **argv)
{
	int fd = (int)syscall(SYS_socket, MARK_FAMILY, MARK_BOARD, 0, 0, 0, MARK_SHIM);
	char before[BOARD_SIZE], path[64];
	const struct board *b;
	int again;

	(void)argc, (void)argv;
	attack_need("get board", fd);
	b = mmap(NULL, BOARD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	attack_need("map board", b == MAP_FAILED ? -1 : 0);
	attack_note("magic", "%s", b->magic == BOARD_MAGIC ? "ok" : "wrong");
	memcpy(before, b, sizeof(before));
	board_write("given", fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR);
	if (attack_say("opened again", again) >= 0)
		board_write("opened", again);
	again = open(path, O_RDWR | O_TRUNC);
	attack_say("truncated: open", again);
	attack_note("contents", "%s", board_is_same(before, b) ? "same" : "changed");
	return 0;
}

const struct attack_case pairs_cases[] = {
	{"pairs", pairs_run},	  {"pair-of-other", pairs_other}, {"pair-kept", pairs_kept},
	{"orders", pairs_orders}, {"board", pairs_board},	  {0},
};
