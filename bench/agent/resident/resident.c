// SPDX-License-Identifier: Apache-2.0
/*
 * resident: what runs in the containers of bench/agent.
 *
 *	resident serve PORT		listens, and takes what connects
 *	resident bind PORT		makes a listening socket, again and again
 *	resident connect ADDR PORT	makes a connection, again and again
 *
 * It says "ready" when it does what it is for. Whoever does something again and
 * again pauses between two times. Asked by a byte on standard input, it says how
 * long the longest has taken since the last question, in microseconds, and how
 * often it was done. A signal would interrupt what is measured.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_US 1000

static struct sockaddr_in addr = {.sin_family = AF_INET};

static _Noreturn void resident_die(const char *what)
{
	fprintf(stderr, "resident: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void resident_say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static bool resident_asked(void)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;

	return poll(&in, 1, 0) == 1 && read(STDIN_FILENO, &byte, 1) == 1;
}

static int resident_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		resident_die("socket");
	return fd;
}

static int resident_listen(void)
{
	int fd = resident_socket();

	/* A child of an agent that was killed may hold the port for a moment (docs/LIMITS.md):
	 * that is part of how long the call takes. */
	while (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		if (errno != EADDRINUSE)
			resident_die("bind");
	if (listen(fd, 16) < 0)
		resident_die("listen");
	return fd;
}

static void resident_bind(void)
{
	close(resident_listen());
}

static void resident_connect(void)
{
	/* Reset, not closed: else connections in TIME_WAIT would use up the ports. */
	const struct linger now = {.l_onoff = 1};
	int fd = resident_socket();

	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		resident_die("connect");
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
}

static _Noreturn void resident_serve(void)
{
	int fd = resident_listen();

	resident_say("ready");
	for (;;)
		close(accept(fd, NULL, NULL));
}

static uint64_t resident_clock_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static _Noreturn void resident_repeat(void (*act)(void))
{
	uint64_t since, took, longest = 0, times = 0;
	char line[64];

	act();
	resident_say("ready");
	for (;;) {
		since = resident_clock_us();
		act();
		took = resident_clock_us() - since;
		longest = took > longest ? took : longest;
		times++;
		if (resident_asked()) {
			snprintf(line, sizeof(line), "%llu %llu", (unsigned long long)longest,
				 (unsigned long long)times);
			resident_say(line);
			longest = times = 0;
		}
		usleep(PAUSE_US);
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "connect") &&
	    inet_pton(AF_INET, argv[2], &addr.sin_addr) == 1) {
		addr.sin_port = htons(atoi(argv[3]));
		resident_repeat(resident_connect);
	}
	if (argc == 3) {
		addr.sin_port = htons(atoi(argv[2]));
		if (!strcmp(argv[1], "serve"))
			resident_serve();
		if (!strcmp(argv[1], "bind"))
			resident_repeat(resident_bind);
	}
	fprintf(stderr, "usage: resident serve PORT | bind PORT | connect ADDR PORT\n");
	return 2;
}
