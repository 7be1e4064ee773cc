// SPDX-License-Identifier: Apache-2.0
/* connect(2) that succeeds or fails at once, and the names it leaves. */
#include "probe.h"

static void connect_blocking(int family)
{
	int fd = probe_fd("socket", socket(family, SOCK_STREAM, 0));

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "one");
	probe_echo("echo again", fd, "and two");
	probe_want("close", close(fd), 0);
	probe_want("close again", close(fd), EBADF);
}

static void connect_refused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int err = -1;
	socklen_t len = sizeof(err);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.closed)), ECONNREFUSED);
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
	probe_line("SO_ERROR", "%s", probe_errno(err));
	probe_names("refused", fd);
	probe_want("connect elsewhere", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "second try");
}

static void connect_names(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct probe_addr local, seen;

	probe_names("before", fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.peer)), 0);
	local = probe_local(fd);
	probe_name("local", &local);
	seen = probe_seen(fd);
	probe_check("local is the peer's view", probe_same(&local, &seen));
	fd = probe_echo_client(family);
	probe_names("after", fd);
}

static void connect_twice(int family)
{
	int fd = probe_echo_client(family);

	probe_want("connect again", probe_connect(fd, probe_peer(family, env.tcp)), EISCONN);
	probe_want("connect elsewhere", probe_connect(fd, probe_peer(family, env.closed)), EISCONN);
	probe_echo("echo", fd, "still here");
}

static void connect_mapped(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct probe_addr local, seen;

	probe_want("connect", probe_connect(fd, probe_mapped(env.peer)), 0);
	local = probe_local(fd);
	seen = probe_seen(fd);
	probe_check("local is the peer's view", probe_same(&local, &seen));
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("connect to echo", probe_connect(fd, probe_mapped(env.tcp)), 0);
	probe_names("after", fd);
	probe_echo("echo", fd, "mapped");
}

static void connect_v6only(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), one = 1;

	probe_want("V6ONLY", setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)), 0);
	probe_want("connect mapped", probe_connect(fd, probe_mapped(env.tcp)), ENETUNREACH);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "six only");
}

/* A client that chooses its port by bind keeps it through connect. */
static void connect_bound(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), port;
	struct probe_addr local, seen;

	probe_want("bind", probe_bind(fd, probe_any(family, 0)), 0);
	local = probe_local(fd);
	probe_name("bound", &local);
	port = probe_port(&local);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.peer)), 0);
	local = probe_local(fd);
	probe_name("connected", &local);
	probe_check("same port as before", probe_port(&local) == port);
	seen = probe_seen(fd);
	probe_check("local is the peer's view", probe_same(&local, &seen));
}

/* A client that chooses a port which no rule names is told the one that its peer sees. */
static void connect_bound_private(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), port = probe_private(0);
	struct probe_addr local, seen;

	probe_want("bind", probe_bind(fd, probe_any(family, port)), 0);
	local = probe_local(fd);
	probe_name("bound", &local);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.peer)), 0);
	local = probe_local(fd);
	seen = probe_seen(fd);
	probe_check("local is the peer's view", probe_same(&local, &seen));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	local = probe_local(fd);
	probe_name("dissolved", &local);
}

static void connect_bound_range(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	struct probe_addr seen;

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.peer)), 0);
	seen = probe_seen(fd);
	probe_name("seen by the peer", &seen);
	probe_names("connected", fd);
}

/* IP_BIND_ADDRESS_NO_PORT leaves the choice of the port to connect. */
static void connect_bound_late(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), one = 1;

	probe_want("option", setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)),
		   0);
	probe_want("bind", probe_bind(fd, probe_any(family, 0)), 0);
	probe_names("bound", fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_names("connected", fd);
	probe_echo("echo", fd, "late port");
}

/* From a loopback source no other machine can be reached. */
static void connect_bound_loopback(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINVAL);
	probe_names("after", fd);
}

/* connect(AF_UNSPEC) dissolves a connection; the socket can be used again. */
static void connect_unspec(int family)
{
	int fd = probe_echo_client(family);

	probe_echo("echo", fd, "first");
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_names("dissolved", fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_names("connected", fd);
	probe_echo("echo", fd, "second");
	probe_want("dissolve again", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect to closed", probe_connect(fd, probe_peer(family, env.closed)),
		   ECONNREFUSED);
}

/* Once used with another machine, a socket may still turn to the loopback. */
static void connect_unspec_loopback(int family)
{
	int l = probe_listener(probe_loopback(family, 0));
	int fd = probe_echo_client(family), conn;

	probe_echo("echo", fd, "outside");
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect", probe_connect(fd, probe_local(l)), 0);
	probe_names("connected", fd);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", fd, conn, "inside");
	probe_want("dissolve again", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect outside", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo again", fd, "outside again");
}

/* Addresses that no TCP connection can go to. */
static void connect_nowhere(int family)
{
	static const struct {
		const char *host;
		int family, err;
	} nowhere[] = {
		{"255.255.255.255", AF_INET, ENETUNREACH},
		{"224.0.0.1", AF_INET, ENETUNREACH},
		{"198.51.100.255", AF_INET, ENETUNREACH},
		{"ff02::1", AF_INET6, ENETUNREACH},
		{"fe80::1", AF_INET6, EINVAL},
	};

	(void)family;
	for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
		int fd = probe_socket(nowhere[i].family, SOCK_STREAM);

		probe_want(
			nowhere[i].host,
			probe_connect(fd, probe_text(nowhere[i].family, nowhere[i].host, env.tcp)),
			nowhere[i].err);
		close(fd);
	}
}

/* Port 0 is a port like any other on the wire. */
static void connect_port_zero(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("connect", probe_connect(fd, probe_peer(family, 0)), ECONNREFUSED);
}

static void connect_alt(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("connect", probe_connect(fd, probe_alt(env.tcp)), 0);
	probe_names("after", fd);
	probe_echo("echo", fd, "another network");
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("refused", probe_connect(fd, probe_alt(env.closed)), ECONNREFUSED);
}

/* A refused address of one network, then one of another, on one socket. */
static void connect_alt_then_peer(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("refused", probe_connect(fd, probe_alt(env.closed)), ECONNREFUSED);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "this one");
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect back", probe_connect(fd, probe_alt(env.tcp)), 0);
	probe_names("after", fd);
	probe_echo("echo", fd, "that one");
}

/* The fallback of a protocol that not every peer speaks. */
static void connect_mptcp(int family)
{
	int fd = probe_fd("socket", socket(family, SOCK_STREAM, 262));
	int protocol = 0;
	socklen_t len = sizeof(protocol);

	getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len);
	probe_line("protocol", "%d", protocol);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "multipath");
}

/* Data with the SYN, or with the handshake where no cookie is known. */
static void connect_fastopen(int family)
{
	struct probe_addr a = probe_peer(family, env.tcp);
	int fd = probe_socket(family, SOCK_STREAM), one = 1;
	char buf[8] = "";

	probe_want("sendto", sendto(fd, "fast", 4, MSG_FASTOPEN, &a.sa, a.len), 0);
	probe_check("echo", probe_read(fd, buf, 4) == 4 && !memcmp(buf, "fast", 4));
	probe_names("after", fd);
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("FASTOPEN_CONNECT",
		   setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof(one)), 0);
	probe_want("connect", probe_connect(fd, a), 0);
	probe_echo("echo", fd, "fast connect");
	fd = probe_socket(family, SOCK_STREAM);
	a = probe_peer(family, env.closed);
	probe_want("refused", sendto(fd, "fast", 4, MSG_FASTOPEN, &a.sa, a.len), ECONNREFUSED);
}

const struct probe_case connect_cases[] = {
	{"connect-v4", connect_blocking, AF_INET, 0},
	{"connect-v6", connect_blocking, AF_INET6, 0},
	{"connect-refused-v4", connect_refused, AF_INET, 0},
	{"connect-refused-v6", connect_refused, AF_INET6, 0},
	{"connect-names-v4", connect_names, AF_INET, 0},
	{"connect-names-v6", connect_names, AF_INET6, 0},
	{"connect-twice", connect_twice, AF_INET, 0},
	{"connect-mapped", connect_mapped, AF_INET6, 0},
	{"connect-v6only", connect_v6only, AF_INET6, 0},
	{"connect-bound-v4", connect_bound, AF_INET, 0},
	{"connect-bound-v6", connect_bound, AF_INET6, 0},
	{"connect-bound-private-v4", connect_bound_private, AF_INET, 1},
	{"connect-bound-private-v6", connect_bound_private, AF_INET6, 1},
	{"connect-bound-range-v4", connect_bound_range, AF_INET, 1},
	{"connect-bound-range-v6", connect_bound_range, AF_INET6, 1},
	{"connect-bound-late", connect_bound_late, AF_INET, 0},
	{"connect-bound-loopback", connect_bound_loopback, AF_INET, 0},
	{"connect-unspec-v4", connect_unspec, AF_INET, 0},
	{"connect-unspec-v6", connect_unspec, AF_INET6, 0},
	{"connect-unspec-loopback", connect_unspec_loopback, AF_INET, 0},
	{"connect-nowhere", connect_nowhere, 0, 0},
	{"connect-port-zero", connect_port_zero, AF_INET, 0},
	{"connect-alt", connect_alt, AF_INET, 0},
	{"connect-alt-then-peer", connect_alt_then_peer, AF_INET, 0},
	{"connect-mptcp", connect_mptcp, AF_INET, 0},
	{"connect-fastopen", connect_fastopen, AF_INET, 0},
	{0},
};
