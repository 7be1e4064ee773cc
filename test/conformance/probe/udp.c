// SPDX-License-Identifier: Apache-2.0
/* Datagram sockets of clients: connected, unconnected, changing. */
#include "probe.h"

static struct probe_addr udp_seen(int fd)
{
	if (send(fd, "who", 3, 0) != 3)
		probe_die("send");
	return probe_seen(fd);
}

/* Sends to an address and tells whether the echo came from there. */
static void udp_ask(const char *step, int fd, struct probe_addr a)
{
	struct probe_addr from = {.len = sizeof(from.ss)};
	char buf[16] = "";

	if (sendto(fd, "ask", 3, 0, &a.sa, a.len) != 3) {
		probe_want(step, -1, 0);
		return;
	}
	if (!probe_poll(fd, POLLIN, PROBE_PATIENCE)) {
		probe_check(step, false);
		return;
	}
	probe_want(step, recvfrom(fd, buf, sizeof(buf), MSG_DONTWAIT, &from.sa, &from.len), 0);
	probe_check("from where it was sent", probe_same(&from, &a));
}

static void udp_connected(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	struct probe_addr local, seen;

	probe_names("before", fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_names("after", fd);
	probe_echo("echo", fd, "datagram");
	probe_echo("echo again", fd, "another");
	fd = probe_socket(family, SOCK_DGRAM);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.upeer)), 0);
	local = probe_local(fd);
	seen = udp_seen(fd);
	probe_check("local is the peer's view", probe_same(&local, &seen));
}

static void udp_refused(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), err = -1;
	socklen_t len = sizeof(err);
	char byte;

	probe_want("connect", probe_connect(fd, probe_peer(family, env.closed)), 0);
	probe_want("send", send(fd, "x", 1, 0), 0);
	probe_line("poll", "%s",
		   probe_events(probe_poll(fd, POLLIN | POLLOUT, 0) & POLLERR
					? POLLERR
					: probe_poll(fd, POLLIN, PROBE_PATIENCE)));
	probe_want("recv", recv(fd, &byte, 1, MSG_DONTWAIT), ECONNREFUSED);
	probe_want("recv again", recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
	probe_want("send", send(fd, "x", 1, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("send gets it", send(fd, "x", 1, 0), ECONNREFUSED);
	probe_want("SO_ERROR", getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	probe_check("no error is left", err == 0);
	probe_want("connect elsewhere", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_echo("echo", fd, "recovered");
}

static void udp_unconnected(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), port, err = -1;
	socklen_t len = sizeof(err);
	struct probe_addr a;

	udp_ask("first", fd, probe_peer(family, env.udp));
	probe_names("sent", fd);
	a = probe_local(fd);
	port = probe_port(&a);
	udp_ask("second", fd, probe_peer(family, env.udp2));
	udp_ask("first again", fd, probe_peer(family, env.udp));
	a = probe_local(fd);
	probe_check("same port as before", probe_port(&a) == port);
	a = probe_peer(family, env.closed);
	probe_want("to closed", sendto(fd, "x", 1, 0, &a.sa, a.len), 0);
	/* The peer's kernel refuses the one before it gets the other. */
	udp_ask("no error comes", fd, probe_peer(family, env.udp));
	probe_want("SO_ERROR", getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	probe_check("no error came", err == 0);
	probe_want("send without address", send(fd, "x", 1, 0), EDESTADDRREQ);
}

/* A bound port is what the peer sees and keeps. */
static void udp_bound(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), port;
	struct probe_addr a, seen;

	probe_want("bind", probe_bind(fd, probe_any(family, 0)), 0);
	a = probe_local(fd);
	probe_name("bound", &a);
	port = probe_port(&a);
	udp_ask("ask", fd, probe_peer(family, env.udp));
	a = probe_local(fd);
	probe_name("sent", &a);
	probe_check("same port as before", probe_port(&a) == port);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.upeer)), 0);
	seen = udp_seen(fd);
	probe_check("the peer sees it", probe_port(&seen) == port);
	probe_want("bind again", probe_bind(fd, probe_any(family, 0)), EINVAL);
}

/* A socket that is bound to a port which no rule names is told, once connected, the port that its
 * peer sees. */
static void udp_bound_private(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), port = probe_private(0);
	struct probe_addr a, seen;

	probe_want("bind", probe_bind(fd, probe_any(family, port)), 0);
	udp_ask("ask", fd, probe_peer(family, env.udp));
	a = probe_local(fd);
	probe_name("sent", &a);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.upeer)), 0);
	a = probe_local(fd);
	seen = udp_seen(fd);
	probe_check("local is the peer's view", probe_same(&a, &seen));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	a = probe_local(fd);
	probe_name("dissolved", &a);
}

/* A connected socket hears only its peer; dissolved, it hears all. */
static void udp_unspec(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), other = probe_socket(family, SOCK_DGRAM);
	struct probe_addr b = probe_peer(family, env.udp2);
	char buf[8];

	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_echo("echo", fd, "one");
	probe_want("sendto another", sendto(fd, "x", 1, 0, &b.sa, b.len), 0);
	udp_ask("it answers a later one", other, b); /* its answers keep their order */
	probe_line("its answer", "%s", probe_events(probe_poll(fd, POLLIN, 0)));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_names("dissolved", fd);
	probe_want("send", send(fd, "x", 1, 0), EDESTADDRREQ);
	udp_ask("ask another", fd, b);
	probe_want("connect to it", probe_connect(fd, b), 0);
	probe_names("connected", fd);
	probe_echo("echo", fd, "two");
	probe_want("connect back", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_echo("echo", fd, "three");
	probe_want("nothing left", recv(fd, buf, 8, MSG_DONTWAIT), EAGAIN);
}

/* How resolvers find their source address: connect, look, do not send. */
static void udp_source(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	struct probe_addr a, b;

	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	a = probe_local(fd);
	probe_name("source", &a);
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect to loopback", probe_connect(fd, probe_loopback(family, 53)), 0);
	b = probe_local(fd);
	probe_name("source", &b);
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect again", probe_connect(fd, probe_peer(family, env.udp2)), 0);
	b = probe_local(fd);
	probe_name("source", &b);
	probe_echo("echo", fd, "sent after all");
}

static void udp_mapped(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);

	udp_ask("mapped", fd, probe_mapped(env.udp));
	udp_ask("v6 on the same socket", fd, probe_peer(family, env.udp));
	probe_want("connect mapped", probe_connect(fd, probe_mapped(env.udp)), 0);
	probe_names("connected", fd);
	probe_echo("echo", fd, "four in six");
}

/* One unconnected socket for another machine and for the loopback, as a
 * resolver with a local and a remote name server has it. */
static void udp_mixed(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	int s = probe_socket(family, SOCK_DGRAM);
	struct probe_addr a, from = {.len = sizeof(from.ss)};
	char buf[8];

	probe_want("bind", probe_bind(s, probe_loopback(family, 0)), 0);
	a = probe_local(s);
	udp_ask("outside", fd, probe_peer(family, env.udp));
	probe_want("inside", sendto(fd, "in", 2, 0, &a.sa, a.len), 0);
	probe_line("poll", "%s", probe_events(probe_poll(s, POLLIN, PROBE_PATIENCE)));
	probe_want("recvfrom", recvfrom(s, buf, 8, MSG_DONTWAIT, &from.sa, &from.len), 0);
	if (from.len == a.len)
		probe_want("answer", sendto(s, "back", 4, 0, &from.sa, from.len), 0);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLIN, PROBE_PATIENCE)));
	probe_want("recv", recv(fd, buf, 8, MSG_DONTWAIT), 0);
	udp_ask("outside again", fd, probe_peer(family, env.udp));
}

/* The other way round: first the loopback. */
static void udp_mixed_inside_first(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	int s = probe_socket(family, SOCK_DGRAM);
	struct probe_addr a;

	probe_want("bind", probe_bind(s, probe_loopback(family, 0)), 0);
	a = probe_local(s);
	probe_want("inside", sendto(fd, "in", 2, 0, &a.sa, a.len), 0);
	probe_line("poll", "%s", probe_events(probe_poll(s, POLLIN, PROBE_PATIENCE)));
	udp_ask("outside", fd, probe_peer(family, env.udp));
}

static void udp_alt(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);

	udp_ask("peer", fd, probe_peer(family, env.udp));
	udp_ask("another network", fd, probe_alt(env.udp));
	udp_ask("peer again", fd, probe_peer(family, env.udp));
	probe_want("connect", probe_connect(fd, probe_alt(env.udp2)), 0);
	probe_echo("echo", fd, "alt");
	probe_want("connect back", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_echo("echo", fd, "peer");
}

static void udp_broadcast(int family)
{
	struct probe_addr a = probe_text(family, "198.51.100.255", 9);
	int fd = probe_socket(family, SOCK_DGRAM), one = 1;

	probe_want("sendto", sendto(fd, "x", 1, 0, &a.sa, a.len), EACCES);
	probe_want("connect", probe_connect(fd, a), EACCES);
	probe_want("SO_BROADCAST", setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one)), 0);
	probe_want("sendto", sendto(fd, "x", 1, 0, &a.sa, a.len), 0);
	probe_want("connect", probe_connect(fd, a), 0);
}

const struct probe_case udp_cases[] = {
	{"udp-connected-v4", udp_connected, AF_INET, 0},
	{"udp-connected-v6", udp_connected, AF_INET6, 0},
	{"udp-refused-v4", udp_refused, AF_INET, 0},
	{"udp-refused-v6", udp_refused, AF_INET6, 0},
	{"udp-unconnected-v4", udp_unconnected, AF_INET, 0},
	{"udp-unconnected-v6", udp_unconnected, AF_INET6, 0},
	{"udp-bound-v4", udp_bound, AF_INET, 0},
	{"udp-bound-v6", udp_bound, AF_INET6, 0},
	{"udp-bound-private-v4", udp_bound_private, AF_INET, 1},
	{"udp-bound-private-v6", udp_bound_private, AF_INET6, 1},
	{"udp-unspec-v4", udp_unspec, AF_INET, 0},
	{"udp-unspec-v6", udp_unspec, AF_INET6, 0},
	{"udp-source-v4", udp_source, AF_INET, 0},
	{"udp-source-v6", udp_source, AF_INET6, 0},
	{"udp-mapped", udp_mapped, AF_INET6, 0},
	{"udp-mixed", udp_mixed, AF_INET, 0},
	{"udp-mixed-inside-first", udp_mixed_inside_first, AF_INET, 0},
	{"udp-alt", udp_alt, AF_INET, 0},
	{"udp-broadcast", udp_broadcast, AF_INET, 0},
	{0},
};
