// SPDX-License-Identifier: Apache-2.0
/*
 * AF_GRAFT sockets (include/tsugiki/graft.h) whose program means no good: options
 * and names that the supervisor reads from where it should not, memory that
 * changes, more sockets than anybody needs, and destinations that no endpoint is for.
 */
#include "attack.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { GRAFT_FAMILY = 4, GRAFT_LEVEL = 254, GRAFT_NAME_MAX = 16 };

struct graft_name {
	sa_family_t family;
	char name[GRAFT_NAME_MAX];
};

static int graft_bind(int fd, const char *name)
{
	struct graft_name gr = {.family = GRAFT_FAMILY};

	memcpy(gr.name, name, strnlen(name, sizeof(gr.name)));
	return bind(fd, (struct sockaddr *)&gr, sizeof(gr));
}

static int graft_socket(int type)
{
	return (int)attack_need("make AF_GRAFT socket",
				socket(GRAFT_FAMILY, type | SOCK_CLOEXEC, 0));
}

/*
 * graft-hostile ENDPOINT: each call with each odd pointer and length. The pages: one
 * of a file that can be read only, one that can be written, and none behind it.
 */
static int graft_hostile(int argc, char **argv)
{
	static const int options[] = {1, 2, 3, 4, 5, 6, -1};
	static const int lengths[] = {0, 1, 3, 4, 11, 12, 13, 128, 129, 4096, 0x7fffffff, -1};
	char *pages =
		mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *pointers[] = {NULL,
			    (char *)1,
			    (char *)-1,
			    (char *)-4096,
			    (char *)(1ul << 62),
			    (char *)(1ul << 47),
			    pages,
			    pages + 4096,
			    pages + 2 * 4096 - 2,
			    pages + 2 * 4096};
	const size_t n = sizeof(pointers) / sizeof(pointers[0]);
	long calls = 0;

	(void)argc;
	/* This program's own file, which begins with 0x7f. */
	if (mmap(pages, 4096, PROT_READ, MAP_SHARED | MAP_FIXED,
		 open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 0) == MAP_FAILED)
		attack_die("map file");
	attack_need("protect", mprotect(pages + 2 * 4096, 4096, PROT_NONE));
	for (int bound = 0; bound < 2; bound++) {
		int fd = graft_socket(SOCK_STREAM);

		if (bound)
			attack_need("bind", graft_bind(fd, argv[0]));
		for (size_t i = 0; i < n; i++) {
			for (size_t j = 0; j < sizeof(lengths) / sizeof(lengths[0]); j++) {
				for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
					setsockopt(fd, GRAFT_LEVEL, options[k], pointers[i],
						   (socklen_t)lengths[j]);
					getsockopt(fd, GRAFT_LEVEL, options[k], pointers[i],
						   (socklen_t *)pointers[(i + j) % n]);
					calls += 2;
				}
				syscall(SYS_getsockname, fd, pointers[i], pointers[(i + j) % n]);
				syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_KEEPIDLE, pointers[i],
					lengths[j]);
				syscall(SYS_bind, fd, pointers[i], lengths[j]);
				calls += 3;
			}
		}
		close(fd);
	}
	attack_note("calls", "%ld", calls);
	attack_note("file", "%s", memcmp(pages, "\177ELF", 4) == 0 ? "unchanged" : "changed");
	return 0;
}

static atomic_bool graft_over;

struct graft_flip {
	char *at;
	const char *one, *other;
	size_t size;
};

static void *graft_flip(void *arg)
{
	struct graft_flip *f = arg;

	while (!atomic_load(&graft_over)) {
		memcpy(f->at, f->one, f->size);
		memcpy(f->at, f->other, f->size);
	}
	return NULL;
}

/*
 * graft-flip ENDPOINT ADDR: while another thread changes the name between that of an
 * endpoint and one that there is not, or the option between a harmless one and
 * SO_MARK. Each socket has to be one or the other.
 */
static int graft_flips(int argc, char **argv)
{
	struct {
		int level, name;
		unsigned int length;
		int value;
	} good = {SOL_SOCKET, SO_KEEPALIVE, 4, 1}, bad = {SOL_SOCKET, SO_MARK, 4, 77},
	  option = good;
	struct graft_name name = {.family = GRAFT_FAMILY};
	char yes[GRAFT_NAME_MAX] = "", no[GRAFT_NAME_MAX] = "nosuch";
	struct graft_flip flips[] = {
		{name.name, yes, no, sizeof(name.name)},
		{(char *)&option, (char *)&good, (char *)&bad, sizeof(option)},
	};
	pthread_t threads[2];
	int bound = 0, marked = 0;

	(void)argc;
	memcpy(yes, argv[0], strnlen(argv[0], sizeof(yes)));
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, graft_flip, &flips[i]);
	for (int i = 0; i < 400; i++) {
		int fd = graft_socket(SOCK_STREAM), mark = 0;
		socklen_t length = sizeof(mark);

		if (bind(fd, (struct sockaddr *)&name, sizeof(name)) == 0) {
			bound++;
			setsockopt(fd, GRAFT_LEVEL, 4, &option, sizeof(option));
			getsockopt(fd, SOL_SOCKET, SO_MARK, &mark, &length);
			marked += mark != 0;
		} else if (errno != ENOENT) {
			attack_say("bind", -1);
		}
		close(fd);
	}
	atomic_store(&graft_over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	attack_note("bound", "%s", bound > 0 ? "some" : "none");
	attack_note("marked", "%d", marked);
	return 0;
}

/* graft-many NUMBER ENDPOINT: as many sockets, half of them with delayed options. */
static int graft_many(int argc, char **argv)
{
	int number = atoi(argv[0]), one = 1, last = -1;
	struct rlimit limit;

	(void)argc;
	attack_need("read limit", getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = (rlim_t)number + 100;
	attack_need("raise limit", setrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < number; i++) {
		last = graft_socket(i % 3 ? SOCK_STREAM : SOCK_DGRAM);
		if (i % 2) {
			setsockopt(last, GRAFT_LEVEL, 1, &one, sizeof(one));
			setsockopt(last, IPPROTO_IP, IP_TTL, &one, sizeof(one));
		}
	}
	attack_say("sockets", 0);
	attack_say("bind the last", graft_bind(last, argv[1]));
	for (;;) {
		int fd = socket(GRAFT_FAMILY, SOCK_STREAM, 0);

		if (fd < 0) {
			attack_say("one more", -1);
			break;
		}
	}
	return 0;
}

/* graft-reach ENDPOINT ADDR...: from sockets that are bound to the endpoint. */
static int graft_reach(int argc, char **argv)
{
	int one = 1;

	for (int i = 1; i < argc; i++) {
		struct attack_addr to = attack_addr(argv[i]);
		char what[128];
		int tcp = graft_socket(SOCK_STREAM), udp = graft_socket(SOCK_DGRAM),
		    connected = graft_socket(SOCK_DGRAM), again = graft_socket(SOCK_STREAM);
		int all[] = {tcp, udp, connected, again};

		for (int j = 0; j < 4; j++) {
			attack_need("bind", graft_bind(all[j], argv[0]));
			setsockopt(all[j], SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
		}
		snprintf(what, sizeof(what), "tcp connect %s", to.text);
		if (attack_say(what, connect(tcp, &to.sa, to.len)) == 0)
			(void)!write(tcp, what, strlen(what));
		snprintf(what, sizeof(what), "udp sendto %s", to.text);
		attack_say(what, sendto(udp, what, strlen(what), 0, &to.sa, to.len));
		snprintf(what, sizeof(what), "udp connect %s", to.text);
		if (attack_say(what, connect(connected, &to.sa, to.len)) == 0)
			(void)!write(connected, what, strlen(what));
		snprintf(what, sizeof(what), "tcp fastopen %s", to.text);
		attack_say(what, sendto(again, what, strlen(what), MSG_FASTOPEN, &to.sa, to.len));
		attack_unspec(again);
		snprintf(what, sizeof(what), "tcp reconnect %s", to.text);
		if (attack_say(what, connect(again, &to.sa, to.len)) == 0)
			(void)!write(again, what, strlen(what));
		for (int j = 0; j < 4; j++)
			close(all[j]);
	}
	return 0;
}

/* graft-names ENDPOINT...: sockets of each kind at each of the endpoints. */
static int graft_names(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		int tcp = graft_socket(SOCK_STREAM), udp = graft_socket(SOCK_DGRAM);

		attack_note("endpoint", "%s", argv[i]);
		attack_say("tcp bind", graft_bind(tcp, argv[i]));
		attack_say("udp bind", graft_bind(udp, argv[i]));
		close(tcp);
		close(udp);
	}
	return 0;
}

/*
 * graft-raw ENDPOINT ADDR: what a bound socket could do by itself: bind elsewhere, and
 * listen after it has connected to ADDR, was reset and has lost its port.
 */
static int graft_raw(int argc, char **argv)
{
	struct attack_addr other = attack_addr("0.0.0.0:9091"), to = attack_addr(argv[1]);
	int fd = graft_socket(SOCK_STREAM);

	(void)argc;
	attack_need("bind", graft_bind(fd, argv[0]));
	attack_say("bind elsewhere", bind(fd, &other.sa, other.len));
	attack_say("connect", connect(fd, &to.sa, to.len));
	attack_unspec(fd);
	attack_say("bind elsewhere after a reset", bind(fd, &other.sa, other.len));
	attack_say("listen after a reset", listen(fd, 1));
	attack_hold();
	return 0;
}

const struct attack_case graft_cases[] = {
	{"graft-hostile", graft_hostile},
	{"graft-flip", graft_flips},
	{"graft-many", graft_many},
	{"graft-reach", graft_reach},
	{"graft-raw", graft_raw},
	{"graft-names", graft_names},
	{NULL, NULL},
};
