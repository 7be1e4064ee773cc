// SPDX-License-Identifier: Apache-2.0
/* A program's own loopback: streams between its own sockets, at ports that no rule names. */
#include "probe.h"

enum { OWN_UNBOUND, OWN_LOOPBACK_ZERO, OWN_ANY_ZERO, OWN_LOOPBACK, OWN_ANY, OWN_WAYS };

static const char *const own_ways[OWN_WAYS] = {"unbound", "loopback, port 0", "any, port 0",
					       "loopback", "any"};

/* Binds a socket in one of the ways. The ports of a case are for one after the other. */
static void owntcp_bind(int fd, int family, int way, int port)
{
	struct probe_addr a = way == OWN_LOOPBACK || way == OWN_LOOPBACK_ZERO
				      ? probe_loopback(family, port)
				      : probe_any(family, port);
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (way == OWN_LOOPBACK_ZERO || way == OWN_ANY_ZERO)
		a = way == OWN_ANY_ZERO ? probe_any(family, 0) : probe_loopback(family, 0);
	if (way != OWN_UNBOUND)
		probe_want(own_ways[way], probe_bind(fd, a), 0);
}

/* A connection of a client to a server, which were bound in some way, with all names. */
static void owntcp_pair(int family, int server_way, int client_way, const char *to)
{
	int l = probe_socket(family, SOCK_STREAM), c = probe_socket(family, SOCK_STREAM), conn;
	struct probe_addr at, from, a, b;

	probe_line("server", "%s", own_ways[server_way]);
	owntcp_bind(l, family, server_way, probe_private(0));
	probe_want("listen", listen(l, 4), 0);
	at = probe_local(l);
	probe_host("listens", &at);
	probe_line("client", "%s", own_ways[client_way]);
	owntcp_bind(c, family, client_way, probe_private(1));
	a = probe_local(c);
	probe_host("bound", &a);
	probe_want("connect", probe_connect(c, probe_text(family, to, probe_port(&at))), 0);
	b = probe_local(c);
	probe_host("getsockname", &b);
	probe_check("the port that it had",
		    client_way == OWN_UNBOUND || probe_port(&a) == probe_port(&b));
	a = probe_remote(c);
	probe_host("getpeername", &a);
	probe_check("the server's port", probe_port(&a) == probe_port(&at));
	from.len = sizeof(from.ss);
	conn = probe_accept("accept", l, &from);
	probe_host("from", &from);
	probe_check("the client's name", probe_same(&from, &b));
	b = probe_remote(conn);
	probe_check("getpeername says so, too", probe_same(&from, &b));
	b = probe_local(conn);
	probe_check("the name that the client called", probe_same(&a, &b));
	probe_serve("talk", c, conn, "to the server");
	probe_serve("talk back", conn, c, "to the client");
	probe_abort(c);
	close(conn);
	close(l);
}

/* All ways to bind both ends. */
static void owntcp_names(int family)
{
	for (int server = 0; server < OWN_WAYS; server++)
		for (int client = 0; client < OWN_WAYS; client++)
			owntcp_pair(family, server, client,
				    family == AF_INET ? "127.0.0.1" : "::1");
}

/* An IPv6 server for both families is called by IPv4. */
static void owntcp_dual(int family)
{
	int l = probe_listener(probe_any(family, probe_private(0))), conn;
	int c = probe_socket(AF_INET, SOCK_STREAM);
	struct probe_addr from = {.len = sizeof(from.ss)};

	owntcp_pair(family, OWN_UNBOUND, OWN_UNBOUND, "::ffff:127.0.0.1");
	owntcp_pair(family, OWN_UNBOUND, OWN_ANY, "::ffff:127.0.0.1");
	probe_want("connect", probe_connect(c, probe_loopback(AF_INET, probe_private(0))), 0);
	conn = probe_accept("accept", l, &from);
	probe_host("from", &from);
	from = probe_local(conn);
	probe_host("at", &from);
	probe_names("client", c);
}

/* The any address as a destination, whichever address the server has. */
static void owntcp_any(int family)
{
	const char *any = family == AF_INET ? "0.0.0.0" : "::";

	owntcp_pair(family, OWN_LOOPBACK, OWN_UNBOUND, any);
	owntcp_pair(family, OWN_ANY, OWN_UNBOUND, any);
	owntcp_pair(family, OWN_UNBOUND, OWN_ANY, any);
}

/* A closed port, by each kind of call. */
static void owntcp_refused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK), err = 0;
	struct probe_addr to = probe_loopback(family, probe_private(0));
	socklen_t len = sizeof(err);
	int l = probe_listener(to);

	close(l);
	probe_want("connect", probe_connect(probe_socket(family, SOCK_STREAM), to), ECONNREFUSED);
	probe_rc("not waiting", probe_connect(fd, to));
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	probe_want("SO_ERROR", getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	probe_line("error", "%s", probe_errno(err));
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("never bound", probe_connect(fd, probe_loopback(family, probe_private(1))),
		   ECONNREFUSED);
	probe_want("again", probe_connect(fd, probe_loopback(family, probe_private(1))),
		   ECONNREFUSED);
	l = probe_listener(to);
	probe_want("then somebody is there", probe_connect(fd, to), 0);
}

static int owntcp_state(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
	return info.tcpi_state;
}

/* A full queue: a client waits half open until the server accepts one that came before. */
static void owntcp_backlog(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_socket(family, SOCK_STREAM), c[4], accepted = 0;

	probe_want("bind", probe_bind(l, to), 0);
	probe_want("listen", listen(l, 1), 0);
	for (int i = 0; i < 4; i++) {
		c[i] = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
		probe_want("connect", probe_connect(c[i], to), EINPROGRESS);
		if (i < 2) /* the queue has room for one more than it says */
			probe_line("connected", "%s",
				   probe_events(probe_poll(c[i], POLLOUT, PROBE_PATIENCE)));
		else
			probe_check("half open", owntcp_state(c[i]) == TCP_SYN_SENT);
	}
	probe_want("listen with more room", listen(l, 16), 0);
	while (accepted < 4) {
		close(probe_accept("accept", l, NULL));
		accepted++;
	}
	for (int i = 0; i < 4; i++)
		probe_line("told", "%s", probe_events(probe_poll(c[i], POLLIN, PROBE_PATIENCE)));
}

/* Each end closes its half; then a reset. */
static void owntcp_halves(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_listener(to), c = probe_socket(family, SOCK_STREAM), conn;
	char buf[16];

	probe_want("connect", probe_connect(c, to), 0);
	conn = probe_accept("accept", l, NULL);
	probe_want("shut", shutdown(c, SHUT_WR), 0);
	probe_want("end", probe_read(conn, buf, 1), 0);
	probe_serve("the other half", conn, c, "is open");
	probe_want("write to the shut half", send(c, "x", 1, MSG_NOSIGNAL), EPIPE);
	close(conn);
	probe_want("end", probe_read(c, buf, 1), 0);
	close(c);
	c = probe_socket(family, SOCK_STREAM);
	probe_want("connect", probe_connect(c, to), 0);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "then");
	probe_abort(conn);
	probe_line("poll", "%s", probe_events(probe_poll(c, POLLIN, PROBE_PATIENCE)));
	probe_want("read after a reset", read(c, buf, 1), ECONNRESET);
	probe_want("write after a reset", send(c, "x", 1, MSG_NOSIGNAL), EPIPE);
	c = probe_socket(family, SOCK_STREAM);
	probe_want("connect", probe_connect(c, to), 0);
	probe_poll(l, POLLIN, PROBE_PATIENCE);
	close(l);
	probe_poll(c, POLLIN, PROBE_PATIENCE);
	probe_want("the server closes before it accepts", read(c, buf, 1), ECONNRESET);
}

/* Two clients of one chosen port, one to another machine and one to an own server. */
static void owntcp_client_port(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0)), from;
	int l = probe_listener(to), far = probe_socket(family, SOCK_STREAM), conn;
	int near = probe_socket(family, SOCK_STREAM);

	owntcp_bind(far, family, OWN_ANY, probe_private(1));
	owntcp_bind(near, family, OWN_ANY, probe_private(1));
	probe_want("connect far", probe_connect(far, probe_peer(family, env.tcp)), 0);
	probe_want("connect near", probe_connect(near, to), 0);
	probe_names("far", far);
	probe_names("near", near);
	from.len = sizeof(from.ss);
	conn = probe_accept("accept", l, &from);
	probe_host("from", &from);
	probe_echo("echo", far, "far");
	probe_serve("talk", near, conn, "near");
	probe_want(
		"again",
		probe_bind(probe_socket(family, SOCK_STREAM), probe_any(family, probe_private(1))),
		EADDRINUSE);
}

/* A socket that goes from one destination to the next. */
static void owntcp_unspec(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_listener(to), fd = probe_socket(family, SOCK_STREAM), conn;

	probe_want("connect", probe_connect(fd, to), 0);
	close(probe_accept("accept", l, NULL));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("getpeername", getpeername(fd, &to.sa, &to.len), ENOTCONN);
	probe_want("connect far", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "far");
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	to = probe_loopback(family, probe_private(0));
	probe_want("connect again", probe_connect(fd, to), 0);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", fd, conn, "near again");
	probe_names("client", fd);
}

/* A client that becomes a server. */
static void owntcp_unspec_bind(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_listener(to), fd = probe_socket(family, SOCK_STREAM);

	probe_want("connect", probe_connect(fd, to), 0);
	close(probe_accept("accept", l, NULL));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	owntcp_bind(fd, family, OWN_LOOPBACK, probe_private(1));
	probe_want("listen", listen(fd, 1), 0);
	to = probe_loopback(family, probe_private(1));
	if (probe_want("is called", probe_connect(probe_socket(family, SOCK_STREAM), to), 0) == 0)
		probe_accept("accept", fd, NULL);
}

/* A socket that connects to itself, at a port of its choice. */
static void owntcp_self(int family)
{
	struct probe_addr at = probe_loopback(family, probe_private(0));
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("bind", probe_bind(fd, at), 0);
	probe_want("connect to itself", probe_connect(fd, at), 0);
	probe_names("itself", fd);
	probe_echo("talk", fd, "who is there");
}

/* Data with the call that connects. */
static void owntcp_fastopen(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_socket(family, SOCK_STREAM), c, conn, queue = 4, one = 1;
	char buf[8] = "";

	probe_want("bind", probe_bind(l, to), 0);
	probe_want("TCP_FASTOPEN", setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof(queue)),
		   0);
	probe_want("listen", listen(l, 4), 0);
	for (int i = 0; i < 3; i++) { /* the first gets a cookie */
		c = probe_socket(family, SOCK_STREAM);
		if (i < 2) {
			probe_want("sendto", sendto(c, "fast", 4, MSG_FASTOPEN, &to.sa, to.len), 0);
		} else {
			setsockopt(c, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof(one));
			probe_want("connect", probe_connect(c, to), 0);
			probe_want("send", send(c, "fast", 4, 0), 0);
		}
		conn = probe_accept("accept", l, NULL);
		probe_want("read", probe_read(conn, buf, 4), 0);
		probe_check("what was sent", !memcmp(buf, "fast", 4));
		probe_names("client", c);
		probe_serve("talk back", conn, c, "heard");
		probe_abort(c);
		close(conn);
	}
	close(l);
	c = probe_socket(family, SOCK_STREAM);
	probe_want("nobody there", sendto(c, "fast", 4, MSG_FASTOPEN, &to.sa, to.len),
		   ECONNREFUSED);
}

/* Both ends bound to the loopback's device. */
static void owntcp_device(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int l = probe_socket(family, SOCK_STREAM), c = probe_socket(family, SOCK_STREAM), conn;
	char name[16] = "";
	socklen_t len = sizeof(name);

	probe_want("server's device", setsockopt(l, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3), 0);
	probe_want("client's device", setsockopt(c, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3), 0);
	probe_want("getsockopt", getsockopt(c, SOL_SOCKET, SO_BINDTODEVICE, name, &len), 0);
	probe_line("device", "%s", name);
	probe_want("bind", probe_bind(l, to), 0);
	probe_want("listen", listen(l, 1), 0);
	probe_want("connect", probe_connect(c, to), 0);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "by the device");
}

const struct probe_case owntcp_cases[] = {
	{"own-names-tcp-v4", owntcp_names, AF_INET, 2},
	{"own-names-tcp-v6", owntcp_names, AF_INET6, 2},
	{"own-dual-tcp", owntcp_dual, AF_INET6, 2},
	{"own-any-tcp-v4", owntcp_any, AF_INET, 2},
	{"own-any-tcp-v6", owntcp_any, AF_INET6, 2},
	{"own-refused-tcp-v4", owntcp_refused, AF_INET, 2},
	{"own-refused-tcp-v6", owntcp_refused, AF_INET6, 2},
	{"own-backlog-v4", owntcp_backlog, AF_INET, 1},
	{"own-backlog-v6", owntcp_backlog, AF_INET6, 1},
	{"own-halves-v4", owntcp_halves, AF_INET, 1},
	{"own-halves-v6", owntcp_halves, AF_INET6, 1},
	{"own-client-port-v4", owntcp_client_port, AF_INET, 2},
	{"own-client-port-v6", owntcp_client_port, AF_INET6, 2},
	{"own-unspec-tcp-v4", owntcp_unspec, AF_INET, 2},
	{"own-unspec-tcp-v6", owntcp_unspec, AF_INET6, 2},
	{"own-unspec-bind-v4", owntcp_unspec_bind, AF_INET, 2},
	{"own-unspec-bind-v6", owntcp_unspec_bind, AF_INET6, 2},
	{"own-self-v4", owntcp_self, AF_INET, 1},
	{"own-self-v6", owntcp_self, AF_INET6, 1},
	{"own-fastopen-v4", owntcp_fastopen, AF_INET, 1},
	{"own-fastopen-v6", owntcp_fastopen, AF_INET6, 1},
	{"own-device", owntcp_device, AF_INET, 1},
	{0},
};
