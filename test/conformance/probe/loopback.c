// SPDX-License-Identifier: Apache-2.0
/* A program that talks to itself: the loopback is its own namespace's. */
#include "probe.h"

static void loopback_tcp(int family)
{
	int l = probe_socket(family, SOCK_STREAM);
	int c = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr a, b;

	probe_want("bind", probe_bind(l, probe_loopback(family, 0)), 0);
	probe_want("listen", listen(l, 4), 0);
	a = probe_local(l);
	probe_name("listening", &a);
	probe_want("connect", probe_connect(c, a), 0);
	conn = probe_accept("accept", l, NULL);
	probe_names("client", c);
	probe_names("server", conn);
	a = probe_local(c);
	b = probe_remote(conn);
	probe_check("client is the server's peer", probe_same(&a, &b));
	probe_serve("talk", c, conn, "to the server");
	probe_serve("talk back", conn, c, "to the client");
}

static void loopback_nonblock(int family)
{
	int l = probe_listener(probe_loopback(family, 0));
	int c = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK), conn;
	int err = -1;
	socklen_t len = sizeof(err);

	probe_want("connect", probe_connect(c, probe_local(l)), EINPROGRESS);
	probe_line("poll", "%s", probe_events(probe_poll(c, POLLOUT, PROBE_PATIENCE)));
	getsockopt(c, SOL_SOCKET, SO_ERROR, &err, &len);
	probe_line("SO_ERROR", "%s", probe_errno(err));
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "no block");
}

static void loopback_refused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct probe_addr a;
	int l = probe_listener(probe_loopback(family, 0));

	a = probe_local(l);
	close(l);
	probe_want("connect", probe_connect(fd, a), ECONNREFUSED);
	probe_want("connect outside", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "outside then");
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("refused outside", probe_connect(fd, probe_peer(family, env.closed)),
		   ECONNREFUSED);
	l = probe_listener(probe_loopback(family, 0));
	probe_want("then inside", probe_connect(fd, probe_local(l)), 0);
}

/* The machine's other services are not on a program's own loopback: what the
 * peer's ports are, nobody has here. */
static void loopback_private(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("connect", probe_connect(fd, probe_loopback(family, env.tcp)), ECONNREFUSED);
}

/* The any address as a destination means the loopback. */
static void loopback_any(int family)
{
	int l = probe_listener(probe_loopback(family, 0));
	struct probe_addr a = probe_local(l);
	int c = probe_socket(family, SOCK_STREAM), conn;

	probe_want("connect", probe_connect(c, probe_any(family, probe_port(&a))), 0);
	probe_names("client", c);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "anywhere is here");
}

static void loopback_mapped(int family)
{
	int l = probe_listener(probe_loopback(AF_INET, 0)), conn;
	struct probe_addr a = probe_local(l);
	int c = probe_socket(family, SOCK_STREAM);

	probe_want("connect",
		   probe_connect(c, probe_text(family, "::ffff:127.0.0.1", probe_port(&a))), 0);
	probe_names("client", c);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "mapped");
}

/* A client that was bound without an address can go to the loopback. */
static void loopback_bound_any(int family)
{
	int l = probe_listener(probe_loopback(family, 0)), conn, port;
	int c = probe_socket(family, SOCK_STREAM);
	struct probe_addr a;

	probe_want("bind", probe_bind(c, probe_any(family, 0)), 0);
	a = probe_local(c);
	port = probe_port(&a);
	probe_want("connect", probe_connect(c, probe_local(l)), 0);
	a = probe_local(c);
	probe_name("client", &a);
	probe_check("same port as before", probe_port(&a) == port);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "bound");
}

static void loopback_bound(int family)
{
	int l = probe_listener(probe_loopback(family, 0)), conn, port;
	int c = probe_socket(family, SOCK_STREAM);
	struct probe_addr a;

	probe_want("bind", probe_bind(c, probe_loopback(family, 0)), 0);
	a = probe_local(c);
	port = probe_port(&a);
	probe_want("connect", probe_connect(c, probe_local(l)), 0);
	a = probe_local(c);
	probe_check("same port as before", probe_port(&a) == port);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", conn, c, "bound");
}

/* TCP connects a socket to itself if it is asked to. */
static void loopback_self(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	probe_want("connect to itself", probe_connect(fd, probe_local(fd)), 0);
	probe_echo("talk", fd, "who is there");
}

static void loopback_udp(int family)
{
	int s = probe_socket(family, SOCK_DGRAM);
	int c = probe_socket(family, SOCK_DGRAM);
	struct probe_addr from = {.len = sizeof(from.ss)}, a;
	char buf[16] = "";

	probe_want("bind", probe_bind(s, probe_loopback(family, 0)), 0);
	a = probe_local(s);
	probe_name("server", &a);
	probe_want("sendto", sendto(c, "one", 3, 0, &a.sa, a.len), 0);
	probe_poll(s, POLLIN, PROBE_PATIENCE);
	probe_want("recvfrom", recvfrom(s, buf, sizeof(buf), MSG_DONTWAIT, &from.sa, &from.len), 0);
	probe_name("from", &from);
	probe_want("answer", sendto(s, "two", 3, 0, &from.sa, from.len), 0);
	from.len = sizeof(from.ss);
	probe_poll(c, POLLIN, PROBE_PATIENCE);
	probe_want("recvfrom", recvfrom(c, buf, sizeof(buf), MSG_DONTWAIT, &from.sa, &from.len), 0);
	probe_check("from the server", probe_same(&from, &a));
	probe_line("heard", "%.3s", buf);
}

static void loopback_udp_connected(int family)
{
	int s = probe_socket(family, SOCK_DGRAM);
	int c = probe_socket(family, SOCK_DGRAM);

	probe_want("bind", probe_bind(s, probe_loopback(family, 0)), 0);
	probe_want("connect", probe_connect(c, probe_local(s)), 0);
	probe_names("client", c);
	probe_want("connect back", probe_connect(s, probe_local(c)), 0);
	probe_serve("talk", c, s, "connected");
	probe_serve("talk back", s, c, "both ways");
	probe_want("close server", close(s), 0);
	probe_want("send", send(c, "x", 1, 0), 0);
	probe_poll(c, POLLIN, PROBE_PATIENCE);
	probe_want("send again", send(c, "x", 1, 0), ECONNREFUSED);
}

/* A pair of datagram sockets, each bound first, as some programs build a
 * self-pipe. */
static void loopback_udp_range(int family)
{
	struct probe_addr a = probe_loopback(family, env.port);
	int s = probe_socket(family, SOCK_DGRAM);
	int c = probe_socket(family, SOCK_DGRAM);

	probe_want("bind", probe_bind(s, probe_any(family, env.port)), 0);
	probe_want("sendto over loopback", sendto(c, "self", 4, 0, &a.sa, a.len), 0);
	probe_line("poll", "%s", probe_events(probe_poll(s, POLLIN, PROBE_PATIENCE)));
}

const struct probe_case loopback_cases[] = {
	{"loopback-tcp-v4", loopback_tcp, AF_INET, 0},
	{"loopback-tcp-v6", loopback_tcp, AF_INET6, 0},
	{"loopback-nonblock-v4", loopback_nonblock, AF_INET, 0},
	{"loopback-nonblock-v6", loopback_nonblock, AF_INET6, 0},
	{"loopback-refused", loopback_refused, AF_INET, 0},
	{"loopback-private-v4", loopback_private, AF_INET, 0},
	{"loopback-private-v6", loopback_private, AF_INET6, 0},
	{"loopback-any-v4", loopback_any, AF_INET, 0},
	{"loopback-any-v6", loopback_any, AF_INET6, 0},
	{"loopback-mapped", loopback_mapped, AF_INET6, 0},
	{"loopback-bound-any", loopback_bound_any, AF_INET, 0},
	{"loopback-bound", loopback_bound, AF_INET, 0},
	{"loopback-self", loopback_self, AF_INET, 0},
	{"loopback-udp-v4", loopback_udp, AF_INET, 0},
	{"loopback-udp-v6", loopback_udp, AF_INET6, 0},
	{"loopback-udp-connected-v4", loopback_udp_connected, AF_INET, 0},
	{"loopback-udp-connected-v6", loopback_udp_connected, AF_INET6, 0},
	{"loopback-udp-range", loopback_udp_range, AF_INET, 1},
	{0},
};
