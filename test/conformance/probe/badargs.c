// SPDX-License-Identifier: Apache-2.0
/*
 * Addresses that are wrong: what the kernel answers to each wrong length,
 * family and pointer. Most answers have no reason but history, so they are
 * printed and compared, not expected.
 */
#include "probe.h"

#include <sys/mman.h>

static const int badargs_lens[] = {0, 1, 2, 8, 15, 16, 24, 27, 28, 110, 128, 129, -1, INT_MAX};

#define LENS (sizeof(badargs_lens) / sizeof(badargs_lens[0]))

enum badargs_call { BIND, CONNECT, SENDTO, SENDMSG };

static const char *const badargs_names[] = {"bind", "connect", "sendto", "sendmsg"};

static long badargs_do(enum badargs_call call, int fd, const void *addr, int len)
{
	struct iovec iov = {"x", 1};
	struct msghdr h = {
		.msg_name = (void *)addr, .msg_namelen = len, .msg_iov = &iov, .msg_iovlen = 1};

	switch (call) {
	case BIND:
		return bind(fd, addr, len);
	case CONNECT:
		return connect(fd, addr, len);
	case SENDTO:
		return sendto(fd, "x", 1, MSG_NOSIGNAL, addr, len);
	default:
		return sendmsg(fd, &h, MSG_NOSIGNAL);
	}
}

/* One call with an address on a new socket. */
static void badargs_try(enum badargs_call call, int family, int type, const void *addr, int len,
			const char *what)
{
	int fd = probe_socket(family, type);
	char step[64];

	snprintf(step, sizeof(step), "%s %s", badargs_names[call], what);
	probe_rc(step, badargs_do(call, fd, addr, len));
	close(fd);
}

static void badargs_lengths(enum badargs_call call, int family, int type, struct probe_addr a)
{
	char buf[256] = {0}, what[32];

	memcpy(buf, &a.ss, sizeof(a.ss));
	for (size_t i = 0; i < LENS; i++) {
		snprintf(what, sizeof(what), "length %d", badargs_lens[i]);
		badargs_try(call, family, type, buf, badargs_lens[i], what);
	}
}

static void badargs_connect_tcp(int family)
{
	badargs_lengths(CONNECT, family, SOCK_STREAM, probe_peer(family, env.tcp));
}

static void badargs_connect_udp(int family)
{
	badargs_lengths(CONNECT, family, SOCK_DGRAM, probe_peer(family, env.udp));
}

static void badargs_connect_loopback(int family)
{
	badargs_lengths(CONNECT, family, SOCK_STREAM, probe_loopback(family, env.closed));
}

static void badargs_connect_unspec(int family)
{
	badargs_lengths(CONNECT, family, SOCK_STREAM, probe_unspec());
	badargs_lengths(CONNECT, family, SOCK_DGRAM, probe_unspec());
}

static void badargs_bind(int family)
{
	badargs_lengths(BIND, family, SOCK_STREAM, probe_any(family, env.port));
	badargs_lengths(BIND, family, SOCK_DGRAM, probe_any(family, env.port));
	badargs_lengths(BIND, family, SOCK_STREAM, probe_loopback(family, 0));
}

static void badargs_send(int family)
{
	badargs_lengths(SENDTO, family, SOCK_DGRAM, probe_peer(family, env.udp));
	badargs_lengths(SENDMSG, family, SOCK_DGRAM, probe_peer(family, env.udp));
}

/* An address of another family than the socket's, long enough for any. */
static void badargs_family(int family)
{
	static const int families[] = {AF_UNSPEC,  AF_UNIX, AF_INET, AF_INET6,
				       AF_NETLINK, 200,	    65535};
	char buf[256], what[32];

	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		struct probe_addr a = families[i] == AF_INET6 ? probe_peer(AF_INET6, env.tcp)
							      : probe_peer(AF_INET, env.tcp);

		memset(buf, 0, sizeof(buf));
		memcpy(buf, &a.ss, sizeof(a.ss));
		((struct sockaddr *)buf)->sa_family = families[i];
		snprintf(what, sizeof(what), "family %d", families[i]);
		badargs_try(CONNECT, family, SOCK_STREAM, buf, 28, what);
		badargs_try(CONNECT, family, SOCK_DGRAM, buf, 28, what);
		badargs_try(BIND, family, SOCK_STREAM, buf, 28, what);
		badargs_try(BIND, family, SOCK_DGRAM, buf, 28, what);
		badargs_try(SENDTO, family, SOCK_DGRAM, buf, 28, what);
		badargs_try(SENDMSG, family, SOCK_DGRAM, buf, 28, what);
	}
}

/* bind takes AF_UNSPEC for AF_INET where the address is the any address. */
static void badargs_bind_unspec(int family)
{
	struct probe_addr a = probe_any(AF_INET, env.port);
	int fd = probe_socket(family, SOCK_STREAM);

	a.sa.sa_family = AF_UNSPEC;
	probe_want("bind", probe_bind(fd, a), 0);
	probe_names("bound", fd);
	probe_want("listen", listen(fd, 1), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_accept("accept", fd, NULL);
}

/* A page that may not be touched, after one that may. */
static char *badargs_page(void)
{
	char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mprotect(p + 4096, 4096, PROT_NONE))
		probe_die("mmap");
	return p + 4096;
}

static void badargs_pointers(int family)
{
	char *page = badargs_page();
	struct probe_addr a = probe_peer(family, env.udp);
	const struct {
		const void *addr;
		int len;
		const char *what;
	} bad[] = {
		{NULL, 0, "null of 0"},
		{NULL, 16, "null of 16"},
		{NULL, 28, "null of 28"},
		{(void *)1, 16, "low"},
		{(void *)-4096L, 28, "kernel"},
		{page, 0, "unmapped of 0"},
		{page, 16, "unmapped of 16"},
		{page, 28, "unmapped of 28"},
		{page - 8, 16, "half mapped of 16"},
		{page - 8, 28, "half mapped of 28"},
		{page - 8, 8, "to the page's end"},
		{page, -1, "unmapped of -1"},
		{page, 129, "unmapped of 129"},
	};

	memcpy(page - 8, &a.sa, 8);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		for (int call = BIND; call <= SENDMSG; call++) {
			badargs_try(call, family, SOCK_DGRAM, bad[i].addr, bad[i].len, bad[i].what);
			if (call <= CONNECT)
				badargs_try(call, family, SOCK_STREAM, bad[i].addr, bad[i].len,
					    bad[i].what);
		}
	}
	memcpy(page - a.len, &a.sa, a.len);
	badargs_try(CONNECT, family, SOCK_DGRAM, page - a.len, a.len, "up to the page's end");
	badargs_try(SENDTO, family, SOCK_DGRAM, page - a.len, a.len, "up to the page's end");
}

/* Messages whose other parts are wrong. */
static void badargs_messages(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	struct probe_addr a = probe_peer(family, env.udp);
	char *page = badargs_page();
	struct iovec iov = {"x", 1}, badiov = {page, 4};
	struct msghdr h = {
		.msg_name = &a.ss, .msg_namelen = a.len, .msg_iov = &iov, .msg_iovlen = 1};
	struct msghdr m = h;

	probe_want("no message", sendmsg(fd, NULL, 0), EFAULT);
	probe_want("message unmapped", sendmsg(fd, (void *)page, 0), EFAULT);
	m.msg_iov = (void *)page;
	probe_want("vector unmapped", sendmsg(fd, &m, 0), EFAULT);
	m.msg_iov = &badiov;
	probe_want("data unmapped", sendmsg(fd, &m, 0), EFAULT);
	m = h;
	m.msg_iovlen = 1025;
	probe_want("vector too long", sendmsg(fd, &m, 0), EMSGSIZE);
	m = h;
	m.msg_control = page;
	m.msg_controllen = 32;
	probe_want("control unmapped", sendmsg(fd, &m, 0), EFAULT);
	m = h;
	m.msg_iovlen = 0;
	probe_want("no data", sendmsg(fd, &m, 0), 0);
	probe_want("unknown flag", sendmsg(fd, &h, MSG_OOB), EOPNOTSUPP);
	probe_want("sendto, data unmapped", sendto(fd, page, 1, 0, &a.sa, a.len), EFAULT);
	probe_want("sendto after all", sendto(fd, "x", 1, 0, &a.sa, a.len), 0);
}

static void badargs_name_of(const char *what, int fd,
			    int (*get)(int, struct sockaddr *, socklen_t *))
{
	for (size_t i = 0; i < LENS; i++) {
		unsigned char buf[256];
		socklen_t len = badargs_lens[i];
		char step[48];
		int touched = 0;

		memset(buf, 0xa5, sizeof(buf));
		snprintf(step, sizeof(step), "%s length %d", what, badargs_lens[i]);
		probe_rc(step, get(fd, (struct sockaddr *)buf, &len));
		for (int j = 0; j < 256; j++)
			if (buf[j] != 0xa5)
				touched = j + 1;
		probe_line(step, "%d, %s", (int)len,
			   touched > badargs_lens[i] ? "overrun" : "within");
	}
}

static int badargs_getsockname(int fd, struct sockaddr *a, socklen_t *len)
{
	return getsockname(fd, a, len);
}

static int badargs_getpeername(int fd, struct sockaddr *a, socklen_t *len)
{
	return getpeername(fd, a, len);
}

static void badargs_names_lengths(int family)
{
	int fd = probe_echo_client(family);
	socklen_t len = 16;
	char buf[64];

	badargs_name_of("getsockname", fd, badargs_getsockname);
	badargs_name_of("getpeername", fd, badargs_getpeername);
	probe_want("address unmapped", getsockname(fd, (void *)8, &len), EFAULT);
	probe_want("length unmapped", getsockname(fd, (void *)buf, (void *)8), EFAULT);
	probe_want("both null", getpeername(fd, NULL, NULL), EFAULT);
}

const struct probe_case badargs_cases[] = {
	{"badargs-connect-tcp-v4", badargs_connect_tcp, AF_INET, 0},
	{"badargs-connect-tcp-v6", badargs_connect_tcp, AF_INET6, 0},
	{"badargs-connect-udp-v4", badargs_connect_udp, AF_INET, 0},
	{"badargs-connect-udp-v6", badargs_connect_udp, AF_INET6, 0},
	{"badargs-connect-loopback", badargs_connect_loopback, AF_INET, 0},
	{"badargs-connect-unspec-v4", badargs_connect_unspec, AF_INET, 0},
	{"badargs-connect-unspec-v6", badargs_connect_unspec, AF_INET6, 0},
	{"badargs-bind-v4", badargs_bind, AF_INET, 1},
	{"badargs-bind-v6", badargs_bind, AF_INET6, 1},
	{"badargs-send-v4", badargs_send, AF_INET, 0},
	{"badargs-send-v6", badargs_send, AF_INET6, 0},
	{"badargs-family-v4", badargs_family, AF_INET, 0},
	{"badargs-family-v6", badargs_family, AF_INET6, 0},
	{"badargs-bind-unspec", badargs_bind_unspec, AF_INET, 1},
	{"badargs-pointers-v4", badargs_pointers, AF_INET, 0},
	{"badargs-pointers-v6", badargs_pointers, AF_INET6, 0},
	{"badargs-messages", badargs_messages, AF_INET, 0},
	{"badargs-names-lengths-v4", badargs_names_lengths, AF_INET, 0},
	{"badargs-names-lengths-v6", badargs_names_lengths, AF_INET6, 0},
	{0},
};
