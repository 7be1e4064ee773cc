// SPDX-License-Identifier: Apache-2.0
/* bind(2): which addresses and ports, who else has them. */
#include "probe.h"

static int bind_option(int fd, int name)
{
	int one = 1;

	return setsockopt(fd, SOL_SOCKET, name, &one, sizeof(one));
}

static void bind_zero(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct probe_addr before, after;

	probe_want("bind", probe_bind(fd, probe_any(family, 0)), 0);
	before = probe_local(fd);
	probe_name("bound", &before);
	probe_want("listen", listen(fd, 1), 0);
	after = probe_local(fd);
	probe_check("listen keeps the port", probe_same(&before, &after));
	probe_want("getpeername", getpeername(fd, &after.sa, &after.len), ENOTCONN);
}

static void bind_twice(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("same again", probe_bind(fd, probe_any(family, env.port)), EINVAL);
	probe_want("another port", probe_bind(fd, probe_any(family, env.port + 1)), EINVAL);
	probe_want("the loopback", probe_bind(fd, probe_loopback(family, 0)), EINVAL);
	probe_names("after", fd);
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("bind to the loopback", probe_bind(fd, probe_loopback(family, 0)), 0);
	probe_want("then in the range", probe_bind(fd, probe_any(family, env.port + 1)), EINVAL);
}

static void bind_connected(int family)
{
	int fd = probe_echo_client(family);

	probe_want("in the range", probe_bind(fd, probe_any(family, env.port)), EINVAL);
	probe_want("any port", probe_bind(fd, probe_any(family, 0)), EINVAL);
	probe_want("loopback", probe_bind(fd, probe_loopback(family, 0)), EINVAL);
	probe_echo("echo", fd, "unmoved");
}

static void bind_in_use(int family)
{
	int a = probe_socket(family, SOCK_STREAM);
	int b = probe_socket(family, SOCK_STREAM);

	probe_want("first", probe_bind(a, probe_any(family, env.port)), 0);
	probe_want("second", probe_bind(b, probe_any(family, env.port)), EADDRINUSE);
	probe_names("second", b);
	probe_want("second elsewhere", probe_bind(b, probe_any(family, env.port + 1)), 0);
	probe_want("close first", close(a), 0);
	a = probe_socket(family, SOCK_STREAM);
	probe_want("third", probe_bind(a, probe_any(family, env.port)), 0);
}

static void bind_in_use_loopback(int family)
{
	int a = probe_listener(probe_loopback(family, 0));
	int b = probe_socket(family, SOCK_STREAM);

	probe_want("second", probe_bind(b, probe_local(a)), EADDRINUSE);
	close(a);
	probe_want("second again", probe_bind(b, probe_loopback(family, 0)), 0);
}

static void bind_reuseaddr(int family)
{
	int a = probe_socket(family, SOCK_STREAM);
	int b = probe_socket(family, SOCK_STREAM);
	int c = probe_socket(family, SOCK_STREAM);

	bind_option(a, SO_REUSEADDR);
	bind_option(b, SO_REUSEADDR);
	probe_want("first", probe_bind(a, probe_any(family, env.port)), 0);
	probe_want("second", probe_bind(b, probe_any(family, env.port)), 0);
	probe_want("without", probe_bind(c, probe_any(family, env.port)), EADDRINUSE);
	probe_want("first listens", listen(a, 1), 0);
	probe_want("second listens", listen(b, 1), EADDRINUSE);
	probe_want("close first", close(a), 0);
	probe_want("second listens now", listen(b, 1), 0);
}

static void bind_reuseport(int family)
{
	int fds[2], counts[2] = {0, 0}, dialled = 0;

	for (int i = 0; i < 2; i++) {
		fds[i] = probe_socket(family, SOCK_STREAM);
		probe_want("SO_REUSEPORT", bind_option(fds[i], SO_REUSEPORT), 0);
		probe_want("bind", probe_bind(fds[i], probe_any(family, env.port)), 0);
		probe_want("listen", listen(fds[i], 64), 0);
	}
	for (int i = 0; i < 24; i++)
		dialled += !strcmp(probe_dial(family, env.port), "dialled");
	probe_line("dialled", "%d", dialled);
	for (int i = 0; i < 2; i++) {
		fcntl(fds[i], F_SETFL, O_NONBLOCK);
		while (accept(fds[i], NULL, NULL) >= 0)
			counts[i]++;
	}
	probe_line("accepted", "%d", counts[0] + counts[1]);
	probe_check("both had some", counts[0] && counts[1]);
}

/* Who shares a port must want it from the first. */
static void bind_reuseport_refused(int family)
{
	int a = probe_socket(family, SOCK_STREAM);
	int b = probe_socket(family, SOCK_STREAM);

	probe_want("first", probe_bind(a, probe_any(family, env.port)), 0);
	bind_option(b, SO_REUSEPORT);
	probe_want("second", probe_bind(b, probe_any(family, env.port)), EADDRINUSE);
	close(a);
	probe_want("second now", probe_bind(b, probe_any(family, env.port)), 0);
	a = probe_socket(family, SOCK_STREAM);
	probe_want("without", probe_bind(a, probe_any(family, env.port)), EADDRINUSE);
}

/* Addresses of other machines, and of none, with a port that is free. */
static void bind_elsewhere(int port)
{
	static const struct {
		const char *host;
		int family;
	} elsewhere[] = {
		{"203.0.113.99", AF_INET},
		{"198.51.100.2", AF_INET},
		{"2001:db8:ffff::99", AF_INET6},
		{"2001:db8:1::2", AF_INET6},
	};

	for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++) {
		int family = elsewhere[i].family;
		int fd = probe_socket(family, SOCK_STREAM);

		probe_want(elsewhere[i].host,
			   probe_bind(fd, probe_text(family, elsewhere[i].host, port)),
			   EADDRNOTAVAIL);
		close(fd);
	}
}

static void bind_nonlocal(int family)
{
	(void)family;
	bind_elsewhere(0);
}

static void bind_nonlocal_range(int family)
{
	(void)family;
	bind_elsewhere(env.port);
}

/* Of the whole 127/8 every address is local. */
static void bind_loopback_other(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int c = probe_socket(family, SOCK_STREAM);
	struct probe_addr a, b;

	probe_want("bind", probe_bind(fd, probe_text(family, "127.0.0.77", 0)), 0);
	probe_want("listen", listen(fd, 1), 0);
	a = probe_local(fd);
	probe_want("connect", probe_connect(c, a), 0);
	b = probe_remote(c);
	probe_check("peer is what was bound", probe_same(&a, &b));
	a = probe_loopback(family, probe_port(&a));
	probe_want("another loopback address", probe_connect(probe_socket(family, SOCK_STREAM), a),
		   ECONNREFUSED);
}

/* What is bound to the loopback is private, whatever its port. */
static void bind_loopback_range(int family)
{
	struct probe_addr a = probe_loopback(family, env.port);
	int fd = probe_listener(a), c = probe_socket(family, SOCK_STREAM);

	probe_names("bound", fd);
	probe_want("connect", probe_connect(c, a), 0);
	probe_accept("accept", fd, NULL);
	probe_line("dialled from outside", "%s", probe_dial(family, env.port));
}

/* A port that the loopback has is not free for any address, nor the other way
 * round. */
static void bind_loopback_conflict(int family)
{
	int a = probe_listener(probe_loopback(family, env.port));
	int b = probe_socket(family, SOCK_STREAM);

	probe_want("any address, same port", probe_bind(b, probe_any(family, env.port)),
		   EADDRINUSE);
	close(a);
	b = probe_listener(probe_any(family, env.port + 1));
	a = probe_socket(family, SOCK_STREAM);
	probe_want("loopback, same port", probe_bind(a, probe_loopback(family, env.port + 1)),
		   EADDRINUSE);
}

static void bind_privileged(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("as root", probe_bind(fd, probe_any(family, 81)), 0);
	probe_names("bound", fd);
	close(fd);
	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		probe_die("setresuid");
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("as nobody", probe_bind(fd, probe_any(family, 81)), EACCES);
	probe_want("as nobody, loopback", probe_bind(fd, probe_loopback(family, 81)), EACCES);
	probe_want("as nobody, in the range", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
}

/* A server that closed first cannot have its port again at once, unless it
 * asks for that. */
static void bind_time_wait(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), conn;
	char byte;

	bind_option(fd, SO_REUSEADDR);
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	conn = probe_accept("accept", fd, NULL);
	close(fd);
	shutdown(conn, SHUT_WR);
	probe_want("read to the end", read(conn, &byte, 1), 0);
	close(conn);
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("without SO_REUSEADDR", probe_bind(fd, probe_any(family, env.port)), EADDRINUSE);
	bind_option(fd, SO_REUSEADDR);
	probe_want("with", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	conn = probe_accept("accept", fd, NULL);
	probe_echo("talk", conn, "again");
}

/* A closed socket's port is free at once, every time. */
static void bind_close_bind(int family)
{
	int taken = 0;

	for (int i = 0; i < 200; i++) {
		int fd = probe_socket(family, i % 2 ? SOCK_DGRAM : SOCK_STREAM);

		taken += probe_bind(fd, probe_any(family, env.port)) != 0;
		close(fd);
	}
	probe_line("not free", "%d", taken);
	if (taken)
		probe_fail();
}

/* TCP and UDP ports have nothing to do with each other. */
static void bind_both_protocols(int family)
{
	int t = probe_socket(family, SOCK_STREAM);
	int u = probe_socket(family, SOCK_DGRAM);

	probe_want("tcp", probe_bind(t, probe_any(family, env.port)), 0);
	probe_want("udp", probe_bind(u, probe_any(family, env.port)), 0);
	probe_want("udp again",
		   probe_bind(probe_socket(family, SOCK_DGRAM), probe_any(family, env.port)),
		   EADDRINUSE);
}

const struct probe_case bind_cases[] = {
	{"bind-zero-v4", bind_zero, AF_INET, 0},
	{"bind-zero-v6", bind_zero, AF_INET6, 0},
	{"bind-twice", bind_twice, AF_INET, 2},
	{"bind-connected", bind_connected, AF_INET, 1},
	{"bind-in-use-v4", bind_in_use, AF_INET, 2},
	{"bind-in-use-v6", bind_in_use, AF_INET6, 2},
	{"bind-in-use-loopback", bind_in_use_loopback, AF_INET, 0},
	{"bind-reuseaddr", bind_reuseaddr, AF_INET, 1},
	{"bind-reuseport-v4", bind_reuseport, AF_INET, 1},
	{"bind-reuseport-v6", bind_reuseport, AF_INET6, 1},
	{"bind-reuseport-refused", bind_reuseport_refused, AF_INET, 1},
	{"bind-nonlocal", bind_nonlocal, 0, 0},
	{"bind-nonlocal-range", bind_nonlocal_range, 0, 1},
	{"bind-loopback-conflict", bind_loopback_conflict, AF_INET, 2},
	{"bind-close-bind", bind_close_bind, AF_INET, 1},
	{"bind-loopback-other", bind_loopback_other, AF_INET, 0},
	{"bind-loopback-range-v4", bind_loopback_range, AF_INET, 1},
	{"bind-loopback-range-v6", bind_loopback_range, AF_INET6, 1},
	{"bind-privileged", bind_privileged, AF_INET, 1},
	{"bind-time-wait", bind_time_wait, AF_INET, 1},
	{"bind-both-protocols", bind_both_protocols, AF_INET, 1},
	{0},
};
