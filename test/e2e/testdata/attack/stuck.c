// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that let those wait who serve them: with memory that is never there,
 * and by stopping them.
 */
#include "attack.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "../../../../shim/c/marks.h"

/* A page that nobody has filled. FD gets the userfaultfd that fills it. */
static void *stuck_page_of(int *fd)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register r = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*fd = (int)attack_need("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC));
	attack_need("userfaultfd", ioctl(*fd, UFFDIO_API, &api));
	r.range.start = (uintptr_t)page;
	r.range.len = 4096;
	attack_need("userfaultfd", ioctl(*fd, UFFDIO_REGISTER, &r));
	return page;
}

/* A page that nobody ever fills. */
static void *stuck_page(void)
{
	int fd;

	return stuck_page_of(&fd);
}

static void *stuck_connect(void *page)
{
	connect(attack_socket(AF_INET, SOCK_STREAM), page, sizeof(struct sockaddr_in));
	return NULL;
}

static void *stuck_bind(void *page)
{
	bind(attack_socket(AF_INET, SOCK_STREAM), page, sizeof(struct sockaddr_in));
	return NULL;
}

/*
 * "memory THREADS ADDR": that many threads wait for ever in connect or bind, and
 * another one makes connections.
 */
static int stuck_memory(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	void *page = stuck_page();
	pthread_t thread;

	for (int i = 0; i < atoi(argv[0]); i++)
		pthread_create(&thread, NULL, i % 2 ? stuck_bind : stuck_connect, page);
	usleep(100000);
	for (int i = 0; i < 20; i++) {
		int fd = socket(to.sa.sa_family, SOCK_STREAM, 0);

		attack_say("connect", connect(fd, &to.sa, to.len));
		close(fd);
	}
	_exit(0);
}

static int stuck_listener;

static void *stuck_accept(void *length)
{
	struct sockaddr_in from;

	attack_say("accept", accept(stuck_listener, (struct sockaddr *)&from, length));
	return NULL;
}

/*
 * "stuck-accept PORT": a thread waits in accept(2), with memory that is there only when whoever has
 * served the thread was replaced.
 */
static int stuck_accepts(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
	static socklen_t octets[4096 / sizeof(socklen_t)] = {sizeof(at)};
	struct uffdio_copy fill = {.src = (uintptr_t)octets, .len = sizeof(octets)};
	socklen_t length = sizeof(at);
	struct uffd_msg fault;
	pthread_t thread;
	void *page;
	int fd;

	stuck_listener = attack_socket(AF_INET, SOCK_STREAM);
	attack_need("bind", bind(stuck_listener, (struct sockaddr *)&at, sizeof(at)));
	attack_need("listen", listen(stuck_listener, 1));
	page = stuck_page_of(&fd);
	pthread_create(&thread, NULL, stuck_accept, page);
	attack_need("page fault", read(fd, &fault, sizeof(fault)));
	/* Somebody else answers these. */
	for (int i = 0; i < 10; i++)
		attack_need("name", getsockname(stuck_listener, (struct sockaddr *)&at, &length));
	fill.dst = (uintptr_t)page;
	attack_say("fill", ioctl(fd, UFFDIO_COPY, &fill));
	pthread_join(thread, NULL);
	return 0;
}

static int stuck_graft_socket;
static char *stuck_there; /* a page that nobody ever fills */

static void *stuck_graft(void *which)
{
	const int level = 254, transparent = 4, result = 3;

	switch ((uintptr_t)which % 3) {
	case 0:
		setsockopt(stuck_graft_socket, level, transparent, stuck_there, 128);
		break;
	case 1:
		getsockopt(stuck_graft_socket, level, result, stuck_there + 64,
			   (socklen_t *)stuck_there);
		break;
	default:
		getsockname(stuck_graft_socket, (struct sockaddr *)(stuck_there + 64),
			    (socklen_t *)stuck_there);
	}
	return NULL;
}

/*
 * "graft-memory THREADS ENDPOINT": that many threads wait for ever in calls on an
 * AF_GRAFT socket, and another one uses it.
 */
static int stuck_graft_memory(int argc, char **argv)
{
	struct {
		sa_family_t family;
		char name[16];
	} name = {.family = 4};
	pthread_t thread;
	int one = 1;

	(void)argc;
	memcpy(name.name, argv[1], strnlen(argv[1], sizeof(name.name)));
	stuck_there = stuck_page();
	stuck_graft_socket = (int)attack_need("make socket", socket(4, SOCK_STREAM, 0));
	for (long i = 0; i < atoi(argv[0]); i++)
		pthread_create(&thread, NULL, stuck_graft, (void *)i);
	usleep(100000);
	attack_say("set", setsockopt(stuck_graft_socket, 254, 1, &one, sizeof(one)));
	attack_say("bind", bind(stuck_graft_socket, (struct sockaddr *)&name, sizeof(name)));
	attack_say("listen", listen(stuck_graft_socket, 1));
	_exit(0);
}

/*
 * "stuck-orders TRIES": orders sockets that it does not take, and lets whoever has
 * served it wait for ever, so that the next order meets somebody else.
 */
static int stuck_orders(int argc, char **argv)
{
	void *page = stuck_page();
	long under_way = 0;
	pthread_t thread;

	for (int i = 0; i < atoi(argv[argc - 1]); i++) {
		long sent = 0;
		int pair[2];

		attack_need("make pair", socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
		sent = syscall(SYS_socket, MARK_FAMILY, MARK_BATCH, pair[1],
			       AF_INET << 8 | SOCK_STREAM, MARK_BATCH_MAX, MARK_SHIM);
		under_way += sent > 0 ? sent : 0;
		pthread_create(&thread, NULL, stuck_connect, page);
		close(attack_socket(AF_INET, SOCK_STREAM)); /* when another has taken over */
	}
	attack_note("under way", "%ld", under_way);
	_exit(0);
}

/* Calls of which each needs somebody else. */
static _Noreturn void stuck_calls(const struct attack_addr *to)
{
	struct attack_addr own = {.len = sizeof(own.in)};
	int fd;

	own.in.sin_family = AF_INET;
	for (;;) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		own.in.sin_port = htons((uint16_t)(1024 + fd % 30000));
		bind(fd, &own.sa, own.len);
		connect(fd, &to->sa, to->len);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		listen(fd, 1);
	}
}

/*
 * "orphan memory|stopped|limited ADDR": stops those who serve us, or takes the
 * files from them, leaves a child that calls them for ever, and ends.
 */
static int stuck_orphan(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	bool stop = strcmp(argv[0], "stopped") == 0, limit = strcmp(argv[0], "limited") == 0;
	struct rlimit none = {0, 4096};
	pid_t pids[17];
	int count = attack_helpers(pids, 16);

	pids[count] = getppid();
	for (int i = 0; i < count && stop; i++)
		kill(pids[i], SIGSTOP);
	for (int i = 0; i <= count && limit; i++)
		prlimit(pids[i], RLIMIT_NOFILE, &none, NULL);
	if (fork() == 0) {
		setsid();
		if (stop || limit)
			stuck_calls(&to);
		stuck_connect(stuck_page());
	}
	usleep(500000);
	attack_note("end", "ok");
	return 0;
}

const struct attack_case stuck_cases[] = {
	{"memory", stuck_memory},	 {"graft-memory", stuck_graft_memory},
	{"orphan", stuck_orphan},	 {"stuck-orders", stuck_orders},
	{"stuck-accept", stuck_accepts}, {0},
};
