// SPDX-License-Identifier: Apache-2.0
/* Load on a container's own loopback, of which no call may fail. */
#include "attack.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* Dies unless a call's result is what it has to be. */
static void loopload_must(const char *what, bool good)
{
	if (!good)
		attack_die(what);
}

/*
 * An agent's children, which it leaves behind when it is killed, may hold a copy of a closed socket
 * for some milliseconds (docs/LIMITS.md). So binds of its port, and calls of a client that has to
 * be refused, are tried again.
 */
#define LOOPLOAD_TRIES	  10000
#define LOOPLOAD_PAUSE_US 1000

static int loopload_bind(int fd, const struct attack_addr *at)
{
	for (int tries = 0; bind(fd, &at->sa, at->len) < 0; tries++) {
		if (errno != EADDRINUSE || tries == LOOPLOAD_TRIES)
			return -1;
		usleep(LOOPLOAD_PAUSE_US);
	}
	return 0;
}

/* Whether a client hears that nobody is there. */
static bool loopload_refused(const struct attack_addr *at, int type)
{
	struct pollfd p = {.events = POLLIN};
	bool refused = false;

	for (int tries = 0; !refused && tries < LOOPLOAD_TRIES; tries++) {
		p.fd = socket(at->sa.sa_family, type | SOCK_CLOEXEC, 0);
		if (connect(p.fd, &at->sa, at->len) < 0 ||
		    (type == SOCK_DGRAM && send(p.fd, "x", 1, 0) == 1 && poll(&p, 1, 1) == 1 &&
		     recv(p.fd, &(char){0}, 1, 0) < 0)) {
			refused = true;
			loopload_must("be refused", errno == ECONNREFUSED);
		}
		close(p.fd);
		if (!refused)
			usleep(LOOPLOAD_PAUSE_US);
	}
	return refused;
}

/* One server, one client that talks to it, and one after it has gone. */
static void loopload_talk(struct attack_addr at, int type)
{
	int server = socket(at.sa.sa_family, type | SOCK_CLOEXEC, 0), one = 1, conn = server;
	int client = socket(at.sa.sa_family, type | SOCK_CLOEXEC, 0);
	struct linger reset = {.l_onoff = 1};
	struct attack_addr from = {.len = sizeof(from.in6)};
	char text[16] = "";
	ssize_t n;

	loopload_must("make sockets", server >= 0 && client >= 0);
	setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	loopload_must("bind", loopload_bind(server, &at) == 0);
	loopload_must("listen", type == SOCK_DGRAM || listen(server, 1) == 0);
	loopload_must("name", getsockname(server, &at.sa, &at.len) == 0);
	loopload_must("connect", connect(client, &at.sa, at.len) == 0);
	loopload_must("send", send(client, "question", 8, MSG_NOSIGNAL) == 8);
	if (type == SOCK_STREAM)
		loopload_must("accept", (conn = accept(server, NULL, NULL)) >= 0);
	n = recvfrom(conn, text, sizeof(text), 0, &from.sa, &from.len);
	if (n != 8)
		attack_note(at.text, "received %zd: %.16s", n, text);
	loopload_must("receive", n == 8);
	loopload_must("answer", (type == SOCK_STREAM
					 ? send(conn, "answer", 6, MSG_NOSIGNAL)
					 : sendto(conn, "answer", 6, 0, &from.sa, from.len)) == 6);
	loopload_must("hear", recv(client, text, sizeof(text), 0) == 6);
	setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(client);
	if (type == SOCK_STREAM)
		close(conn);
	close(server);
	loopload_must("be refused", loopload_refused(&at, type));
}

/*
 * "loop-load ADDR:PORT...": has servers of both kinds at the addresses, one after the other, until
 * its standard input ends. It says how often it has gone round. It dies of the first call that
 * fails.
 */
static int loopload(int argc, char **argv)
{
	struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN};

	for (int rounds = 1; poll(&end, 1, 0) == 0; rounds++) {
		for (int i = 0; i < argc; i++) {
			loopload_talk(attack_addr(argv[i]), SOCK_STREAM);
			loopload_talk(attack_addr(argv[i]), SOCK_DGRAM);
		}
		attack_note("rounds", "%d", rounds);
	}
	return 0;
}

static struct attack_addr loopload_at;
static atomic_bool loopload_over;

/* A server that opens and closes, with clients in its queue. */
static void *loopload_flicker(void *unused)
{
	while (!loopload_over) {
		int fd = socket(loopload_at.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		loopload_must("bind", loopload_bind(fd, &loopload_at) == 0);
		loopload_must("listen", listen(fd, 8) == 0);
		sched_yield();
		close(fd);
	}
	return unused;
}

/*
 * "loop-flicker ADDR:PORT COUNT": clients of a server that opens and closes say "stray". Goes on
 * until COUNT of them were connected and COUNT refused. Says which other errors there were.
 */
static int loopload_clients(int argc, char **argv)
{
	/* Decides nothing: a client that a full queue keeps waiting makes room for the next. */
	struct timeval pace = {.tv_usec = 300000};
	int connected = 0, refused = 0, wanted = atoi(argv[argc - 1]);
	pthread_t server;

	loopload_at = attack_addr(argv[0]);
	loopload_must("start thread", pthread_create(&server, NULL, loopload_flicker, NULL) == 0);
	while (connected < wanted || refused < wanted) {
		int fd = attack_socket(loopload_at.sa.sa_family, SOCK_STREAM);

		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &pace, sizeof(pace));
		if (connect(fd, &loopload_at.sa, loopload_at.len) == 0) {
			connected++;
			send(fd, "stray", 5, MSG_NOSIGNAL);
		} else if (errno == ECONNREFUSED) {
			refused++;
		} else if (errno != ECONNRESET && errno != EINPROGRESS) {
			/* not: the server has closed meanwhile, or its queue is full */
			attack_say("connect", -1);
		}
		close(fd);
	}
	loopload_over = true;
	pthread_join(server, NULL);
	attack_note("tried", "ok");
	return 0;
}

const struct attack_case loopload_cases[] = {
	{"loop-load", loopload},
	{"loop-flicker", loopload_clients},
	{0},
};
