// SPDX-License-Identifier: Apache-2.0
/*
 * A program's own loopback: who has a port of it. The ports are private, no rule names them.
 *
 * Connections end by a reset, so that none leaves its port in TIME_WAIT.
 */
#include "probe.h"

#include <arpa/inet.h>
#include <sys/resource.h>

struct own_host {
	const char *host;
	int family;
	int only; /* IPV6_V6ONLY */
};

static const struct own_host own_hosts[] = {
	{"0.0.0.0", AF_INET, 0},
	{"127.0.0.1", AF_INET, 0},
	{"127.0.0.53", AF_INET, 0},
	{"::", AF_INET6, 0},
	{"::", AF_INET6, 1},
	{"::1", AF_INET6, 0},
	{"::ffff:127.0.0.1", AF_INET6, 0},
};

#define OWN_HOSTS ((int)(sizeof(own_hosts) / sizeof(own_hosts[0])))

/* The IPv4 address that a socket of a host has, or what no address is. */
static const char *own_in4(const struct own_host *h)
{
	if (h->family == AF_INET)
		return h->host;
	if (!strncmp(h->host, "::ffff:", 7))
		return h->host + 7;
	return strcmp(h->host, "::") || h->only ? "none" : "0.0.0.0";
}

static const char *own_in6(const struct own_host *h)
{
	return h->family == AF_INET || strchr(h->host, '.') ? "none" : h->host;
}

static bool own_meet(const char *a, const char *b, const char *any)
{
	if (!strcmp(a, "none") || !strcmp(b, "none"))
		return false;
	return !strcmp(a, b) || !strcmp(a, any) || !strcmp(b, any);
}

/* Whether sockets of two hosts have an address in common. */
static bool own_overlap(const struct own_host *a, const struct own_host *b)
{
	return own_meet(own_in4(a), own_in4(b), "0.0.0.0") ||
	       own_meet(own_in6(a), own_in6(b), "::");
}

static int own_socket(const struct own_host *h, int type)
{
	int fd = probe_socket(h->family, type);

	if (h->only && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &h->only, sizeof(h->only)))
		probe_die("IPV6_V6ONLY");
	return fd;
}

static long own_bind(int fd, const struct own_host *h, int port)
{
	return probe_bind(fd, probe_text(h->family, h->host, port));
}

/* Which binds of one port exclude each other, in both orders. */
static void own_conflict(int type)
{
	int port = probe_private(0);

	for (int i = 0; i < OWN_HOSTS * OWN_HOSTS; i++) {
		const struct own_host *a = &own_hosts[i / OWN_HOSTS];
		const struct own_host *b = &own_hosts[i % OWN_HOSTS];
		int first = own_socket(a, type), second = own_socket(b, type);
		char step[96];

		snprintf(step, sizeof(step), "%s%s, then %s%s", a->host, a->only ? " only" : "",
			 b->host, b->only ? " only" : "");
		if (own_bind(first, a, port))
			probe_die(step);
		probe_want(step, own_bind(second, b, port), own_overlap(a, b) ? EADDRINUSE : 0);
		close(first);
		close(second);
	}
}

/* Which of some servers has data or a connection; -1 if none comes. */
static int own_ready(const int *servers, int n)
{
	struct pollfd p[4];

	for (int i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = servers[i], .events = POLLIN};
	if (poll(p, n, PROBE_PATIENCE) <= 0)
		return -1;
	for (int i = 0; i < n; i++)
		if (p[i].revents)
			return i;
	return -1;
}

/* A client of a TCP server: who is asked, and that the names of both ends are each other's. */
static void own_ask_tcp(const char *step, int c, const int *servers, int n, int holder)
{
	struct probe_addr from = {.len = sizeof(from.ss)}, local = probe_local(c), peer;
	int i = own_ready(servers, n), conn;

	probe_check(step, i == holder);
	conn = accept(servers[i], &from.sa, &from.len);
	probe_host("accepted from", &from);
	peer = probe_remote(conn);
	probe_check("by that name", probe_same(&from, &peer));
	probe_check("from the client's port", probe_port(&from) == probe_port(&local));
	peer = probe_local(conn);
	probe_host("accepted at", &peer);
	probe_check("at the port", probe_port(&peer) == probe_private(0));
	probe_serve("talk", c, conn, "to the server");
	probe_serve("talk back", conn, c, "to the client");
	probe_abort(c);
	probe_abort(conn);
}

/* A client of a UDP server, which answers. */
static void own_ask_udp(const char *step, int c, const int *servers, int n, int holder)
{
	struct probe_addr from = {.len = sizeof(from.ss)}, local = probe_local(c);
	char buf[16] = "";
	int i = own_ready(servers, n);

	probe_check(step, i == holder);
	recvfrom(servers[i], buf, sizeof(buf), 0, &from.sa, &from.len);
	probe_host("heard from", &from);
	probe_check("from the client's port", probe_port(&from) == probe_port(&local));
	probe_want("answer", sendto(servers[i], "answer", 6, 0, &from.sa, from.len), 0);
	probe_poll(c, POLLIN, PROBE_PATIENCE);
	from.len = sizeof(from.ss);
	probe_want("recvfrom", recvfrom(c, buf, sizeof(buf), MSG_DONTWAIT, &from.sa, &from.len), 0);
	probe_host("answered from", &from);
	probe_check("at the port", probe_port(&from) == probe_private(0));
	close(c);
}

/* A client that asks by one address. Only who is connected hears that nobody is there. */
static void own_client(int type, const struct own_host *to, const int *servers, int n, int holder)
{
	struct probe_addr at = probe_text(to->family, to->host, probe_private(0));
	int c = probe_socket(to->family, type);
	bool tcp = type == SOCK_STREAM;
	char step[64], byte;

	snprintf(step, sizeof(step), "to %s", to->host);
	if (tcp || holder < 0)
		probe_want(step, probe_connect(c, at), tcp && holder < 0 ? ECONNREFUSED : 0);
	if (tcp && holder >= 0) {
		own_ask_tcp(step, c, servers, n, holder);
	} else if (!tcp && holder >= 0) {
		probe_want(step, sendto(c, "question", 8, 0, &at.sa, at.len), 0);
		own_ask_udp(step, c, servers, n, holder);
	} else if (!tcp) {
		probe_want("send", send(c, "question", 8, 0), 0);
		probe_poll(c, POLLIN, PROBE_PATIENCE);
		probe_want("recv", recv(c, &byte, 1, MSG_DONTWAIT), ECONNREFUSED);
	}
}

/* One client for each address that leads to the loopback. */
static void own_clients(int type, const struct own_host *const *hosts, const int *servers, int n)
{
	static const struct own_host in4 = {"127.0.0.1", AF_INET, 0}, in6 = {"::1", AF_INET6, 0};
	static const struct own_host to[] = {
		{"127.0.0.1", AF_INET, 0},
		{"127.0.0.53", AF_INET, 0},
		{"127.0.0.99", AF_INET, 0},
		{"0.0.0.0", AF_INET, 0},
		{"::1", AF_INET6, 0},
		{"::", AF_INET6, 0},
		{"::ffff:127.0.0.1", AF_INET6, 0},
	};

	for (int k = 0; k < (int)(sizeof(to) / sizeof(to[0])); k++) {
		const struct own_host *at = &to[k];
		int holder = -1;

		at = !strcmp(at->host, "0.0.0.0") ? &in4 : !strcmp(at->host, "::") ? &in6 : at;
		for (int i = n - 1; i >= 0; i--)
			holder = own_overlap(hosts[i], at) ? i : holder;
		own_client(type, &to[k], servers, n, holder);
	}
}

/* Servers of one port that stand beside each other, and who of them is asked. */
static void own_serve(int type)
{
	static const struct own_host *const sets[][4] = {
		{&own_hosts[1], &own_hosts[2], &own_hosts[5]}, /* 127.0.0.1, 127.0.0.53, ::1 */
		{&own_hosts[0], &own_hosts[4]},		       /* both wildcards */
		{&own_hosts[4], &own_hosts[0]},
		{&own_hosts[3]}, /* one for both */
		{&own_hosts[1], &own_hosts[4]},
		{&own_hosts[5], &own_hosts[0]},
		{&own_hosts[6], &own_hosts[5]},
	};

	for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
		int servers[4], n = 0;

		for (; n < 4 && sets[s][n]; n++) {
			servers[n] = own_socket(sets[s][n], type);
			probe_want(sets[s][n]->host,
				   own_bind(servers[n], sets[s][n], probe_private(0)), 0);
			if (type == SOCK_STREAM)
				probe_want("listen", listen(servers[n], 4), 0);
		}
		own_clients(type, sets[s], servers, n);
		while (n--)
			close(servers[n]);
	}
}

/* Few: a socket that moves from another namespace to this one keeps its port if that is free here.
 */
#define OWN_EPHEMERAL 16

/* Ports of the kernel's choice are all different, and of its range. */
static void own_ephemeral_at(struct probe_addr at, int type)
{
	bool seen[65536] = {false};
	int fds[OWN_EPHEMERAL], low = 0, high = 0, twice = 0, outside = 0;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");

	if (!f || fscanf(f, "%d %d", &low, &high) != 2)
		probe_die("ip_local_port_range");
	fclose(f);
	for (int i = 0; i < OWN_EPHEMERAL; i++) {
		struct probe_addr a;
		int port;

		fds[i] = probe_socket(AF_INET, type);
		if (probe_bind(fds[i], at))
			probe_die("bind");
		a = probe_local(fds[i]);
		port = probe_port(&a);
		twice += seen[port];
		outside += port < low || port > high;
		seen[port] = true;
	}
	probe_check("all different", !twice);
	probe_check("all of the range", !outside);
	for (int i = 0; i < OWN_EPHEMERAL; i++)
		close(fds[i]);
}

static void own_ephemeral(int type)
{
	own_ephemeral_at(probe_loopback(AF_INET, 0), type);
	own_ephemeral_at(probe_any(AF_INET, 0), type);
}

/* Two that want it share a port, but for listening. */
static void own_reuseaddr(int family)
{
	int a = probe_socket(family, SOCK_STREAM), b = probe_socket(family, SOCK_STREAM);
	int c = probe_socket(family, SOCK_STREAM), one = 1;
	struct probe_addr at = probe_loopback(family, probe_private(0));

	setsockopt(a, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(b, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	probe_want("first", probe_bind(a, at), 0);
	probe_want("second", probe_bind(b, probe_any(family, probe_private(0))), 0);
	probe_want("without", probe_bind(c, at), EADDRINUSE);
	probe_want("first listens", listen(a, 1), 0);
	probe_want("second listens", listen(b, 1), EADDRINUSE);
	probe_want("connect", probe_connect(c, at), 0);
	probe_abort(c);
	probe_want("close first", close(a), 0);
	probe_want("second listens now", listen(b, 1), 0);
	probe_want("connect", probe_connect(probe_socket(family, SOCK_STREAM), at), 0);
	probe_accept("accept", b, NULL);
}

/* A closed server's port is free at once, every time. */
static void own_rebind(int type)
{
	struct probe_addr at[] = {probe_loopback(AF_INET, probe_private(0)),
				  probe_any(AF_INET, probe_private(0)),
				  probe_any(AF_INET6, probe_private(0))};
	int taken = 0, unheard = 0;

	for (int i = 0; i < 150; i++) {
		struct probe_addr *a = &at[i % 3];
		int fd = probe_socket(a->sa.sa_family, type), c = probe_socket(AF_INET, type);

		taken += probe_bind(fd, *a) || (type == SOCK_STREAM && listen(fd, 1));
		unheard += probe_connect(c, at[0]) || send(c, "x", 1, 0) != 1 ||
			   !probe_poll(fd, POLLIN, PROBE_PATIENCE);
		if (type == SOCK_STREAM)
			probe_abort(c);
		else
			close(c);
		close(fd);
	}
	probe_check("always free", !taken);
	probe_check("always heard", !unheard);
}

/* A server that closed first cannot have its port again at once, unless it asks for that. */
static void own_time_wait(int family)
{
	struct probe_addr at = probe_loopback(family, probe_private(0));
	int l = probe_socket(family, SOCK_STREAM), c = probe_socket(family, SOCK_STREAM);
	int one = 1, conn;
	char byte;

	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	probe_want("bind", probe_bind(l, at), 0);
	probe_want("listen", listen(l, 1), 0);
	probe_want("connect", probe_connect(c, at), 0);
	conn = probe_accept("accept", l, NULL);
	close(l);
	close(conn);
	probe_want("read to the end", read(c, &byte, 1), 0);
	close(c);
	l = probe_socket(family, SOCK_STREAM);
	probe_want("without SO_REUSEADDR", probe_bind(l, at), EADDRINUSE);
	probe_want("the wildcard", probe_bind(l, probe_any(family, probe_private(0))), EADDRINUSE);
	probe_want("SO_REUSEADDR", setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
	probe_want("with", probe_bind(l, at), 0);
	probe_want("listen", listen(l, 1), 0);
	c = probe_socket(family, SOCK_STREAM);
	probe_want("connect", probe_connect(c, at), 0);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", c, conn, "again");
}

#define OWN_MANY       100   /* where a bind moves a socket, each looks at all descriptors */
#define OWN_MANY_FIRST 20000 /* no other case has these */

static void own_many(int family)
{
	static int l[OWN_MANY];
	struct rlimit files = {4096, 4096};
	int bad = 0;

	if (setrlimit(RLIMIT_NOFILE, &files))
		probe_die("setrlimit");
	for (int i = 0; i < OWN_MANY; i++) {
		l[i] = probe_socket(family, SOCK_STREAM);
		if (probe_bind(l[i], probe_loopback(family, OWN_MANY_FIRST + i)))
			probe_die("bind");
		bad += listen(l[i], 1) != 0;
	}
	probe_check("all listen", !bad);
	for (int i = 0; i < OWN_MANY; i += OWN_MANY / 50) {
		int c = probe_socket(family, SOCK_STREAM), conn;
		struct probe_addr to = probe_loopback(family, OWN_MANY_FIRST + i), at;

		bad += probe_connect(c, to) || !probe_poll(l[i], POLLIN, PROBE_PATIENCE);
		conn = accept(l[i], NULL, NULL);
		at = probe_local(conn);
		bad += !probe_same(&at, &to);
		probe_abort(c);
		close(conn);
	}
	probe_check("they are reached", !bad);
}

const struct probe_case own_cases[] = {
	{"own-conflict-tcp", own_conflict, SOCK_STREAM, 1},
	{"own-conflict-udp", own_conflict, SOCK_DGRAM, 1},
	{"own-serve-tcp", own_serve, SOCK_STREAM, 1},
	{"own-serve-udp", own_serve, SOCK_DGRAM, 1},
	{"own-ephemeral-tcp", own_ephemeral, SOCK_STREAM, 0},
	{"own-ephemeral-udp", own_ephemeral, SOCK_DGRAM, 0},
	{"own-reuseaddr-v4", own_reuseaddr, AF_INET, 1},
	{"own-reuseaddr-v6", own_reuseaddr, AF_INET6, 1},
	{"own-rebind-tcp", own_rebind, SOCK_STREAM, 1},
	{"own-rebind-udp", own_rebind, SOCK_DGRAM, 1},
	{"own-time-wait-v4", own_time_wait, AF_INET, 1},
	{"own-time-wait-v6", own_time_wait, AF_INET6, 1},
	{"own-many", own_many, AF_INET, 0},
	{0},
};
