// SPDX-License-Identifier: Apache-2.0
/* Servers: listening sockets and who reaches them. */
#include "probe.h"

/* A server that the peer dials, as the peer and the program see it. */
static void listen_range(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr from = {.len = sizeof(from.ss)};

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_names("bound", fd);
	probe_want("listen", listen(fd, 8), 0);
	probe_names("listening", fd);
	probe_line("dial", "%s", probe_dial(family, env.port));
	conn = probe_accept("accept", fd, &from);
	probe_name("from", &from);
	probe_names("accepted", conn);
	probe_echo("talk", conn, "served");
	probe_want("close listener", close(fd), 0);
	probe_echo("talk on", conn, "still served");
	probe_line("dial the closed port", "%s", probe_dial(family, env.port));
}

/* Nobody listens yet: the port is bound and refuses. */
static void listen_not_yet(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial again", "%s", probe_dial(family, env.port));
}

/* A server is reached over its own loopback as well as from outside. */
static void listen_range_self(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	int c = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr from = {.len = sizeof(from.ss)};

	probe_want("connect over loopback", probe_connect(c, probe_loopback(family, env.port)), 0);
	probe_names("client", c);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLIN, PROBE_PATIENCE)));
	conn = probe_accept("accept", fd, &from);
	probe_name("from", &from);
	probe_serve("talk", c, conn, "to myself");
	probe_line("dial from outside", "%s", probe_dial(family, env.port));
	probe_accept("accept", fd, NULL);
}

static void listen_unbound(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int c = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr a;

	probe_want("listen", listen(fd, 4), 0);
	a = probe_local(fd);
	probe_name("listening", &a);
	probe_want("connect", probe_connect(c, probe_loopback(family, probe_port(&a))), 0);
	conn = probe_accept("accept", fd, NULL);
	probe_serve("talk", c, conn, "unbound");
}

/* A port of its own choice is reached over the loopback too. */
static void listen_zero(int family)
{
	int fd = probe_listener(probe_any(family, 0));
	int c = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr a = probe_local(fd);

	probe_name("listening", &a);
	probe_want("connect", probe_connect(c, probe_loopback(family, probe_port(&a))), 0);
	conn = probe_accept("accept", fd, NULL);
	probe_serve("talk", c, conn, "any port");
	probe_names("accepted", conn);
}

static void listen_states(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), c;
	struct probe_addr a;

	probe_want("accept before listen", accept(fd, NULL, NULL), EINVAL);
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("accept before listen", accept(fd, NULL, NULL), EINVAL);
	probe_want("listen", listen(fd, 1), 0);
	probe_want("listen again", listen(fd, 5), 0);
	probe_want("negative backlog", listen(fd, -1), 0);
	probe_want("bind again", probe_bind(fd, probe_any(family, env.port)), EINVAL);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EISCONN);
	probe_want("send", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	probe_want("recv", recv(fd, &a, 1, 0), ENOTCONN);
	c = probe_echo_client(family);
	probe_want("connected listens", listen(c, 1), EINVAL);
	probe_want("connected accepts", accept(c, NULL, NULL), EINVAL);
	c = probe_socket(family, SOCK_DGRAM);
	probe_want("datagram listens", listen(c, 1), EOPNOTSUPP);
	probe_want("datagram accepts", accept(c, NULL, NULL), EOPNOTSUPP);
}

/* Connecting dissolves a listener only through AF_UNSPEC. */
static void listen_unspec(int family)
{
	int fd = probe_listener(probe_any(family, env.port));

	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_names("dissolved", fd);
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial again", "%s", probe_dial(family, env.port));
}

/* One IPv6 listener for both families. */
static void listen_dual(int family)
{
	int fd = probe_listener(probe_any(family, env.port)), conn;
	struct probe_addr from = {.len = sizeof(from.ss)};

	probe_line("dial over v4", "%s", probe_dial(AF_INET, env.port));
	conn = probe_accept("accept", fd, &from);
	probe_name("from", &from);
	probe_names("accepted", conn);
	probe_echo("talk", conn, "four");
	probe_line("dial over v6", "%s", probe_dial(AF_INET6, env.port));
	from.len = sizeof(from.ss);
	conn = probe_accept("accept", fd, &from);
	probe_name("from", &from);
	probe_echo("talk", conn, "six");
	probe_want("the v4 port is taken",
		   probe_bind(probe_socket(AF_INET, SOCK_STREAM), probe_any(AF_INET, env.port)),
		   EADDRINUSE);
}

/* Two listeners, one per family, on one port. */
static void listen_v6only(int family)
{
	int six = probe_socket(family, SOCK_STREAM), one = 1, four;
	struct probe_addr from = {.len = sizeof(from.ss)};

	setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	probe_want("bind", probe_bind(six, probe_any(family, env.port)), 0);
	probe_want("listen", listen(six, 4), 0);
	probe_line("dial over v4", "%s", probe_dial(AF_INET, env.port));
	four = probe_listener(probe_any(AF_INET, env.port));
	probe_line("dial over v4", "%s", probe_dial(AF_INET, env.port));
	probe_accept("accept", four, &from);
	probe_name("from", &from);
	probe_line("dial over v6", "%s", probe_dial(AF_INET6, env.port));
	from.len = sizeof(from.ss);
	probe_accept("accept", six, &from);
	probe_name("from", &from);
	probe_want("V6ONLY after bind",
		   setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)), EINVAL);
}

/* An IPv6 socket bound to the mapped any address serves IPv4. */
static void listen_mapped(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), conn;

	probe_want("bind", probe_bind(fd, probe_text(family, "::ffff:0.0.0.0", env.port)), 0);
	probe_want("listen", listen(fd, 4), 0);
	probe_line("dial over v4", "%s", probe_dial(AF_INET, env.port));
	conn = probe_accept("accept", fd, NULL);
	probe_names("accepted", conn);
	probe_line("dial over v6", "%s", probe_dial(AF_INET6, env.port));
}

/* Workers of one listener, as prefork servers have them. */
static void listen_prefork(int family)
{
	int fd = probe_listener(probe_any(family, env.port));
	int done = 0, both[2];
	pid_t pids[2];
	char byte;

	if (pipe(both))
		probe_die("pipe");
	for (int i = 0; i < 2; i++) {
		pids[i] = probe_fork();
		if (pids[i])
			continue;
		for (;;) {
			int conn = accept(fd, NULL, NULL);

			if (conn < 0 || write(conn, "hi", 2) != 2 || read(conn, &byte, 1) != 1 ||
			    write(both[1], &byte, 1) != 1)
				_exit(1);
			close(conn);
		}
	}
	for (int i = 0; i < 6; i++)
		done += !strcmp(probe_dial(family, env.port), "dialled") &&
			read(both[0], &byte, 1) == 1 && byte == 'h';
	for (int i = 0; i < 2; i++)
		probe_ticker_stop(pids[i]);
	probe_line("served", "%d", done);
}

const struct probe_case listen_cases[] = {
	{"listen-range-v4", listen_range, AF_INET, 1},
	{"listen-range-v6", listen_range, AF_INET6, 1},
	{"listen-not-yet", listen_not_yet, AF_INET, 1},
	{"listen-range-self-v4", listen_range_self, AF_INET, 1},
	{"listen-range-self-v6", listen_range_self, AF_INET6, 1},
	{"listen-unbound-v4", listen_unbound, AF_INET, 0},
	{"listen-unbound-v6", listen_unbound, AF_INET6, 0},
	{"listen-zero-v4", listen_zero, AF_INET, 0},
	{"listen-zero-v6", listen_zero, AF_INET6, 0},
	{"listen-states", listen_states, AF_INET, 1},
	{"listen-unspec", listen_unspec, AF_INET, 1},
	{"listen-dual", listen_dual, AF_INET6, 1},
	{"listen-v6only", listen_v6only, AF_INET6, 1},
	{"listen-mapped", listen_mapped, AF_INET6, 1},
	{"listen-prefork", listen_prefork, AF_INET, 1},
	{0},
};
