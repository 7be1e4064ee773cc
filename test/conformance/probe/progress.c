// SPDX-License-Identifier: Apache-2.0
/* connect(2) that takes its time: non-blocking, timed, interrupted. */
#include "probe.h"

#include <pthread.h>
#include <sys/time.h>

static void progress_error(const char *step, int fd)
{
	int err = -1;
	socklen_t len = sizeof(err);

	probe_want(step, getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	probe_line(step, "%s", probe_errno(err));
}

static void progress_connect(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	struct probe_addr a = probe_peer(family, env.tcp);

	probe_want("connect", probe_connect(fd, a), EINPROGRESS);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLOUT, PROBE_PATIENCE)));
	progress_error("SO_ERROR", fd);
	probe_names("established", fd);
	probe_want("connect again", probe_connect(fd, a), 0);
	probe_want("and again", probe_connect(fd, a), EISCONN);
	probe_echo("echo", fd, "no block");
}

static void progress_refused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	struct probe_addr a = probe_peer(family, env.closed);

	probe_want("connect", probe_connect(fd, a), EINPROGRESS);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLIN | POLLOUT, PROBE_PATIENCE)));
	progress_error("SO_ERROR", fd);
	progress_error("SO_ERROR again", fd);
	probe_want("connect again", probe_connect(fd, a), ECONNABORTED);
	probe_want("and again", probe_connect(fd, a), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	probe_want("read", read(fd, &a, 1), ECONNREFUSED);
	probe_want("read again", read(fd, &a, 1), 0);
}

static void progress_pending(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK), beside;
	struct probe_addr a = probe_peer(family, env.hole);
	char byte = 0;

	probe_want("connect", probe_connect(fd, a), EINPROGRESS);
	probe_want("connect again", probe_connect(fd, a), EALREADY);
	probe_want("connect elsewhere", probe_connect(fd, probe_peer(family, env.tcp)), EALREADY);
	beside = probe_echo_client(family);
	probe_echo("echo beside", beside, "busy"); /* an answer would have come before */
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLOUT, 0)));
	progress_error("SO_ERROR", fd);
	probe_names("pending", fd);
	probe_want("send", send(fd, &byte, 1, MSG_NOSIGNAL), EAGAIN);
	probe_want("recv", recv(fd, &byte, 1, 0), EAGAIN);
	probe_want("listen", listen(fd, 1), EINVAL);
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect anew", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLOUT, PROBE_PATIENCE)));
	probe_echo("echo", fd, "turned away");
}

/* A send timeout is the time limit of a blocking connect. */
static void progress_sndtimeo(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct timeval tv = {.tv_usec = 200000};
	long start = probe_now();

	probe_want("SO_SNDTIMEO", setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.hole)), EINPROGRESS);
	probe_check("it took its time", probe_now() - start >= 190);
	start = probe_now();
	probe_want("connect again", probe_connect(fd, probe_peer(family, env.hole)), EALREADY);
	probe_check("it took its time", probe_now() - start >= 190);
}

/* The kernel's own limit: a user timeout for the whole handshake. */
static void progress_timeout(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), retries = 1, ms = 500;

	probe_want("TCP_SYNCNT", setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &retries, sizeof(retries)),
		   0);
	probe_want("TCP_USER_TIMEOUT",
		   setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.hole)), ETIMEDOUT);
	probe_names("after", fd);
}

/* A blocking connect that a signal interrupts. A signal can come before the kernel has
 * begun to connect (docs/LIMITS.md): the call is made again then. */
static void progress_interrupt(int fd, struct probe_addr a)
{
	pid_t ticker = probe_ticker(0);
	struct tcp_info info;
	long rc;

	do {
		socklen_t len = sizeof(info);

		rc = probe_connect(fd, a);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
			probe_die("TCP_INFO");
	} while (rc < 0 && errno == EINTR && info.tcpi_state == TCP_CLOSE);
	probe_want("connect", rc, EINTR);
	probe_ticker_stop(ticker);
}

static void progress_interrupted(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	progress_interrupt(fd, probe_peer(family, env.hole));
	probe_check("signal came", probe_ticked());
	probe_want("non-blocking", fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	probe_want("connect again", probe_connect(fd, probe_peer(family, env.hole)), EALREADY);
	progress_error("SO_ERROR", fd);
}

/* An interrupted connect goes on, and completes when the peer answers. */
static void progress_interrupted_completes(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), port;
	int gate = probe_gate(family, &port);

	progress_interrupt(fd, probe_peer(family, port));
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLOUT, 0)));
	probe_gate_open(gate);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLOUT, PROBE_PATIENCE)));
	progress_error("SO_ERROR", fd);
	probe_echo("echo", fd, "after all");
}

/* The second connect of an interrupted one waits for the first. */
static void progress_interrupted_waits(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), port;
	int gate = probe_gate(family, &port);

	progress_interrupt(fd, probe_peer(family, port));
	probe_gate_open(gate);
	probe_want("connect again", probe_connect(fd, probe_peer(family, port)), 0);
	probe_echo("echo", fd, "waited");
}

/* With SA_RESTART the program sees no EINTR. */
static void progress_restarted(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), port;
	int gate = probe_gate(family, &port);
	pid_t ticker = probe_ticker(SA_RESTART), opener = probe_fork();

	if (opener == 0) {
		probe_ticks(3);
		probe_gate_open(gate);
		_exit(0);
	}
	probe_want("connect", probe_connect(fd, probe_peer(family, port)), 0);
	probe_ticker_stop(ticker);
	probe_wait("opener", opener);
	probe_check("signal came", probe_ticked());
	probe_echo("echo", fd, "restarted");
}

/* A blocked connect does not keep a process from being killed. */
static void progress_killed(int family)
{
	int fds[2], status;
	pid_t pid;

	if (pipe(fds))
		probe_die("pipe");
	pid = probe_fork();
	if (pid == 0) {
		int fd = probe_socket(family, SOCK_STREAM);

		if (write(fds[1], "x", 1) != 1)
			_exit(1);
		probe_connect(fd, probe_peer(family, env.hole));
		_exit(1);
	}
	probe_want("child is there", read(fds[0], &status, 1), 0);
	probe_sleep(150); /* it most likely waits in connect then */
	probe_want("kill", kill(pid, SIGKILL), 0);
	probe_want("wait", waitpid(pid, &status, 0) == pid ? 0 : -1, 0);
	probe_line("ended by", "signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

struct progress_call {
	int fd;
	struct probe_addr to;
	int rc, err;
};

static void *progress_call(void *arg)
{
	struct progress_call *c = arg;

	c->rc = probe_connect(c->fd, c->to);
	c->err = errno;
	return NULL;
}

/* While one thread waits in connect, others go on with other sockets. */
static void progress_beside(int family)
{
	int port, gate = probe_gate(family, &port), fd;
	struct progress_call c = {.fd = probe_socket(family, SOCK_STREAM),
				  .to = probe_peer(family, port)};
	pthread_t t;

	if (pthread_create(&t, NULL, progress_call, &c))
		probe_die("pthread_create");
	for (int i = 0; i < 5; i++) {
		fd = probe_echo_client(family);
		probe_echo("echo beside", fd, "busy");
		close(fd);
	}
	probe_sleep(100);
	probe_gate_open(gate);
	pthread_join(t, NULL);
	errno = c.err;
	probe_want("connect", c.rc, 0);
	probe_echo("echo", c.fd, "at last");
}

/* shutdown from another thread ends a blocked connect. */
static void progress_shutdown(int family)
{
	struct progress_call c = {.fd = probe_socket(family, SOCK_STREAM),
				  .to = probe_peer(family, env.hole)};
	struct tcp_info info = {0};
	pthread_t t;

	if (pthread_create(&t, NULL, progress_call, &c))
		probe_die("pthread_create");
	while (info.tcpi_state != TCP_SYN_SENT) {
		socklen_t len = sizeof(info);

		probe_sleep(1);
		if (getsockopt(c.fd, IPPROTO_TCP, TCP_INFO, &info, &len))
			probe_die("TCP_INFO");
	}
	probe_want("shutdown", shutdown(c.fd, SHUT_RDWR), 0);
	pthread_join(t, NULL);
	errno = c.err;
	probe_want("connect", c.rc, ECONNRESET);
}

const struct probe_case progress_cases[] = {
	{"progress-connect-v4", progress_connect, AF_INET, 0},
	{"progress-connect-v6", progress_connect, AF_INET6, 0},
	{"progress-refused", progress_refused, AF_INET, 0},
	{"progress-pending-v4", progress_pending, AF_INET, 0},
	{"progress-pending-v6", progress_pending, AF_INET6, 0},
	{"progress-sndtimeo", progress_sndtimeo, AF_INET, 0},
	{"progress-timeout", progress_timeout, AF_INET, 0},
	{"progress-interrupted", progress_interrupted, AF_INET, 0},
	{"progress-interrupted-completes", progress_interrupted_completes, AF_INET, 0},
	{"progress-interrupted-waits", progress_interrupted_waits, AF_INET6, 0},
	{"progress-restarted", progress_restarted, AF_INET, 0},
	{"progress-killed", progress_killed, AF_INET, 0},
	{"progress-beside", progress_beside, AF_INET, 0},
	{"progress-shutdown", progress_shutdown, AF_INET, 0},
	{0},
};
