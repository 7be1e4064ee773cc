// SPDX-License-Identifier: Apache-2.0
/* One socket under several descriptors, in one process or in several: what
 * happens to one happens to all. */
#include "probe.h"

static void dup_before_connect(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), twin = dup(fd);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_names("duplicate", twin);
	probe_serve("write on one, read on the other", fd, twin, "forth");
	probe_serve("the other way", twin, fd, "back");
	probe_want("connect the duplicate", probe_connect(twin, probe_peer(family, env.tcp)),
		   EISCONN);
	probe_want("close the first", close(fd), 0);
	probe_echo("the duplicate lives", twin, "alone");
}

/* The descriptor that connects is the duplicate. */
static void dup_connects(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), twin = dup(fd);

	probe_want("close the first", close(fd), 0);
	probe_want("connect", probe_connect(twin, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", twin, "heir");
}

static void dup_numbers(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), over;

	probe_want("dup2", dup2(fd, 77) == 77 ? 0 : -1, 0);
	probe_want("dup3", dup3(fd, 88, O_CLOEXEC) == 88 ? 0 : -1, 0);
	probe_want("F_DUPFD", fcntl(fd, F_DUPFD, 90) >= 90 ? 0 : -1, 0);
	probe_want("dup2 to itself", dup2(fd, fd) == fd ? 0 : -1, 0);
	probe_want("connect", probe_connect(77, probe_peer(family, env.tcp)), 0);
	probe_names("original", fd);
	probe_serve("talk", 88, fd, "eighty-eight");
	probe_line("cloexec", "%d %d %d", fcntl(fd, F_GETFD), fcntl(77, F_GETFD),
		   fcntl(88, F_GETFD));
	over = probe_socket(family, SOCK_STREAM);
	probe_want("dup2 over the connected", dup2(over, 77) == 77 ? 0 : -1, 0);
	probe_names("replaced", 77);
	probe_want("connect", probe_connect(77, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", over, "replaced");
	probe_echo("the first lives", fd, "kept");
}

/* File status flags are of the socket, descriptor flags of the number. */
static void dup_flags(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), twin = dup(fd);

	fcntl(twin, F_SETFD, FD_CLOEXEC);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	probe_line("cloexec", "%d %d", fcntl(fd, F_GETFD), fcntl(twin, F_GETFD));
	probe_check("non-blocking both", fcntl(twin, F_GETFL) & O_NONBLOCK);
}

static void dup_bind(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), twin = dup(fd);

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_names("duplicate", twin);
	probe_want("listen on the duplicate", listen(twin, 4), 0);
	probe_want("close the first", close(fd), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	fd = probe_accept("accept", twin, NULL);
	probe_echo("talk", fd, "duplicate");
}

static void dup_udp(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), twin = dup(fd);
	struct probe_addr a = probe_peer(family, env.udp);
	char buf[8] = "";

	probe_want("sendto", sendto(fd, "dup", 3, 0, &a.sa, a.len), 0);
	probe_line("poll the duplicate", "%s",
		   probe_events(probe_poll(twin, POLLIN, PROBE_PATIENCE)));
	probe_want("recv", recv(twin, buf, sizeof(buf), MSG_DONTWAIT), 0);
	probe_want("connect", probe_connect(twin, a), 0);
	probe_names("original", fd);
}

static void dup_loopback(int family)
{
	int l = probe_listener(probe_loopback(family, 0)), conn;
	int fd = probe_socket(family, SOCK_STREAM), twin = dup(fd);

	probe_want("connect", probe_connect(fd, probe_local(l)), 0);
	conn = probe_accept("accept", l, NULL);
	probe_names("duplicate", twin);
	probe_serve("talk", conn, twin, "loopback");
}

/* A child connects the socket that it has in common with its parent. */
static void dup_fork_child_connects(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	pid_t pid = probe_fork();

	if (pid == 0)
		_exit(probe_connect(fd, probe_peer(family, env.tcp)) != 0);
	probe_wait("child", pid);
	probe_names("parent", fd);
	probe_echo("echo", fd, "child did it");
}

static void dup_fork_parent_connects(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), go[2];
	pid_t pid;
	char byte;

	if (pipe(go))
		probe_die("pipe");
	pid = probe_fork();
	if (pid == 0) {
		if (read(go[0], &byte, 1) != 1)
			_exit(1);
		probe_echo("child echoes", fd, "parent did it");
		_exit(probe_status());
	}
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	if (write(go[1], "x", 1) != 1)
		probe_die("go");
	probe_wait("child", pid);
	probe_echo("parent echoes", fd, "still mine");
}

static void dup_fork_child_binds(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	pid_t pid = probe_fork();

	if (pid == 0)
		_exit(probe_bind(fd, probe_any(family, env.port)) != 0 || listen(fd, 4) != 0);
	probe_wait("child", pid);
	probe_names("parent", fd);
	probe_line("dial", "%s", probe_dial(family, env.port));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_accept("accept", fd, NULL);
}

/* A socket handed to another process, which uses it after its maker does. */
static void dup_scm_before(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), via[2];
	pid_t pid;
	char byte;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, via))
		probe_die("socketpair");
	pid = probe_fork();
	if (pid == 0) {
		close(fd);
		fd = probe_recv_fd(via[1]);
		if (write(via[1], "r", 1) != 1 || read(via[1], &byte, 1) != 1)
			_exit(1);
		probe_echo("receiver echoes", fd, "handed over");
		_exit(probe_status());
	}
	probe_send_fd(via[0], fd);
	probe_want("received", read(via[0], &byte, 1), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	if (write(via[0], "x", 1) != 1)
		probe_die("go");
	probe_wait("receiver", pid);
}

/* The receiver is the one that connects. */
static void dup_scm_connects(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), via[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, via))
		probe_die("socketpair");
	pid = probe_fork();
	if (pid == 0) {
		close(fd);
		fd = probe_recv_fd(via[1]);
		_exit(probe_connect(fd, probe_peer(family, env.tcp)) != 0);
	}
	probe_send_fd(via[0], fd);
	probe_wait("receiver", pid);
	probe_names("sender", fd);
	probe_echo("sender echoes", fd, "came back");
}

/* In flight: sent before connect, received after it. */
static void dup_scm_in_flight(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), via[2], got;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, via))
		probe_die("socketpair");
	probe_send_fd(via[0], fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	got = probe_recv_fd(via[1]);
	probe_names("received", got);
	probe_serve("talk", fd, got, "in flight");
	probe_send_fd(via[0], fd);
	close(fd);
	close(got);
	got = probe_recv_fd(via[1]);
	probe_echo("only copy in flight", got, "landed");
}

const struct probe_case dup_cases[] = {
	{"dup-before-connect-v4", dup_before_connect, AF_INET, 0},
	{"dup-before-connect-v6", dup_before_connect, AF_INET6, 0},
	{"dup-connects", dup_connects, AF_INET, 0},
	{"dup-numbers", dup_numbers, AF_INET, 0},
	{"dup-flags", dup_flags, AF_INET, 0},
	{"dup-bind", dup_bind, AF_INET, 1},
	{"dup-udp", dup_udp, AF_INET, 0},
	{"dup-loopback", dup_loopback, AF_INET, 0},
	{"dup-fork-child-connects", dup_fork_child_connects, AF_INET, 0},
	{"dup-fork-parent-connects", dup_fork_parent_connects, AF_INET, 0},
	{"dup-fork-child-binds", dup_fork_child_binds, AF_INET, 1},
	{"dup-scm-before", dup_scm_before, AF_INET, 0},
	{"dup-scm-connects", dup_scm_connects, AF_INET, 0},
	{"dup-scm-in-flight", dup_scm_in_flight, AF_INET, 0},
	{0},
};
