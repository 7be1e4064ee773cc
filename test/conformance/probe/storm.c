// SPDX-License-Identifier: Apache-2.0
/*
 * Signals at any moment, and tables of descriptors that threads do not share:
 * what language runtimes and sandboxes do to the calls of a program.
 */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#define ROUNDS 150

static volatile sig_atomic_t storm_signals;
static bool storm_restarts; /* calls that a signal interrupts: no call fails with EINTR */

static void storm_signal(int sig)
{
	(void)sig;
	storm_signals++;
}

/* A signal every millisecond, wherever the program is. */
static timer_t storm_begin(int flags)
{
	struct sigaction sa = {.sa_handler = storm_signal, .sa_flags = flags};
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec every = {{0, 1000000}, {0, 1000000}};
	timer_t timer;

	sigaction(SIGUSR1, &sa, NULL);
	if (timer_create(CLOCK_MONOTONIC, &ev, &timer) || timer_settime(timer, 0, &every, NULL))
		probe_die("timer");
	return timer;
}

/* How often a call gave another error than the one that it gives in peace. */
struct storm_count {
	const char *call;
	int wrong, err;
};

static long storm_mind(struct storm_count *c, long rc, int err)
{
	int got = rc < 0 ? errno : 0;

	if (got != err) {
		c->wrong++;
		c->err = got;
	}
	return rc;
}

/* Makes a call again while a signal interrupts it, as programs do whose handlers do
 * not ask for SA_RESTART. A call that was interrupted has not been made. */
#define STORM(count, call, err)                                                                    \
	({                                                                                         \
		long rc_;                                                                          \
		do                                                                                 \
			rc_ = (call);                                                              \
		while (rc_ < 0 && errno == EINTR && !storm_restarts);                              \
		storm_mind(count, rc_, err);                                                       \
	})

enum { SOCKET, BIND, LISTEN, CONNECT, LOOPBACK, DGRAM, SENDTO, CALLS };

/* A socket to go on with; a failure is counted, and the next try as well. */
static int storm_socket(int family, int type, struct storm_count *counts)
{
	for (;;) {
		int fd = STORM(&counts[SOCKET], socket(family, type, 0), 0);

		if (fd >= 0)
			return fd;
	}
}

static void storm_round(int family, struct storm_count *counts)
{
	struct probe_addr a = probe_peer(family, env.udp);
	int one = 1, l, c, u;
	char echo;

	l = storm_socket(family, SOCK_STREAM, counts);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	STORM(&counts[BIND], probe_bind(l, probe_any(family, env.port)), 0);
	STORM(&counts[LISTEN], listen(l, 1), 0);
	c = storm_socket(family, SOCK_STREAM | SOCK_NONBLOCK, counts);
	STORM(&counts[CONNECT], probe_connect(c, probe_peer(family, env.tcp)), EINPROGRESS);
	close(c);
	c = storm_socket(family, SOCK_STREAM | SOCK_NONBLOCK, counts);
	STORM(&counts[LOOPBACK], probe_connect(c, probe_loopback(family, env.closed)), EINPROGRESS);
	close(c);
	u = storm_socket(family, SOCK_DGRAM, counts);
	STORM(&counts[SENDTO], sendto(u, "x", 1, 0, &a.sa, a.len), 0);
	STORM(&counts[DGRAM], probe_connect(u, a), 0);
	/* The next socket that gets this port must not hear the echo. */
	while (read(u, &echo, sizeof(echo)) < 0 && errno == EINTR)
		;
	close(u);
	close(l);
}

static void storm_run(int family, int flags)
{
	struct storm_count counts[CALLS] = {
		[SOCKET] = {.call = "socket"},
		[BIND] = {.call = "bind"},
		[LISTEN] = {.call = "listen"},
		[CONNECT] = {.call = "connect"},
		[LOOPBACK] = {.call = "connect to loopback"},
		[DGRAM] = {.call = "connect a datagram socket"},
		[SENDTO] = {.call = "sendto"},
	};
	timer_t timer = storm_begin(flags);

	storm_restarts = flags & SA_RESTART;
	for (int i = 0; i < ROUNDS || storm_signals < 20; i++)
		storm_round(family, counts);
	timer_delete(timer);
	for (int i = 0; i < CALLS; i++) {
		probe_line(counts[i].call, "%s",
			   counts[i].wrong ? probe_errno(counts[i].err) : "as in peace");
		if (counts[i].wrong)
			probe_fail();
	}
}

/* Without SA_RESTART, a call can fail with EINTR. Made again, it gives its answer. */
static void storm_interrupting(int family)
{
	storm_run(family, 0);
}

/* A call that was restarted has not been made twice. */
static void storm_restarting(int family)
{
	storm_run(family, SA_RESTART);
}

static void *storm_own_table(void *arg)
{
	int number = *(int *)arg, fd;

	if (unshare(CLONE_FILES))
		probe_die("unshare");
	fd = probe_socket(AF_INET, SOCK_STREAM);
	probe_want("dup2", dup2(fd, number) == number ? 0 : -1, 0);
	probe_want("connect", probe_connect(number, probe_peer(AF_INET, env.tcp)), 0);
	probe_names("in the thread", number);
	probe_echo("echo", number, "mine alone");
	fd = probe_socket(AF_INET, SOCK_STREAM);
	probe_want("dup2", dup2(fd, number) == number ? 0 : -1, 0);
	probe_want("bind", probe_bind(number, probe_any(AF_INET, env.port)), 0);
	probe_want("listen", listen(number, 1), 0);
	probe_line("dial", "%s", probe_dial(AF_INET, env.port));
	probe_accept("accept", number, NULL);
	fd = probe_socket(AF_INET, SOCK_STREAM);
	probe_want("dup2", dup2(fd, number) == number ? 0 : -1, 0);
	probe_want("connect to loopback",
		   probe_connect(number, probe_loopback(AF_INET, env.closed)), ECONNREFUSED);
	return NULL;
}

/* A number means another socket in a thread with a table of its own. */
static void storm_table(int family)
{
	int number = probe_socket(family, SOCK_DGRAM);
	struct probe_addr before, after;
	pthread_t t;

	probe_want("connect", probe_connect(number, probe_peer(family, env.udp)), 0);
	before = probe_local(number);
	if (pthread_create(&t, NULL, storm_own_table, &number))
		probe_die("pthread_create");
	pthread_join(t, NULL);
	after = probe_local(number);
	probe_check("the other table's socket is as it was", probe_same(&before, &after));
	probe_echo("echo", number, "datagram");
}

/* The leader of the threads has ended; the others go on. */
static void *storm_orphan(void *arg)
{
	int fd;

	(void)arg;
	probe_sleep(100);
	fd = probe_socket(AF_INET, SOCK_STREAM);
	probe_want("connect", probe_connect(fd, probe_peer(AF_INET, env.tcp)), 0);
	probe_echo("echo", fd, "without a leader");
	fd = probe_socket(AF_INET, SOCK_STREAM);
	probe_want("bind", probe_bind(fd, probe_any(AF_INET, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial", "%s", probe_dial(AF_INET, env.port));
	probe_accept("accept", fd, NULL);
	_exit(probe_status());
}

static void storm_leader(int family)
{
	pthread_t t;

	(void)family;
	if (pthread_create(&t, NULL, storm_orphan, NULL))
		probe_die("pthread_create");
	syscall(SYS_exit, 0);
}

/* A sandbox inside: whoever leaves the network for one of his own that is
 * empty reaches nobody. */
static void storm_sandbox(int family)
{
	int outside = probe_socket(family, SOCK_STREAM), fd;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
		probe_die("unshare");
	fd = probe_fd("socket", socket(family, SOCK_STREAM, 0));
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), ENETUNREACH);
	fd = probe_fd("socket", socket(family, SOCK_DGRAM, 0));
	probe_want("connect a datagram socket", probe_connect(fd, probe_peer(family, env.udp)),
		   ENETUNREACH);
	fd = probe_fd("socket", socket(family, SOCK_STREAM, 0));
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
	probe_want("connect a socket from before",
		   probe_connect(outside, probe_peer(family, env.tcp)), 0);
}

const struct probe_case storm_cases[] = {
	{"storm-interrupting", storm_interrupting, AF_INET, 1},
	{"storm-restarting", storm_restarting, AF_INET, 1},
	{"storm-table", storm_table, AF_INET, 1},
	{"storm-leader", storm_leader, AF_INET, 1},
	{"storm-sandbox", storm_sandbox, AF_INET, 1},
	{0},
};
