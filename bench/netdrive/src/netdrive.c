// SPDX-License-Identifier: Apache-2.0
/*
 * netdrive: the load driver of the benches.
 *
 *	netdrive server TEST ADDR PORT [-s SIZE] [-t LIMIT]
 *	netdrive client TEST ADDR PORT [-s SIZE] [-t SECONDS] [-w WARMUP]
 *	netdrive both TEST ADDR PORT [-s SIZE] [-t SECONDS] [-w WARMUP]
 *
 * TEST is one of
 *	tcp_stream		send as fast as possible, SIZE bytes per call
 *	tcp_rr			SIZE bytes there and back, on one connection
 *	tcp_crr			the same on a new connection each time
 *	udp_rr			as tcp_rr, on a connected socket
 *	udp_rr_unconnected	the same with sendto and recvfrom
 *
 * Theory of operation
 *
 * Sockets are plain and blocking and have no option set, so that what is
 * measured is what an unprepared program gets. The server serves one test on
 * one port, one peer after the other, in one thread, and is killed by its alarm
 * after LIMIT seconds. The client works for WARMUP seconds, notes clocks and
 * counters, works for SECONDS, notes them again, and prints one line of JSON.
 *
 * Who closes first in tcp_crr: the server, as web servers do; the client reads
 * until the end of the stream before it closes. The side that closes first
 * keeps the connection in TIME_WAIT for a minute. On the client that would use
 * up the ephemeral ports within two seconds. On the server it does no harm: a
 * SYN that reuses the client's port is accepted in TIME_WAIT because its
 * sequence number or timestamp is newer (RFC 9293 3.10.7.4, RFC 6191), and
 * connection tracking starts a new entry likewise. That holds while the same
 * client clock numbers all connections from an address, so give every bench
 * mode a server port of its own.
 *
 * Datagrams may be lost. An interval timer interrupts the call that waits for
 * an answer; after two ticks the request is sent again and counted in "lost".
 *No socket option is needed for that.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "count.h"

#define SIZE_MAX_BYTES	   (1 << 20)
#define RR_SIZE_MAX_BYTES  (1 << 16) /* fits into the socket buffers of both */
#define DATAGRAM_MAX_BYTES 1472	     /* of an Ethernet frame, over IPv4 */
#define BACKLOG		   512
#define ALARM_GRACE	   60	  /* seconds that a client may hang beyond its time */
#define TICK_US		   100000 /* two of them without an answer: it is lost */
#define TRIES		   300	  /* of a datagram: a minute without an answer */

struct test {
	const char *name;
	int type; /* of the socket */
	size_t size;
	size_t size_max;
	void (*serve)(int fd);
	void (*drive)(void);
};

static const struct test *test;
static struct sockaddr_storage addr;
static socklen_t addr_len;
static size_t size;
static double seconds;
static char buf[SIZE_MAX_BYTES], answer[DATAGRAM_MAX_BYTES];

static _Noreturn void netdrive_die(const char *what)
{
	fprintf(stderr, "netdrive: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Both return false at the end of the stream or when the peer is gone. */
static bool netdrive_read_all(int fd, size_t n)
{
	for (size_t got = 0; got < n;) {
		ssize_t r = read(fd, buf + got, n - got);

		if (r <= 0)
			return false;
		got += r;
	}
	return true;
}

static bool netdrive_write_all(int fd, size_t n)
{
	for (size_t put = 0; put < n;) {
		ssize_t w = write(fd, buf + put, n - put);

		if (w < 0)
			return false;
		put += w;
	}
	return true;
}

static int netdrive_client_socket(bool connected)
{
	uint64_t since = count_clock_ns();
	int fd = socket(addr.ss_family, test->type, 0);

	if (fd < 0)
		netdrive_die("socket");
	if (connected && connect(fd, (struct sockaddr *)&addr, addr_len) < 0)
		netdrive_die("connect");
	count_connect(since);
	return fd;
}

static void netdrive_drive_stream(void)
{
	int fd = netdrive_client_socket(true);
	uint64_t since;

	do {
		since = count_clock_ns();
		if (!netdrive_write_all(fd, size))
			netdrive_die("write");
	} while (count_op(since, size));
	count_report(test->name, size);
	shutdown(fd, SHUT_WR);
	/* The server says that it has read it all. A process between takes data for nobody, too. */
	if (!netdrive_read_all(fd, 1))
		netdrive_die("read");
	close(fd);
}

static void netdrive_serve_stream(int fd)
{
	while (read(fd, buf, sizeof(buf)) > 0)
		;
	netdrive_write_all(fd, 1);
}

static void netdrive_drive_rr(void)
{
	int fd = netdrive_client_socket(true);
	uint64_t since;

	do {
		since = count_clock_ns();
		if (!netdrive_write_all(fd, size))
			netdrive_die("write");
		if (!netdrive_read_all(fd, size))
			netdrive_die("read");
	} while (count_op(since, 2 * size));
	count_report(test->name, size);
	close(fd);
}

static void netdrive_serve_rr(int fd)
{
	while (netdrive_read_all(fd, size) && netdrive_write_all(fd, size))
		;
}

static void netdrive_drive_crr(void)
{
	uint64_t since;
	char end;
	int fd;

	do {
		since = count_clock_ns();
		fd = netdrive_client_socket(true);
		if (!netdrive_write_all(fd, size))
			netdrive_die("write");
		if (!netdrive_read_all(fd, size))
			netdrive_die("read");
		if (read(fd, &end, 1) != 0)
			netdrive_die("read end of stream");
		close(fd);
	} while (count_op(since, 2 * size));
	count_report(test->name, size);
}

static void netdrive_serve_crr(int fd)
{
	if (netdrive_read_all(fd, size))
		netdrive_write_all(fd, size);
}

static void netdrive_on_tick(int sig)
{
	(void)sig; /* interrupts recv, nothing else */
}

static void netdrive_start_ticks(void)
{
	const struct itimerval it = {
		.it_interval.tv_usec = TICK_US,
		.it_value.tv_usec = TICK_US,
	};
	struct sigaction sa = {.sa_handler = netdrive_on_tick}; /* no SA_RESTART */

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
}

/* Reads the answer to request number; false when it is taken for lost. */
static bool netdrive_answered(int fd, bool connected, char number)
{
	unsigned ticks = 0;
	struct sockaddr_storage from;
	socklen_t len;
	ssize_t n;

	for (;;) {
		len = sizeof(from);
		n = connected ? recv(fd, answer, size, 0)
			      : recvfrom(fd, answer, size, 0, (struct sockaddr *)&from, &len);
		if (n > 0 && answer[0] == number)
			return true;
		if (n < 0 && errno != EINTR)
			netdrive_die("receive");
		/* The first tick may have come right after the request. */
		if (n < 0 && ++ticks == 2)
			return false;
	}
}

/*
 * One request and its answer; to is NULL on a connected socket. The first byte
 * numbers the request, so that the late answer to one that was sent again is
 * not taken for the answer to the next.
 */
static void netdrive_datagram_rr(int fd, const struct sockaddr *to)
{
	static char number;
	ssize_t n;

	buf[0] = ++number;
	for (unsigned tries = 0; tries < TRIES; tries++) {
		n = to ? sendto(fd, buf, size, 0, to, addr_len) : send(fd, buf, size, 0);
		if (n < 0 && errno != EINTR)
			netdrive_die("send");
		if (netdrive_answered(fd, to == NULL, number))
			return;
		count_lost();
	}
	errno = ETIMEDOUT;
	netdrive_die("receive");
}

static void netdrive_drive_datagrams(const struct sockaddr *to)
{
	int fd = netdrive_client_socket(to == NULL);
	uint64_t since;

	netdrive_start_ticks();
	do {
		since = count_clock_ns();
		netdrive_datagram_rr(fd, to);
	} while (count_op(since, 2 * size));
	count_report(test->name, size);
	close(fd);
}

static void netdrive_drive_udp(void)
{
	netdrive_drive_datagrams(NULL);
}

static void netdrive_drive_udp_unconnected(void)
{
	netdrive_drive_datagrams((struct sockaddr *)&addr);
}

static void netdrive_serve_udp(int fd)
{
	struct sockaddr_storage from;
	socklen_t len;
	ssize_t n;

	for (;;) {
		len = sizeof(from);
		n = recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len);
		if (n >= 0)
			sendto(fd, buf, n, 0, (struct sockaddr *)&from, len);
	}
}

static int netdrive_open(void)
{
	int one = 1, fd = socket(addr.ss_family, test->type, 0);

	if (fd < 0)
		netdrive_die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&addr, addr_len) < 0)
		netdrive_die("bind");
	if (test->type == SOCK_STREAM && listen(fd, BACKLOG) < 0)
		netdrive_die("listen");
	return fd;
}

static _Noreturn void netdrive_server(int fd)
{
	struct sockaddr_storage from;
	socklen_t len;
	int c;

	signal(SIGPIPE, SIG_IGN);
	alarm(seconds);
	if (test->type == SOCK_DGRAM)
		test->serve(fd);
	for (;;) {
		len = sizeof(from); /* most servers want the name of their peer */
		c = accept(fd, (struct sockaddr *)&from, &len);
		if (c < 0)
			netdrive_die("accept");
		test->serve(c);
		close(c);
	}
}

/* A server that ends with this process. */
static void netdrive_serve_here(int fd)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		netdrive_die("fork");
	if (child == 0) {
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
			netdrive_die("prctl");
		seconds = 600;
		netdrive_server(fd);
	}
	close(fd);
}

static const struct test tests[] = {
	{"tcp_stream", SOCK_STREAM, 1 << 17, SIZE_MAX_BYTES, netdrive_serve_stream,
	 netdrive_drive_stream},
	{"tcp_rr", SOCK_STREAM, 1, RR_SIZE_MAX_BYTES, netdrive_serve_rr, netdrive_drive_rr},
	{"tcp_crr", SOCK_STREAM, 1, RR_SIZE_MAX_BYTES, netdrive_serve_crr, netdrive_drive_crr},
	{"udp_rr", SOCK_DGRAM, 1, DATAGRAM_MAX_BYTES, netdrive_serve_udp, netdrive_drive_udp},
	{"udp_rr_unconnected", SOCK_DGRAM, 1, DATAGRAM_MAX_BYTES, netdrive_serve_udp,
	 netdrive_drive_udp_unconnected},
};

static _Noreturn void netdrive_usage(void)
{
	fputs("usage: netdrive server|client|both "
	      "tcp_stream|tcp_rr|tcp_crr|udp_rr|udp_rr_unconnected ADDR PORT\n"
	      "       [-s SIZE] [-t SECONDS] [-w WARMUP]\n",
	      stderr);
	exit(2);
}

static void netdrive_parse_addr(const char *host, const char *port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&addr;

	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(port));
		addr_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(port));
		addr_len = sizeof(*v6);
	} else {
		netdrive_usage();
	}
}

static const struct test *netdrive_find(const char *name)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!strcmp(name, tests[i].name))
			return &tests[i];
	netdrive_usage();
}

int main(int argc, char **argv)
{
	bool serve = argc > 1 && !strcmp(argv[1], "server");
	bool both = argc > 1 && !strcmp(argv[1], "both");
	double warmup = 0;
	int opt;

	if (argc < 5 || (!serve && !both && strcmp(argv[1], "client")))
		netdrive_usage();
	test = netdrive_find(argv[2]);
	netdrive_parse_addr(argv[3], argv[4]);
	size = test->size;
	seconds = serve ? 600 : 1;
	optind = 5;
	while ((opt = getopt(argc, argv, "s:t:w:")) != -1) {
		if (opt == 's')
			size = strtoul(optarg, NULL, 10);
		else if (opt == 't')
			seconds = atof(optarg);
		else if (opt == 'w')
			warmup = atof(optarg);
		else
			netdrive_usage();
	}
	if (size < 1 || size > test->size_max || seconds <= 0 || warmup < 0)
		netdrive_usage();
	if (serve)
		netdrive_server(netdrive_open());
	if (both)
		netdrive_serve_here(netdrive_open());
	alarm(warmup + seconds + ALARM_GRACE);
	count_begin(warmup, seconds);
	test->drive();
	return 0;
}
