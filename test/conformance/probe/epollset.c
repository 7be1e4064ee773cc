// SPDX-License-Identifier: Apache-2.0
/* Several epoll instances and descriptors; epoll across processes and
 * threads; poll and select. */
#include "probe.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int epollset_make(int fd, unsigned int events, uint64_t data)
{
	struct epoll_event e = {.events = events, .data.u64 = data};
	int ep = epoll_create1(0);

	if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e))
		probe_die("epoll");
	return ep;
}

static void epollset_see(const char *step, int ep, int ms)
{
	struct epoll_event e[4];
	int n = epoll_wait(ep, e, 4, ms);
	uint64_t sum = 0;

	if (n <= 0) {
		probe_rc(step, n);
		return;
	}
	for (int i = 0; i < n; i++)
		sum += e[i].data.u64;
	probe_line(step, "%d ready, %s, data sum %llu", n, probe_events(e[0].events),
		   (unsigned long long)sum);
}

static void epollset_several(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int a = epollset_make(fd, EPOLLOUT, 100);
	int b = epollset_make(fd, EPOLLIN | EPOLLET, 200);
	int c = epollset_make(fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 300);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	epollset_see("first", a, PROBE_PATIENCE);
	epollset_see("second", b, 0);
	epollset_see("third", c, PROBE_PATIENCE);
	probe_want("write", write(fd, "x", 1), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	epollset_see("first", a, PROBE_PATIENCE);
	epollset_see("second", b, PROBE_PATIENCE);
	epollset_see("third", c, 0);
	probe_want("delete from the second", epoll_ctl(b, EPOLL_CTL_DEL, fd, NULL), 0);
	epollset_see("first", a, 0);
	epollset_see("second", b, 0);
}

/* An instance that is itself in another. */
static void epollset_nested(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int inner = epollset_make(fd, EPOLLIN, 7);
	int outer = epollset_make(inner, EPOLLIN, 8);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	epollset_see("outer", outer, 0);
	probe_want("write", write(fd, "x", 1), 0);
	epollset_see("outer", outer, PROBE_PATIENCE);
	epollset_see("inner", inner, 0);
}

/* Waits until an instance has no event. A closed socket has events until the last
 * copy of its file is closed. */
static void epollset_gone(const char *step, int ep)
{
	long start = probe_now();
	struct epoll_event e;

	while (epoll_wait(ep, &e, 1, 0) > 0 && probe_now() - start < PROBE_PATIENCE)
		probe_sleep(1);
	epollset_see(step, ep, 0);
}

/* One file under two numbers: two registrations. */
static void epollset_dup(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int twin = dup(fd), ep = epollset_make(fd, EPOLLOUT, 10);
	struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 1};

	probe_want("add the duplicate", epoll_ctl(ep, EPOLL_CTL_ADD, twin, &e), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	epollset_see("both", ep, PROBE_PATIENCE);
	probe_want("delete one", epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL), 0);
	epollset_see("one", ep, 0);
	probe_want("close it", close(twin), 0);
	epollset_see("a closed number is still registered", ep, 0);
	probe_want("close the other", close(fd), 0);
	epollset_gone("none", ep);
}

/* A closed socket leaves the epoll instance. */
static void epollset_close(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), other;
	int ep = epollset_make(fd, EPOLLIN | EPOLLOUT, 1);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	epollset_see("open", ep, 0);
	probe_want("close", close(fd), 0);
	epollset_gone("closed", ep);
	other = probe_socket(family, SOCK_STREAM);
	probe_check("the number is used again", other == fd);
	probe_want("delete", epoll_ctl(ep, EPOLL_CTL_DEL, other, NULL), ENOENT);
}

/* So does one that was never used. */
static void epollset_close_unused(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int ep = epollset_make(fd, EPOLLIN | EPOLLOUT, 1);

	epollset_see("open", ep, 0);
	probe_want("close", close(fd), 0);
	epollset_gone("closed", ep);
}

/* A registration removed before connect stays removed. */
static void epollset_removed(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int ep = epollset_make(fd, EPOLLIN | EPOLLOUT, 1);
	struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 2};

	probe_want("delete", epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	epollset_see("removed", ep, 0);
	probe_want("add", epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	epollset_see("added", ep, 0);
}

struct epollset_waiter {
	int ep, n;
	struct epoll_event e;
};

static void *epollset_wait(void *arg)
{
	struct epollset_waiter *w = arg;

	w->n = epoll_wait(w->ep, &w->e, 1, PROBE_PATIENCE);
	return NULL;
}

/* A thread that waits already when another one registers and connects. */
static void epollset_waiting(int family)
{
	struct epollset_waiter w = {.ep = epoll_create1(0)};
	struct epoll_event e = {.events = EPOLLIN, .data.u64 = 77};
	int fd = probe_socket(family, SOCK_DGRAM);
	pthread_t t;

	probe_want("add", epoll_ctl(w.ep, EPOLL_CTL_ADD, fd, &e), 0);
	if (pthread_create(&t, NULL, epollset_wait, &w))
		probe_die("pthread_create");
	probe_sleep(100);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_want("send", send(fd, "x", 1, 0), 0);
	pthread_join(t, NULL);
	probe_want("woken", w.n, 0);
	probe_line("events", "%s", probe_events(w.e.events));
	probe_check("data", w.e.data.u64 == 77);
}

/* The parent's instance, the child's connect: one file. The child ends when the
 * echo is there to be read. */
static void epollset_fork(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	int ep = epollset_make(fd, EPOLLIN, 5);
	pid_t pid = probe_fork();

	if (pid == 0)
		_exit(probe_connect(fd, probe_peer(family, env.tcp)) || write(fd, "x", 1) != 1 ||
		      !probe_poll(fd, POLLIN, PROBE_PATIENCE));
	probe_wait("child", pid);
	epollset_see("parent", ep, 0);
	probe_want("delete", epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL), 0);
}

static void epollset_poll(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	int events = POLLIN | POLLOUT | POLLRDHUP;

	probe_line("new", "%s", probe_events(probe_poll(fd, events, 0)));
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	probe_poll(fd, POLLOUT, PROBE_PATIENCE);
	probe_line("established", "%s", probe_events(probe_poll(fd, events, 0)));
	probe_want("write", write(fd, "x", 1), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_line("readable", "%s", probe_events(probe_poll(fd, events, 0)));
	probe_want("shutdown", shutdown(fd, SHUT_WR), 0);
	probe_poll(fd, POLLRDHUP, PROBE_PATIENCE);
	probe_line("ended", "%s", probe_events(probe_poll(fd, events, 0)));
	probe_want("close", close(fd), 0);
	probe_line("closed", "%s", probe_events(probe_poll(fd, events, 0)));
}

static void epollset_select_see(const char *step, int fd, int ms)
{
	struct timeval tv = {ms / 1000, (ms % 1000) * 1000};
	fd_set r, w, x;

	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&x);
	FD_SET(fd, &r);
	FD_SET(fd, &w);
	FD_SET(fd, &x);
	probe_rc(step, select(fd + 1, &r, &w, &x, &tv));
	probe_line(step, "%s%s%s", FD_ISSET(fd, &r) ? "r" : "-", FD_ISSET(fd, &w) ? "w" : "-",
		   FD_ISSET(fd, &x) ? "x" : "-");
}

static void epollset_select(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK), beside;

	epollset_select_see("new", fd, 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), EINPROGRESS);
	epollset_select_see("established", fd, PROBE_PATIENCE);
	probe_want("write", write(fd, "x", 1), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	epollset_select_see("readable", fd, 0);
	fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.closed)), EINPROGRESS);
	epollset_select_see("refused", fd, PROBE_PATIENCE);
	fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.hole)), EINPROGRESS);
	beside = probe_echo_client(family);
	probe_echo("echo beside", beside, "busy"); /* an answer would have come before */
	epollset_select_see("pending", fd, 0);
}

const struct probe_case epollset_cases[] = {
	{"epollset-several", epollset_several, AF_INET, 0},
	{"epollset-nested", epollset_nested, AF_INET, 0},
	{"epollset-dup", epollset_dup, AF_INET, 0},
	{"epollset-close", epollset_close, AF_INET, 0},
	{"epollset-close-unused", epollset_close_unused, AF_INET, 0},
	{"epollset-removed", epollset_removed, AF_INET, 0},
	{"epollset-waiting", epollset_waiting, AF_INET, 0},
	{"epollset-fork", epollset_fork, AF_INET, 0},
	{"epollset-poll", epollset_poll, AF_INET, 0},
	{"epollset-select", epollset_select, AF_INET, 0},
	{0},
};
