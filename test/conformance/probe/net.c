// SPDX-License-Identifier: Apache-2.0
/* Addresses, printed as relations, and the conversations most cases have. */
#include "probe.h"

#include <arpa/inet.h>

static struct probe_addr addr_make(int family, const void *host, int port)
{
	struct probe_addr a;

	memset(&a, 0, sizeof(a));
	a.sa.sa_family = family;
	if (family == AF_INET6) {
		a.in6.sin6_port = htons(port);
		memcpy(&a.in6.sin6_addr, host, sizeof(a.in6.sin6_addr));
		a.len = sizeof(a.in6);
	} else {
		a.in.sin_port = htons(port);
		memcpy(&a.in.sin_addr, host, sizeof(a.in.sin_addr));
		a.len = sizeof(a.in);
	}
	return a;
}

/* addr_map makes a v4-mapped IPv6 address of an IPv4 address. */
static struct in6_addr addr_map(struct in_addr v4)
{
	struct in6_addr host = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

	memcpy(&host.s6_addr[12], &v4, sizeof(v4));
	return host;
}

struct probe_addr probe_peer(int family, int port)
{
	if (family == AF_INET6)
		return addr_make(family, &env.v6, port);
	return addr_make(family, &env.v4, port);
}

/* The IPv4 peer, for an IPv6 socket. */
struct probe_addr probe_mapped(int port)
{
	struct in6_addr host = addr_map(env.v4);

	return addr_make(AF_INET6, &host, port);
}

/* The IPv4 peer's address on the other network. */
struct probe_addr probe_alt(int port)
{
	return addr_make(AF_INET, &env.alt, port);
}

struct probe_addr probe_any(int family, int port)
{
	return probe_text(family, family == AF_INET6 ? "::" : "0.0.0.0", port);
}

struct probe_addr probe_loopback(int family, int port)
{
	return probe_text(family, family == AF_INET6 ? "::1" : "127.0.0.1", port);
}

struct probe_addr probe_text(int family, const char *host, int port)
{
	struct in6_addr bytes;

	if (inet_pton(family, host, &bytes) != 1)
		probe_die(host);
	return addr_make(family, &bytes, port);
}

struct probe_addr probe_unspec(void)
{
	struct probe_addr a = {.len = sizeof(a.in)};

	a.sa.sa_family = AF_UNSPEC;
	return a;
}

int probe_port(const struct probe_addr *a)
{
	return ntohs(a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

/* A port that no rule names. Each of a case's ports has one such beside it. */
int probe_private(int n)
{
	return env.port + 20000 + n;
}

bool probe_same(const struct probe_addr *a, const struct probe_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family || probe_port(a) != probe_port(b))
		return false;
	if (a->sa.sa_family == AF_INET6)
		return !memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr));
	return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
}

int probe_socket(int family, int type)
{
	int fd = socket(family, type, 0);

	if (fd < 0)
		probe_die("socket");
	return fd;
}

int probe_connect(int fd, struct probe_addr a)
{
	return connect(fd, &a.sa, a.len);
}

int probe_bind(int fd, struct probe_addr a)
{
	return bind(fd, &a.sa, a.len);
}

struct probe_addr probe_local(int fd)
{
	struct probe_addr a = {.len = sizeof(a.ss)};

	if (getsockname(fd, &a.sa, &a.len))
		probe_die("getsockname");
	return a;
}

struct probe_addr probe_remote(int fd)
{
	struct probe_addr a = {.len = sizeof(a.ss)};

	if (getpeername(fd, &a.sa, &a.len))
		probe_die("getpeername");
	return a;
}

static const char *name_host(const struct probe_addr *a)
{
	struct in6_addr mapped;

	if (a->sa.sa_family == AF_INET) {
		if (a->in.sin_addr.s_addr == INADDR_ANY)
			return "any";
		if ((ntohl(a->in.sin_addr.s_addr) >> 24) == 127)
			return "loopback";
		if (a->in.sin_addr.s_addr == env.alt.s_addr)
			return "alt";
		return a->in.sin_addr.s_addr == env.v4.s_addr ? "peer" : "own";
	}
	mapped = addr_map(env.v4);
	if (!memcmp(&a->in6.sin6_addr, &mapped, sizeof(mapped)))
		return "mapped peer";
	if (IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
		return a->in6.sin6_addr.s6_addr[12] == 127 ? "mapped loopback" : "mapped own";
	if (IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr))
		return "any";
	if (IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr))
		return "loopback";
	return memcmp(&a->in6.sin6_addr, &env.v6, sizeof(env.v6)) ? "own" : "peer";
}

static const char *name_port(int port)
{
	static _Thread_local char text[16];

	if (port == 0)
		return "zero";
	if (port == env.tcp)
		return "tcp";
	if (port == env.udp)
		return "udp";
	if (port == env.udp2)
		return "udp2";
	if (port >= env.port && port < env.port + 10) {
		snprintf(text, sizeof(text), "mine+%d", port - env.port);
		return text;
	}
	if (port >= probe_private(0) && port < probe_private(10)) {
		snprintf(text, sizeof(text), "private+%d", port - probe_private(0));
		return text;
	}
	return "nonzero";
}

/* Prints an address as the relations that hold in every network. */
void probe_name(const char *step, const struct probe_addr *a)
{
	switch (a->sa.sa_family) {
	case AF_INET:
		probe_line(step, "inet %s port %s len %d", name_host(a), name_port(probe_port(a)),
			   (int)a->len);
		break;
	case AF_INET6:
		probe_line(step, "inet6 %s port %s len %d scope %u", name_host(a),
			   name_port(probe_port(a)), (int)a->len, a->in6.sin6_scope_id);
		break;
	default:
		probe_line(step, "family %d len %d", a->sa.sa_family, (int)a->len);
	}
}

/* Prints an address of the loopback as it is, and its port as a relation. */
void probe_host(const char *step, const struct probe_addr *a)
{
	char host[INET6_ADDRSTRLEN] = "";
	const void *bytes = &a->in.sin_addr;

	if (a->sa.sa_family == AF_INET6)
		bytes = &a->in6.sin6_addr;
	inet_ntop(a->sa.sa_family, bytes, host, sizeof(host));
	probe_line(step, "%s port %s", host, name_port(probe_port(a)));
}

/* Prints both names of a socket; not having a peer is an answer too. */
void probe_names(const char *when, int fd)
{
	struct probe_addr a = {.len = sizeof(a.ss)};
	char step[64];

	snprintf(step, sizeof(step), "%s getsockname", when);
	if (getsockname(fd, &a.sa, &a.len))
		probe_rc(step, -1);
	else
		probe_name(step, &a);
	a.len = sizeof(a.ss);
	snprintf(step, sizeof(step), "%s getpeername", when);
	if (getpeername(fd, &a.sa, &a.len))
		probe_rc(step, -1);
	else
		probe_name(step, &a);
}

/* What poll(2) says of one descriptor; 0 after the time. */
int probe_poll(int fd, int events, int ms)
{
	struct pollfd p = {.fd = fd, .events = events};
	int n;

	do {
		n = poll(&p, 1, ms);
	} while (n < 0 && errno == EINTR);
	return n > 0 ? p.revents : 0;
}

/* Reads len bytes, or fewer where the stream ends or fails. */
ssize_t probe_read(int fd, char *buf, size_t len)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n;

		if (!probe_poll(fd, POLLIN, PROBE_PATIENCE)) {
			errno = ETIMEDOUT;
			return -1;
		}
		n = read(fd, buf + got, len - got);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		got += n;
	}
	return got;
}

/* Says text to the peer and hears it again. */
void probe_echo(const char *step, int fd, const char *text)
{
	probe_serve(step, fd, fd, text);
}

/* Writes text to one descriptor and reads it from another. */
void probe_serve(const char *step, int to, int from, const char *text)
{
	size_t len = strlen(text);
	char buf[256] = "";
	ssize_t n;

	if (write(to, text, len) != (ssize_t)len) {
		probe_want(step, -1, 0);
		return;
	}
	n = probe_read(from, buf, len);
	if (n < 0)
		probe_want(step, -1, 0);
	else
		probe_check(step, n == (ssize_t)len && !memcmp(buf, text, len));
}

/* A connection to the peer's echo. */
int probe_echo_client(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	if (probe_connect(fd, probe_peer(family, env.tcp)))
		probe_die("connect");
	return fd;
}

/* A listening socket at an address. */
int probe_listener(struct probe_addr a)
{
	int fd = probe_socket(a.sa.sa_family, SOCK_STREAM);

	if (probe_bind(fd, a))
		probe_die("bind");
	if (listen(fd, 16))
		probe_die("listen");
	return fd;
}

/* Accepts who is there or comes soon; without, the case cannot go on. */
int probe_accept(const char *step, int l, struct probe_addr *from)
{
	struct probe_addr other = {.len = sizeof(other.ss)};

	if (!probe_poll(l, POLLIN, PROBE_PATIENCE)) {
		errno = ETIMEDOUT;
		probe_die(step);
	}
	if (!from)
		from = &other;
	return probe_fd(step, accept(l, &from->sa, &from->len));
}

/* Ends a connection by a reset: nothing waits for its last segments. */
void probe_abort(int fd)
{
	struct linger now = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
}

/* Two ends of a TCP connection over the loopback: client, server. */
void probe_pair(int family, int pair[2])
{
	int l = probe_listener(probe_loopback(family, 0));

	pair[0] = probe_socket(family, SOCK_STREAM);
	if (probe_connect(pair[0], probe_local(l)))
		probe_die("connect to loopback");
	pair[1] = accept(l, NULL, NULL);
	if (pair[1] < 0)
		probe_die("accept on loopback");
	close(l);
}

/* Reads "ADDR PORT" as the peer reports it, in the family of the socket. */
struct probe_addr probe_seen(int fd)
{
	struct probe_addr local = probe_local(fd);
	char buf[128] = "", host[INET6_ADDRSTRLEN + 8];
	size_t got = 0;
	ssize_t n = 0;
	int port;

	do {
		if (!probe_poll(fd, POLLIN, PROBE_PATIENCE))
			break;
		n = read(fd, buf + got, sizeof(buf) - 1 - got);
		got += n > 0 ? n : 0;
	} while (n > 0 && !memchr(buf, '\n', got));
	if (sscanf(buf, "%45s %d", host, &port) != 2)
		probe_die("peer's view");
	if (local.sa.sa_family == AF_INET6 && !strchr(host, ':')) {
		struct probe_addr v4 = probe_text(AF_INET, host, port);
		struct in6_addr mapped = addr_map(v4.in.sin_addr);

		return addr_make(AF_INET6, &mapped, port);
	}
	return probe_text(local.sa.sa_family, host, port);
}
