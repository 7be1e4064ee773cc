/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what accept(2) answers: how much of an address it writes, what it says of bad pointers
 * and of sockets that are no listeners, and how a call that waits ends.
 *
 *	accepts NAME PORT AT [races]
 *
 * It serves port AT. At port PORT of host NAME somebody makes so many connections as the octet that
 * it gets, and answers when they are there.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILL  0xa5
#define CROWD 20

static int dialer, port;

static void dial(unsigned char count)
{
	unsigned char answer;

	if (write(dialer, &count, 1) != 1 || read(dialer, &answer, 1) != 1)
		err(1, "ask the dialer");
	if (answer != count)
		printf("%d of %d connections\n", answer, count);
}

static int listener(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, CROWD))
		err(1, "listen");
	return fd;
}

static void result(const char *what, long got)
{
	if (got < 0)
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: ok\n", what);
}

/* Accepts a connection with the whole name, and closes it. */
static void accepted(const char *what, int fd)
{
	struct sockaddr_in from = {0};
	socklen_t len = sizeof(from);
	int c = accept(fd, (struct sockaddr *)&from, &len);

	if (c < 0) {
		result(what, c);
		return;
	}
	printf("%s: %u octets, family %d, %s\n", what, len, from.sin_family,
	       inet_ntoa(from.sin_addr));
	close(c);
}

static void lengths(int fd)
{
	static const socklen_t lens[] = {0, 1, 2, 8, 16, 28, 128};

	dial(sizeof(lens) / sizeof(lens[0]));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		unsigned char octets[160];
		socklen_t len = lens[i];
		int touched = sizeof(octets), c;

		memset(octets, FILL, sizeof(octets));
		c = accept(fd, (struct sockaddr *)octets, &len);
		while (touched > 0 && octets[touched - 1] == FILL)
			touched--;
		printf("%u of %u octets, %s\n", len, lens[i],
		       touched <= (int)lens[i] && touched <= 16 ? "within them" : "behind them");
		close(c);
	}
}

static void flags_are(const char *what, int c)
{
	printf("%s: %s, %s\n", what, fcntl(c, F_GETFD) & FD_CLOEXEC ? "close-on-exec" : "kept",
	       fcntl(c, F_GETFL) & O_NONBLOCK ? "does not wait" : "waits");
	close(c);
}

static void flags(int fd)
{
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	struct sockaddr *at = (struct sockaddr *)&from;

	dial(3);
	flags_are("accept", accept(fd, at, &len));
	flags_are("close-on-exec", accept4(fd, at, &len, SOCK_CLOEXEC));
	flags_are("nonblock", accept4(fd, at, &len, SOCK_NONBLOCK));
	result("unknown flag", accept4(fd, at, &len, 1));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	result("nobody there", accept(fd, at, &len));
	dial(1);
	accepted("somebody there", fd);
	fcntl(fd, F_SETFL, 0);
}

/* A connection that cannot be handed over is lost, and no descriptor is left. */
static void bad_pointers(int fd)
{
	struct sockaddr_in from;
	struct sockaddr *at = (struct sockaddr *)&from, *nowhere = (struct sockaddr *)8;
	socklen_t len = sizeof(from), negative = -1, none = 0;
	int next = dup(fd);

	close(next);
	dial(5);
	result("address unmapped", accept(fd, nowhere, &len));
	result("length unmapped", accept(fd, at, (socklen_t *)8));
	result("length negative", accept(fd, at, &negative));
	printf("the next descriptor is %s\n", dup(fd) == next ? "free" : "taken");
	close(next);
	result("no room, address unmapped", accept(fd, nowhere, &none));
	close(next);
	result("no address, length unmapped", accept(fd, NULL, (socklen_t *)8));
	close(next);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	result("nobody is left", accept(fd, at, &len));
	fcntl(fd, F_SETFL, 0);
}

static void no_listeners(void)
{
	int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0), ends[2];

	if (pipe(ends))
		err(1, "pipe");
	accepted("a new socket", tcp);
	accepted("a socket that is connected", dialer);
	accepted("UDP", udp);
	accepted("a pipe", ends[0]);
	accepted("nothing", 1000);
	close(tcp);
	close(udp);
}

static pid_t waits_as;

static void *wait_in_accept(void *arg)
{
	__atomic_store_n(&waits_as, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	accepted("it waits", *(int *)arg);
	return NULL;
}

/* Returns when a thread is in accept(2). What another thread asks then, about a socket, is answered
 * after the thread's call has begun. */
static void await_accept(pid_t *as, int fd)
{
	char path[64], text[64] = "";
	struct sockaddr_in name;
	socklen_t len = sizeof(name);
	pid_t thread;

	while ((thread = __atomic_load_n(as, __ATOMIC_SEQ_CST)) == 0)
		sched_yield();
	snprintf(path, sizeof(path), "/proc/%d/syscall", thread);
	while (atoi(text) != SYS_accept) {
		int file = open(path, O_RDONLY);
		ssize_t got = file < 0 ? -1 : read(file, text, sizeof(text) - 1);

		if (got < 0)
			err(1, "%s", path);
		text[got] = '\0';
		if (strncmp(text, "running", 7) == 0)
			text[0] = '\0';
		close(file);
		sched_yield();
	}
	if (syscall(SYS_getsockname, fd, &name, &len)) /* which no library answers */
		err(1, "getsockname");
	*as = 0;
}

static pthread_t start_waiting(int *fd)
{
	pthread_t t;

	if (pthread_create(&t, NULL, wait_in_accept, fd))
		errx(1, "pthread_create");
	await_accept(&waits_as, *fd);
	return t;
}

static void waits(int fd)
{
	pthread_t t = start_waiting(&fd);
	int own;

	dial(1);
	pthread_join(t, NULL);
	t = start_waiting(&fd);
	if (shutdown(fd, SHUT_RD))
		err(1, "shutdown");
	pthread_join(t, NULL);
	close(fd);

	own = fd = listener();
	t = start_waiting(&own);
	/* A listener lives on while a call waits. */
	printf("closed\n");
	fflush(stdout);
	close(fd);
	dial(1);
	pthread_join(t, NULL);
	dial(1); /* which nobody hears */
}

/* A call has the limit that its listener had when the call began. The long one, in nanoseconds, is
 * 20992 in 64 bits: if it is over, it is over before the short one. */
static void timeout(int fd)
{
	struct timeval limit = {.tv_usec = 150000}, none = {0}, long_limit = {9463179709813, 0};
	struct timespec began, ended;
	pthread_t t;
	long ms;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &long_limit, sizeof(long_limit));
	t = start_waiting(&fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	clock_gettime(CLOCK_MONOTONIC, &began);
	accepted("SO_RCVTIMEO", fd);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	ms = (ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000;
	printf("it has %s\n", ms >= 140 ? "waited" : "not waited");
	dial(1);
	pthread_join(t, NULL);
	dial(1);
	accepted("in time", fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
}

static struct {
	int fd;
	pthread_mutex_t lock;
	int count, families, ports;
	bool seen[65536];
} crowd = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *wait_in_crowd(void *arg)
{
	struct sockaddr_in from = {0}, name = {0};
	socklen_t len = sizeof(from), name_len = sizeof(name);
	int c = accept(crowd.fd, (struct sockaddr *)&from, &len);

	if (c < 0 || getpeername(c, (struct sockaddr *)&name, &name_len))
		err(1, "accept");
	pthread_mutex_lock(&crowd.lock);
	crowd.count++;
	crowd.families += from.sin_family == AF_INET && memcmp(&from, &name, sizeof(from)) == 0;
	crowd.ports += !crowd.seen[from.sin_port];
	crowd.seen[from.sin_port] = true;
	pthread_mutex_unlock(&crowd.lock);
	return arg;
}

static void many(int fd)
{
	pthread_t threads[CROWD];

	crowd.fd = fd;
	for (int i = 0; i < CROWD; i++)
		if (pthread_create(&threads[i], NULL, wait_in_crowd, NULL))
			errx(1, "pthread_create");
	dial(CROWD);
	for (int i = 0; i < CROWD; i++)
		pthread_join(threads[i], NULL);
	printf("%d threads have %d connections, %d with the peer's name\n", crowd.count,
	       crowd.ports, crowd.families);
}

static bool stop;

static void *change(void *arg)
{
	socklen_t *len = arg;

	for (unsigned int i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++)
		__atomic_store_n(len, i % 3 == 0 ? 128 : i % 3 == 1 ? 16 : 0, __ATOMIC_RELAXED);
	return NULL;
}

/* Another thread changes the length while accept(2) reads and writes it. */
static void races(int fd)
{
	unsigned char octets[160];
	socklen_t len = 0;
	int behind = 0, others = 0;
	sa_family_t family;
	pthread_t t;

	if (pthread_create(&t, NULL, change, &len))
		errx(1, "pthread_create");
	memset(octets, FILL, sizeof(octets));
	for (int i = 0; i < 5; i++) {
		dial(CROWD);
		for (int k = 0; k < CROWD; k++) {
			int c = accept(fd, (struct sockaddr *)octets, &len);

			if (c < 0)
				err(1, "accept");
			memcpy(&family, octets, sizeof(family));
			others += family != AF_INET && octets[0] != FILL;
			close(c);
		}
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	for (size_t i = sizeof(struct sockaddr_in); i < sizeof(octets); i++)
		behind += octets[i] != FILL;
	printf("%d octets behind the name are changed, %d names are of other families\n", behind,
	       others);
}

static void on_signal(int sig)
{
	(void)sig;
}

/* A process that is killed while it waits leaves the port. A signal interrupts a call that waits.
 */
static void killed(int fd)
{
	pid_t *child = mmap(NULL, sizeof(*child), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct sigaction sa = {.sa_handler = on_signal};
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		__atomic_store_n(child, getpid(), __ATOMIC_SEQ_CST);
		accepted("the child", fd);
		fflush(stdout);
		_exit(0);
	}
	await_accept(child, fd);
	close(fd);
	kill(pid, SIGKILL);
	if (waitpid(pid, &status, 0) != pid)
		err(1, "wait for the child");
	printf("the child %s\n", WIFSIGNALED(status) ? "is killed" : "has ended");
	fd = listener();
	dial(1);
	accepted("the port again", fd);

	sigaction(SIGALRM, &sa, NULL);
	ualarm(20000, 20000);
	accepted("a signal", fd);
	ualarm(0, 0);
	dial(1);
	accepted("after a signal", fd);
	close(fd);
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *to;
	int fd;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 4 || getaddrinfo(argv[1], argv[2], &hints, &to))
		errx(2, "usage: accepts NAME PORT AT [races]");
	port = atoi(argv[3]);
	dialer = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(dialer, to->ai_addr, to->ai_addrlen))
		err(1, "connect to the dialer");
	fd = listener();
	if (argc > 4) {
		races(fd);
		return 0;
	}
	lengths(fd);
	flags(fd);
	bad_pointers(fd);
	no_listeners();
	timeout(fd);
	many(fd);
	waits(fd); /* closes it */
	killed(listener());
	return 0;
}
