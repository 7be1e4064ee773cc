// SPDX-License-Identifier: Apache-2.0
/* accept(2) and accept4(2). */
#include "probe.h"

#include <pthread.h>

static void accept_flags_are(const char *step, int fd)
{
	probe_line(step, "%s%s", fcntl(fd, F_GETFD) & FD_CLOEXEC ? "cloexec " : "",
		   fcntl(fd, F_GETFL) & O_NONBLOCK ? "nonblock" : "block");
}

static void accept_flags(int family)
{
	int fd = probe_listener(probe_any(family, env.port));

	fcntl(fd, F_SETFL, O_NONBLOCK);
	probe_want("nobody there", accept(fd, NULL, NULL), EAGAIN);
	probe_want("nobody there, accept4", accept4(fd, NULL, NULL, 0), EAGAIN);
	for (int i = 0; i < 4; i++)
		probe_dial(family, env.port);
	accept_flags_are("accept", accept(fd, NULL, NULL));
	accept_flags_are("cloexec", accept4(fd, NULL, NULL, SOCK_CLOEXEC));
	accept_flags_are("nonblock", accept4(fd, NULL, NULL, SOCK_NONBLOCK));
	accept_flags_are("both", accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
	probe_want("all taken", accept(fd, NULL, NULL), EAGAIN);
	probe_want("unknown flag", accept4(fd, NULL, NULL, 1), EINVAL);
}

/* How much of the address accept writes, and what it says about it. */
static void accept_lengths(int family)
{
	static const int lens[] = {0, 1, 2, 8, 16, 28, 128};
	int fd = probe_listener(probe_any(family, env.port));

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		unsigned char buf[160];
		socklen_t len = lens[i];
		int touched = 0, conn;

		memset(buf, 0xa5, sizeof(buf));
		probe_dial(family, env.port);
		conn = accept(fd, (struct sockaddr *)buf, &len);
		probe_want("accept", conn < 0 ? -1 : 0, 0);
		for (size_t j = 0; j < sizeof(buf); j++)
			if (buf[j] != 0xa5)
				touched = j + 1;
		probe_line("length", "%d of %d, within it %s", (int)len, lens[i],
			   touched <= lens[i] ? "yes" : "no");
		close(conn);
	}
}

/* A connection that cannot be handed over is lost, and no descriptor left. */
static void accept_bad_pointers(int family)
{
	int fd = probe_listener(probe_any(family, env.port)), next, negative = -1;
	socklen_t len = 16;

	probe_dial(family, env.port);
	next = dup(fd);
	close(next);
	probe_want("address unmapped", accept(fd, (struct sockaddr *)8, &len), EFAULT);
	probe_dial(family, env.port);
	probe_want("length unmapped", accept(fd, (struct sockaddr *)&len, (socklen_t *)8), EFAULT);
	probe_dial(family, env.port);
	probe_want("length negative", accept(fd, (struct sockaddr *)&len, (socklen_t *)&negative),
		   EINVAL);
	probe_check("no descriptor was left", dup(fd) == next);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	probe_want("nobody waits", accept(fd, NULL, NULL), EAGAIN);
}

static void *accept_blocked(void *arg)
{
	int fd = *(int *)arg, conn = accept(fd, NULL, NULL);

	return (void *)(long)(conn < 0 ? -errno : conn);
}

/* A blocked accept ends when another thread shuts the listener down. */
static void accept_shutdown(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	pthread_t t;
	void *rc;

	if (pthread_create(&t, NULL, accept_blocked, &fd))
		probe_die("pthread_create");
	probe_sleep(100);
	probe_want("shutdown", shutdown(fd, SHUT_RD), 0);
	pthread_join(t, &rc);
	errno = -(long)rc;
	probe_want("accept", (long)rc < 0 ? -1 : 0, EINVAL);
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_want("listen again", listen(fd, 1), 0);
	probe_line("dial again", "%s", probe_dial(family, env.port));
}

/* A thread that waits in accept does not keep others from connecting. */
static void accept_waits(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	pthread_t t;
	void *rc;

	if (pthread_create(&t, NULL, accept_blocked, &fd))
		probe_die("pthread_create");
	probe_sleep(100);
	for (int i = 0; i < 3; i++) {
		int c = probe_echo_client(family);

		probe_echo("echo beside", c, "busy");
		close(c);
	}
	probe_line("dial", "%s", probe_dial(family, env.port));
	pthread_join(t, &rc);
	probe_echo("talk", (int)(long)rc, "woken");
}

static void accept_interrupted(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	pid_t ticker = probe_ticker(0);

	probe_want("accept", accept(fd, NULL, NULL), EINTR);
	probe_ticker_stop(ticker);
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_accept("accept", fd, NULL);
}

/* SO_RCVTIMEO is the time limit of accept. */
static void accept_timeout(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	struct timeval tv = {.tv_usec = 150000};
	long start = probe_now();

	probe_want("SO_RCVTIMEO", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)), 0);
	probe_want("accept", accept(fd, NULL, NULL), EAGAIN);
	probe_check("it took its time", probe_now() - start >= 140);
}

/* A timeout set before bind counts as well. */
static void accept_timeout_early(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct timeval tv = {.tv_usec = 150000};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
	probe_want("accept", accept(fd, NULL, NULL), EAGAIN);
}

const struct probe_case accept_cases[] = {
	{"accept-flags", accept_flags, AF_INET, 1},
	{"accept-lengths-v4", accept_lengths, AF_INET, 1},
	{"accept-lengths-v6", accept_lengths, AF_INET6, 1},
	{"accept-bad-pointers", accept_bad_pointers, AF_INET, 1},
	{"accept-shutdown", accept_shutdown, AF_INET, 1},
	{"accept-waits", accept_waits, AF_INET, 1},
	{"accept-interrupted", accept_interrupted, AF_INET, 1},
	{"accept-timeout", accept_timeout, AF_INET, 1},
	{"accept-timeout-early", accept_timeout_early, AF_INET, 1},
	{0},
};
