// SPDX-License-Identifier: Apache-2.0
/*
 * Races with whoever looks at a call's arguments before the kernel does: another
 * thread changes the sockaddr, or puts another socket under the number, all the
 * time.
 */
#include "attack.h"

#include <pthread.h>
#include <stdatomic.h>

static struct {
	struct attack_addr good, bad;
	volatile struct attack_addr now; /* what the calls are given */
	atomic_bool stop;
	/* For swapped descriptors: */
	int number, own;
	atomic_int host;
} race;

static void *race_flip_address(void *arg)
{
	while (!atomic_load(&race.stop)) {
		/* What differs: the address and the port. */
		race.now.in.sin_port = race.bad.in.sin_port;
		race.now.in.sin_addr.s_addr = race.bad.in.sin_addr.s_addr;
		race.now.in.sin_addr.s_addr = race.good.in.sin_addr.s_addr;
		race.now.in.sin_port = race.good.in.sin_port;
	}
	return arg;
}

static const struct sockaddr *race_address(void)
{
	return (const struct sockaddr *)&race.now;
}

static long race_connect(void)
{
	int fd = attack_socket(AF_INET, SOCK_STREAM);
	long result = connect(fd, race_address(), sizeof(race.now.in));

	if (result == 0)
		send(fd, "race connect", 12, MSG_NOSIGNAL);
	close(fd);
	return result;
}

static long race_udp_connect(void)
{
	int fd = attack_socket(AF_INET, SOCK_DGRAM);
	long result = connect(fd, race_address(), sizeof(race.now.in));

	if (result == 0)
		send(fd, "race udp connect", 16, 0);
	close(fd);
	return result;
}

static long race_fastopen(void)
{
	int fd = attack_socket(AF_INET, SOCK_STREAM);
	long result = sendto(fd, "race fastopen", 13, MSG_FASTOPEN | MSG_NOSIGNAL, race_address(),
			     sizeof(race.now.in));

	close(fd);
	return result;
}

static long race_sendto(void)
{
	static int fd = -1;

	if (fd < 0)
		fd = attack_socket(AF_INET, SOCK_DGRAM);
	return sendto(fd, "race sendto", 11, 0, race_address(), sizeof(race.now.in));
}

static long race_sendmsg(void)
{
	static int fd = -1;
	struct iovec iov = {"race sendmsg", 12};
	struct msghdr msg = {.msg_name = (void *)race_address(),
			     .msg_namelen = sizeof(race.now.in),
			     .msg_iov = &iov,
			     .msg_iovlen = 1};

	if (fd < 0)
		fd = attack_socket(AF_INET, SOCK_DGRAM);
	return sendmsg(fd, &msg, 0);
}

/* The last 64 sockets stay bound, for the test to find. */
static long race_bind_type(int type)
{
	static int kept[64], next;
	int one = 1, fd = attack_socket(AF_INET, type);
	long result;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	result = bind(fd, race_address(), sizeof(race.now.in));
	if (type == SOCK_STREAM)
		listen(fd, 5);
	if (kept[next] > 0)
		close(kept[next]);
	kept[next] = fd;
	next = (next + 1) % 64;
	return result;
}

static long race_bind(void)
{
	return race_bind_type(SOCK_STREAM);
}

static long race_udp_bind(void)
{
	return race_bind_type(SOCK_DGRAM);
}

/* Puts the host's socket and one of the container's own under the same number. */
static void *race_flip_socket(void *arg)
{
	while (!atomic_load(&race.stop)) {
		dup2(atomic_load(&race.host), race.number);
		dup2(race.own, race.number);
	}
	return arg;
}

static void race_new_host(void)
{
	int old = race.host;

	race.host = attack_socket(AF_INET, SOCK_STREAM);
	if (old > 0)
		close(old);
}

static long race_dup_connect(void)
{
	long result = connect(race.number, &race.bad.sa, race.bad.len);

	if (result == 0)
		send(race.host, "race dup connect", 16, MSG_NOSIGNAL);
	race_new_host();
	return result;
}

static long race_dup_bind(void)
{
	long result = bind(race.number, &race.bad.sa, race.bad.len);

	listen(race.host, 5);
	race_new_host();
	return result;
}

static long race_dup_listen(void)
{
	static int kept[64], next;
	long result = listen(race.number, 5);

	if (!attack_listens(race.host))
		return result;
	if (kept[next] > 0)
		close(kept[next]);
	kept[next] = race.host;
	next = (next + 1) % 64;
	race.host = 0;
	race_new_host();
	return result;
}

static const struct race_kind {
	const char *name;
	long (*once)(void);
	bool sockets; /* what changes is the socket, not the address */
} race_kinds[] = {
	{"connect", race_connect, false},   {"udp-connect", race_udp_connect, false},
	{"fastopen", race_fastopen, false}, {"sendto", race_sendto, false},
	{"sendmsg", race_sendmsg, false},   {"bind", race_bind, false},
	{"udp-bind", race_udp_bind, false}, {"dup-connect", race_dup_connect, true},
	{"dup-bind", race_dup_bind, true},  {"dup-listen", race_dup_listen, true},
};

/* A socket of the container's own, without connecting it. */
static int race_own_socket(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(999)};
	int fd = attack_socket(AF_INET, SOCK_STREAM);

	attack_need("bind in own namespace", bind(fd, (struct sockaddr *)&a, sizeof(a)));
	return fd;
}

/* "race KIND ROUNDS GOOD BAD" */
static int race_run(int argc, char **argv)
{
	const struct race_kind *kind = race_kinds;
	int rounds = atoi(argv[1]), passed = 0;
	pthread_t thread;

	for (; argc == 4 && strcmp(kind->name, argv[0]) != 0; kind++)
		if (kind == &race_kinds[sizeof(race_kinds) / sizeof(race_kinds[0]) - 1])
			return 3;
	race.good = attack_addr(argv[2]);
	race.bad = attack_addr(argv[3]);
	memcpy((void *)&race.now, &race.good, sizeof(race.good));
	if (kind->sockets) {
		race.number = 100;
		race.own = race_own_socket();
		race_new_host();
		dup2(race.own, race.number);
	}
	pthread_create(&thread, NULL, kind->sockets ? race_flip_socket : race_flip_address, NULL);
	for (int i = 0; i < rounds; i++)
		passed += kind->once() >= 0;
	atomic_store(&race.stop, true);
	pthread_join(thread, NULL);
	attack_note("passed", "%s", passed > 0 ? "some" : "none");
	attack_hold();
	return 0;
}

const struct attack_case race_cases[] = {
	{"race", race_run},
	{0},
};
