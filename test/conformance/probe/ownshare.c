// SPDX-License-Identifier: Apache-2.0
/* A program's own loopback: several processes, and sockets that they hand to each other. */
#include "probe.h"

#define WORKERS 8

/* A socket of a group at a private port. */
static int ownshare_member(struct probe_addr at, int type)
{
	int fd = probe_socket(at.sa.sa_family, type), one = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) || probe_bind(fd, at) ||
	    (type == SOCK_STREAM && listen(fd, 64)))
		return -1;
	return fd;
}

/* Serves until the other side of a pipe is closed. The exit status is how many were served. */
static void ownshare_serve(int fd, int type, int end) __attribute__((noreturn));

static void ownshare_serve(int fd, int type, int end)
{
	struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = end, .events = POLLIN}};
	int served = 0;

	while (poll(p, 2, PROBE_PATIENCE) > 0 && !p[1].revents) {
		struct probe_addr from = {.len = sizeof(from.ss)};
		int conn = type == SOCK_STREAM ? accept(fd, NULL, NULL) : fd;
		char byte;

		served += recvfrom(conn, &byte, 1, 0, &from.sa, &from.len) == 1;
		if (type == SOCK_STREAM) {
			served += write(conn, "y", 1) == 1;
			close(conn);
		} else {
			served += sendto(fd, "y", 1, 0, &from.sa, from.len) == 1;
		}
	}
	_exit(served > 254 ? 255 : served / 2);
}

/* One question of a new client; 1 if it is answered. */
static int ownshare_ask(struct probe_addr to, int type)
{
	int c = probe_socket(to.sa.sa_family, type), answered;
	char byte = 0;

	answered = probe_connect(c, to) == 0 && send(c, "x", 1, 0) == 1 &&
		   probe_poll(c, POLLIN, PROBE_PATIENCE) && recv(c, &byte, 1, 0) == 1;
	if (type == SOCK_STREAM)
		probe_abort(c);
	else
		close(c);
	return answered && byte == 'y';
}

/* Starts workers that all bind at the same moment; how many cannot. */
static int ownshare_start(pid_t *workers, int n, struct probe_addr at, int type, const int *end)
{
	int go[2], ready[2], failed = 0;
	char byte;

	if (pipe(go) || pipe(ready))
		probe_die("pipe");
	for (int i = 0; i < n; i++) {
		int fd;

		workers[i] = probe_fork();
		if (workers[i])
			continue;
		close(end[1]);
		close(go[1]);
		if (read(go[0], &byte, 1) != 0)
			_exit(0);
		fd = ownshare_member(at, type);
		if (write(ready[1], fd < 0 ? "n" : "y", 1) != 1 || fd < 0)
			_exit(0);
		ownshare_serve(fd, type, end[0]);
	}
	close(go[0]);
	close(go[1]);
	for (int i = 0; i < n; i++)
		failed += read(ready[0], &byte, 1) != 1 || byte != 'y';
	close(ready[0]);
	close(ready[1]);
	return failed;
}

/* A group of processes that share the load of one port. */
static void ownshare_group(struct probe_addr at, struct probe_addr to, int type, int n)
{
	int end[2], answered = 0, served = 0, idle = 0;
	pid_t workers[WORKERS];

	if (pipe(end))
		probe_die("pipe");
	probe_line("could not bind", "%d", ownshare_start(workers, n, at, type, end));
	probe_want("without SO_REUSEPORT", probe_bind(probe_socket(at.sa.sa_family, type), at),
		   EADDRINUSE);
	for (int i = 0; i < 96; i++)
		answered += ownshare_ask(to, type);
	close(end[1]);
	for (int i = 0; i < n; i++) {
		int status = 0;

		waitpid(workers[i], &status, 0);
		served += WEXITSTATUS(status);
		idle += WEXITSTATUS(status) == 0;
	}
	probe_line("answered", "%d", answered);
	probe_line("served", "%d", served);
	/* Of two, each is spared all questions once in 2^95 times. */
	if (n == 2)
		probe_check("both served", idle == 0);
}

static void ownshare_reuseport(int type)
{
	struct probe_addr v4 = probe_loopback(AF_INET, probe_private(0));
	struct probe_addr v6 = probe_loopback(AF_INET6, probe_private(0));

	ownshare_group(v4, v4, type, 2);
	ownshare_group(probe_any(AF_INET, probe_private(0)), v4, type, 2);
	ownshare_group(v6, v6, type, 2);
	ownshare_group(probe_any(AF_INET6, probe_private(0)), v4, type, WORKERS);
}

/* Binds when a pipe is closed, says how that went, and keeps the port until another is. */
static void ownshare_racer(struct probe_addr at, int type, int go, int done, int end)
	__attribute__((noreturn));

static void ownshare_racer(struct probe_addr at, int type, int go, int done, int end)
{
	int fd = probe_socket(AF_INET, type);
	char byte;

	if (read(go, &byte, 1) != 0)
		_exit(1);
	byte = probe_bind(fd, at) == 0 ? 'y' : errno == EADDRINUSE ? 'n' : '?';
	if (write(done, &byte, 1) != 1)
		_exit(1);
	_exit(read(end, &byte, 1) != 0);
}

/* Of processes that bind one port at the same moment, one gets it. */
static void ownshare_race(int type)
{
	struct probe_addr at = probe_loopback(AF_INET, probe_private(0));

	for (int round = 0; round < 10; round++) {
		int go[2], done[2], end[2], got = 0, other = 0;
		char byte;

		if (pipe(go) || pipe(done) || pipe(end))
			probe_die("pipe");
		for (int i = 0; i < WORKERS; i++) {
			if (probe_fork())
				continue;
			close(go[1]);
			close(end[1]);
			ownshare_racer(at, type, go[0], done[1], end[0]);
		}
		close(go[0]);
		close(go[1]);
		for (int i = 0; i < WORKERS; i++) {
			if (read(done[0], &byte, 1) != 1)
				probe_die("read");
			got += byte == 'y';
			other += byte == '?';
		}
		probe_check("one got it", got == 1);
		probe_check("others got EADDRINUSE", other == 0);
		close(done[0]);
		close(done[1]);
		close(end[0]);
		close(end[1]);
		while (wait(NULL) > 0)
			;
	}
}

/* A socket that one process makes, another binds and a third calls. */
static void ownshare_fork(int family)
{
	struct probe_addr at = probe_loopback(family, probe_private(0));
	int l = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr from = {.len = sizeof(from.ss)};
	pid_t child = probe_fork();

	if (!child)
		_exit(probe_bind(l, at) != 0);
	probe_wait("child binds", child);
	probe_names("bound", l);
	child = probe_fork();
	if (!child)
		_exit(listen(l, 4) != 0);
	probe_wait("child listens", child);
	child = probe_fork();
	if (!child) {
		int c = probe_socket(family, SOCK_STREAM);

		if (probe_connect(c, at))
			_exit(1);
		probe_echo("talk", c, "from the child");
		_exit(0);
	}
	conn = probe_accept("accept", l, &from);
	probe_host("from", &from);
	close(l);
	for (char buf[16]; read(conn, buf, 14) == 14;)
		if (write(conn, buf, 14) != 14)
			probe_die("write");
	probe_wait("child", child);
}

/* Sockets of a process that is gone, in each state, which another goes on with. */
static void ownshare_rights(int family)
{
	struct probe_addr at[] = {probe_loopback(family, probe_private(0)),
				  probe_loopback(family, probe_private(1)),
				  probe_loopback(family, probe_private(2))};
	int pair[2], l[2], conn, c = probe_socket(family, SOCK_STREAM), u, s;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		probe_die("socketpair");
	child = probe_fork();
	if (!child) {
		int fd = probe_socket(family, SOCK_STREAM);

		probe_bind(fd, at[0]);
		probe_send_fd(pair[1], fd);
		probe_send_fd(pair[1], probe_listener(at[1]));
		s = probe_socket(family, SOCK_DGRAM);
		probe_bind(s, at[2]);
		probe_send_fd(pair[1], s);
		_exit(0);
	}
	l[0] = probe_recv_fd(pair[0]);
	l[1] = probe_recv_fd(pair[0]);
	u = probe_recv_fd(pair[0]);
	probe_wait("child", child);
	probe_names("bound", l[0]);
	probe_want("listen", listen(l[0], 4), 0);
	for (int i = 0; i < 2; i++) {
		probe_want("connect", probe_connect(c, at[i]), 0);
		conn = probe_accept("accept", l[i], NULL);
		probe_names("accepted", conn);
		probe_serve("talk", c, conn, "after the child");
		close(c);
		close(conn);
		c = probe_socket(family, SOCK_STREAM);
	}
	s = probe_socket(family, SOCK_DGRAM);
	probe_want("sendto", sendto(s, "datagram", 8, 0, &at[2].sa, at[2].len), 0);
	probe_line("poll", "%s", probe_events(probe_poll(u, POLLIN, PROBE_PATIENCE)));
	probe_want("in use", probe_bind(probe_socket(family, SOCK_STREAM), at[1]), EADDRINUSE);
}

/* A port is free when the last of the processes that share its socket has closed it. */
static void ownshare_last(int family)
{
	struct probe_addr at = probe_loopback(family, probe_private(0));
	int l = probe_listener(at), pipes[2];
	pid_t child;
	char byte;

	if (pipe(pipes))
		probe_die("pipe");
	child = probe_fork();
	if (!child) {
		close(pipes[1]);
		_exit(read(pipes[0], &byte, 1) != 0);
	}
	close(l);
	l = probe_socket(family, SOCK_STREAM);
	probe_want("the child has it", probe_bind(l, at), EADDRINUSE);
	probe_want("and it is called", probe_connect(probe_socket(family, SOCK_STREAM), at), 0);
	close(pipes[1]);
	probe_wait("child", child);
	probe_want("connect", probe_connect(probe_socket(family, SOCK_STREAM), at), ECONNREFUSED);
	probe_want("bind", probe_bind(l, at), 0);
}

const struct probe_case ownshare_cases[] = {
	{"own-reuseport-tcp", ownshare_reuseport, SOCK_STREAM, 1},
	{"own-reuseport-udp", ownshare_reuseport, SOCK_DGRAM, 1},
	{"own-race-tcp", ownshare_race, SOCK_STREAM, 1},
	{"own-race-udp", ownshare_race, SOCK_DGRAM, 1},
	{"own-fork-v4", ownshare_fork, AF_INET, 1},
	{"own-fork-v6", ownshare_fork, AF_INET6, 1},
	{"own-rights-v4", ownshare_rights, AF_INET, 3},
	{"own-rights-v6", ownshare_rights, AF_INET6, 3},
	{"own-last", ownshare_last, AF_INET, 1},
	{0},
};
