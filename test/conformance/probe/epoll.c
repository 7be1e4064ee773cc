// SPDX-License-Identifier: Apache-2.0
/*
 * epoll(7) registrations made before a socket is used, as event loops make
 * them: events, data and mode belong to the pair of file and descriptor, and
 * must hold whatever happens to the socket behind them.
 */
#include "probe.h"

#include <sys/epoll.h>

#define COOKIE 0x1122334455667788ULL

static int epoll_make(void)
{
	int ep = epoll_create1(EPOLL_CLOEXEC);

	if (ep < 0)
		probe_die("epoll_create1");
	return ep;
}

static int epoll_do(int ep, int op, int fd, unsigned int events, uint64_t data)
{
	struct epoll_event e = {.events = events, .data.u64 = data};

	return epoll_ctl(ep, op, fd, &e);
}

/* Waits for events, prints them and whether the data is as registered. */
static void epoll_see(const char *step, int ep, int ms, uint64_t data)
{
	struct epoll_event e[4];
	int n = epoll_wait(ep, e, 4, ms);

	if (n <= 0)
		probe_rc(step, n);
	for (int i = 0; i < n; i++) {
		probe_line(step, "%s data %s", probe_events(e[i].events),
			   e[i].data.u64 == data ? "kept" : "wrong");
		if (e[i].data.u64 != data)
			probe_fail();
	}
}

/* The life of a registration: add, connect, wait, change, delete. */
static void epoll_level(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, COOKIE),
		   0);
	epoll_see("new", ep, 0, COOKIE);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
	epoll_see("level", ep, 0, COOKIE);
	probe_want("modify", epoll_do(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 5), 0);
	epoll_see("nothing to read", ep, 50, 5);
	probe_want("write", write(fd, "x", 1), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, 5);
	probe_want("add again", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 6), EEXIST);
	probe_want("delete", epoll_do(ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
	epoll_see("deleted", ep, 50, 0);
	probe_want("delete again", epoll_do(ep, EPOLL_CTL_DEL, fd, 0, 0), ENOENT);
	probe_want("modify deleted", epoll_do(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0), ENOENT);
	probe_want("add anew", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 7), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, 7);
}

static void epoll_edge(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();
	char buf[8];

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET, COOKIE), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
	epoll_see("once", ep, 50, COOKIE);
	probe_want("write", write(fd, "x", 1), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, COOKIE);
	epoll_see("once", ep, 50, COOKIE);
	probe_want("read", read(fd, buf, sizeof(buf)), 0);
	probe_want("read again", read(fd, buf, sizeof(buf)), EAGAIN);
	epoll_see("nothing", ep, 50, COOKIE);
	probe_want("write", write(fd, "y", 1), 0);
	epoll_see("readable again", ep, PROBE_PATIENCE, COOKIE);
}

/* The edge that a new socket gives must have been seen or stay unseen. */
static void epoll_edge_seen(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();

	probe_want(
		"add",
		epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, COOKIE),
		0);
	epoll_see("new", ep, 0, COOKIE);
	epoll_see("once", ep, 0, COOKIE);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.hole)), EINPROGRESS);
	epoll_see("pending", ep, 100, COOKIE);
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	probe_echo("echo", fd, "edges");
}

static void epoll_oneshot(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	unsigned int mode = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
	int ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, mode, COOKIE), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
	epoll_see("disarmed", ep, 50, COOKIE);
	probe_want("write", write(fd, "x", 1), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	epoll_see("still disarmed", ep, 50, COOKIE);
	probe_want("rearm", epoll_do(ep, EPOLL_CTL_MOD, fd, mode, 9), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, 9);
	epoll_see("disarmed", ep, 50, 9);
}

/* A registration that fired before connect stays disarmed after it. */
static void epoll_oneshot_fired(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	unsigned int mode = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
	int ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, mode, COOKIE), 0);
	epoll_see("new", ep, 0, COOKIE);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	epoll_see("disarmed", ep, 50, COOKIE);
	probe_want("rearm", epoll_do(ep, EPOLL_CTL_MOD, fd, mode, COOKIE), 0);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
}

static void epoll_exclusive(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();

	probe_want("add",
		   epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE, COOKIE), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
	probe_want("modify", epoll_do(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 1), EINVAL);
	probe_want("delete", epoll_do(ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
	epoll_see("deleted", ep, 50, 0);
}

/* Hang-ups and errors come without being asked for. */
static void epoll_refused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK), err = 0;
	int ep = epoll_make();
	socklen_t len = sizeof(err);

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET, COOKIE), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.closed)), EINPROGRESS);
	epoll_see("refused", ep, PROBE_PATIENCE, COOKIE);
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
	probe_line("SO_ERROR", "%s", probe_errno(err));
}

static void epoll_blocking(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, COOKIE),
		   0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	epoll_see("nothing", ep, 50, COOKIE);
	probe_want("write", write(fd, "x", 1), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, COOKIE);
	probe_want("shutdown", shutdown(fd, SHUT_WR), 0);
	probe_poll(fd, POLLRDHUP, PROBE_PATIENCE);
	epoll_see("closed by the peer", ep, PROBE_PATIENCE, COOKIE);
}

static void epoll_loopback(int family)
{
	int l = probe_listener(probe_loopback(family, 0)), conn;
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET, COOKIE), 0);
	probe_want("connect", probe_connect(fd, probe_local(l)), EINPROGRESS);
	epoll_see("established", ep, PROBE_PATIENCE, COOKIE);
	conn = probe_accept("accept", l, NULL);
	probe_want("modify", epoll_do(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 3), 0);
	probe_want("write", write(conn, "x", 1), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, 3);
	probe_want("delete", epoll_do(ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
	epoll_see("deleted", ep, 50, 0);
}

/* A listener that is in the event loop before it has its address. */
static void epoll_listener(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN, COOKIE), 0);
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	epoll_see("bound", ep, 0, COOKIE);
	probe_want("listen", listen(fd, 4), 0);
	epoll_see("listening", ep, 50, COOKIE);
	probe_line("dial", "%s", probe_dial(family, env.port));
	epoll_see("somebody came", ep, PROBE_PATIENCE, COOKIE);
	probe_accept("accept", fd, NULL);
	epoll_see("all taken", ep, 50, COOKIE);
	probe_want("delete", epoll_do(ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
}

/* The same for a listener on the loopback. */
static void epoll_listener_loopback(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int c = probe_socket(family, SOCK_STREAM), ep = epoll_make();

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN, COOKIE), 0);
	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	probe_want("listen", listen(fd, 4), 0);
	epoll_see("listening", ep, 50, COOKIE);
	probe_want("connect", probe_connect(c, probe_local(fd)), 0);
	epoll_see("somebody came", ep, PROBE_PATIENCE, COOKIE);
}

static void epoll_udp(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM | SOCK_NONBLOCK);
	struct probe_addr a = probe_peer(family, env.udp);
	int ep = epoll_make();
	char buf[4];

	probe_want("add", epoll_do(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, COOKIE), 0);
	epoll_see("nothing", ep, 0, COOKIE);
	probe_want("sendto", sendto(fd, "x", 1, 0, &a.sa, a.len), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, COOKIE);
	probe_want("recv", recv(fd, buf, 4, 0), 0);
	probe_want("connect", probe_connect(fd, a), 0);
	probe_want("send", send(fd, "y", 1, 0), 0);
	epoll_see("readable", ep, PROBE_PATIENCE, COOKIE);
	probe_want("recv", recv(fd, buf, 4, 0), 0);
	probe_want("connect to closed", probe_connect(fd, probe_peer(family, env.closed)), 0);
	probe_want("send", send(fd, "z", 1, 0), 0);
	epoll_see("refused", ep, PROBE_PATIENCE, COOKIE);
}

const struct probe_case epoll_cases[] = {
	{"epoll-level-v4", epoll_level, AF_INET, 0},
	{"epoll-level-v6", epoll_level, AF_INET6, 0},
	{"epoll-edge", epoll_edge, AF_INET, 0},
	{"epoll-edge-seen", epoll_edge_seen, AF_INET, 0},
	{"epoll-oneshot", epoll_oneshot, AF_INET, 0},
	{"epoll-oneshot-fired", epoll_oneshot_fired, AF_INET, 0},
	{"epoll-exclusive", epoll_exclusive, AF_INET, 0},
	{"epoll-refused", epoll_refused, AF_INET, 0},
	{"epoll-blocking", epoll_blocking, AF_INET, 0},
	{"epoll-loopback-v4", epoll_loopback, AF_INET, 0},
	{"epoll-loopback-v6", epoll_loopback, AF_INET6, 0},
	{"epoll-listener", epoll_listener, AF_INET, 1},
	{"epoll-listener-loopback", epoll_listener_loopback, AF_INET, 0},
	{"epoll-udp-v4", epoll_udp, AF_INET, 0},
	{"epoll-udp-v6", epoll_udp, AF_INET6, 0},
	{0},
};
