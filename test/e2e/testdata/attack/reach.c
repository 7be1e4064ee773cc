// SPDX-License-Identifier: Apache-2.0
/*
 * Every way to send something somewhere: "reach ALLOWED TARGET..." tries all of
 * them on each target. What arrives there says by which way it came. Where a
 * way starts from a connected socket, it is connected to ALLOWED first.
 */
#include "attack.h"

#include <sys/epoll.h>

#ifndef TCP_FASTOPEN_CONNECT
#define TCP_FASTOPEN_CONNECT 30
#endif

enum { I386_SOCKETCALL = 102, I386_CONNECT = 362 };

struct reach_way {
	const char *name;
	int type;
	/* Returns what its last call did. PAYLOAD is sent unless the test
	 * connects, which reach_stream then does. */
	long (*go)(int fd, const struct attack_addr *to, const char *payload);
	int family; /* of the socket; 0: the target's */
};

static struct attack_addr reach_allowed;

static long reach_libc(int fd, const struct attack_addr *to, const char *payload)
{
	(void)payload;
	return connect(fd, &to->sa, to->len);
}

static long reach_syscall(int fd, const struct attack_addr *to, const char *payload)
{
	(void)payload;
	return syscall(SYS_connect, fd, &to->sa, to->len);
}

static long reach_again(int fd, const struct attack_addr *to, const char *payload)
{
	(void)payload;
	attack_need("connect to what is allowed",
		    connect(fd, &reach_allowed.sa, reach_allowed.len));
	attack_need("disconnect", attack_unspec(fd));
	return connect(fd, &to->sa, to->len);
}

static long reach_i386(int fd, const struct attack_addr *to, const char *payload)
{
	(void)payload;
	memcpy(attack_low(), &to->in6, to->len);
	return attack_i386(I386_CONNECT, fd, (long)attack_low(), to->len, 0, 0);
}

static long reach_socketcall(int fd, const struct attack_addr *to, const char *payload)
{
	char *low = attack_low();
	int32_t args[] = {fd, (int32_t)(intptr_t)(low + 64), (int32_t)to->len};

	(void)payload;
	memcpy(low, args, sizeof(args));
	memcpy(low + 64, &to->in6, to->len);
	return attack_i386(I386_SOCKETCALL, 3, (long)low, 0, 0, 0);
}

static long reach_fastopen(int fd, const struct attack_addr *to, const char *payload)
{
	return sendto(fd, payload, strlen(payload), MSG_FASTOPEN | MSG_NOSIGNAL, &to->sa, to->len);
}

static struct msghdr reach_message(const struct attack_addr *to, struct iovec *iov,
				   const char *payload)
{
	*iov = (struct iovec){(void *)payload, strlen(payload)};
	return (struct msghdr){.msg_name = (void *)&to->sa,
			       .msg_namelen = to->len,
			       .msg_iov = iov,
			       .msg_iovlen = 1};
}

static long reach_fastopen_msg(int fd, const struct attack_addr *to, const char *payload)
{
	struct iovec iov;
	struct msghdr msg = reach_message(to, &iov, payload);

	return sendmsg(fd, &msg, MSG_FASTOPEN | MSG_NOSIGNAL);
}

static long reach_fastopen_mmsg(int fd, const struct attack_addr *to, const char *payload)
{
	struct iovec iov;
	struct mmsghdr msg = {.msg_hdr = reach_message(to, &iov, payload)};

	return sendmmsg(fd, &msg, 1, MSG_FASTOPEN | MSG_NOSIGNAL);
}

static long reach_fastopen_connect(int fd, const struct attack_addr *to, const char *payload)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof(one));
	if (connect(fd, &to->sa, to->len) < 0)
		return -1;
	return send(fd, payload, strlen(payload), MSG_NOSIGNAL);
}

static struct attack_addr reach_mapped(const struct attack_addr *to)
{
	struct attack_addr m = {.len = sizeof(m.in6)};

	m.in6.sin6_family = AF_INET6;
	m.in6.sin6_port = to->in.sin_port;
	m.in6.sin6_addr.s6_addr[10] = m.in6.sin6_addr.s6_addr[11] = 0xff;
	memcpy(&m.in6.sin6_addr.s6_addr[12], &to->in.sin_addr, 4);
	return m;
}

static long reach_mapped_connect(int fd, const struct attack_addr *to, const char *payload)
{
	struct attack_addr m = reach_mapped(to);

	(void)payload;
	return connect(fd, &m.sa, m.len);
}

static long reach_sendto(int fd, const struct attack_addr *to, const char *payload)
{
	return sendto(fd, payload, strlen(payload), 0, &to->sa, to->len);
}

static long reach_mapped_sendto(int fd, const struct attack_addr *to, const char *payload)
{
	struct attack_addr m = reach_mapped(to);

	return reach_sendto(fd, &m, payload);
}

static long reach_connected_sendto(int fd, const struct attack_addr *to, const char *payload)
{
	attack_need("connect to what is allowed",
		    connect(fd, &reach_allowed.sa, reach_allowed.len));
	return reach_sendto(fd, to, payload);
}

static long reach_sendto_unspec(int fd, const struct attack_addr *to, const char *payload)
{
	struct attack_addr a = *to;

	a.sa.sa_family = AF_UNSPEC;
	return reach_sendto(fd, &a, payload);
}

static long reach_i386_sendto(int fd, const struct attack_addr *to, const char *payload)
{
	char *low = attack_low();
	int32_t args[] = {fd, (int32_t)(intptr_t)(low + 128), (int32_t)strlen(payload),
			  0,  (int32_t)(intptr_t)(low + 64),  (int32_t)to->len};

	memcpy(low, args, sizeof(args));
	memcpy(low + 64, &to->in6, to->len);
	strcpy(low + 128, payload);
	return attack_i386(I386_SOCKETCALL, 11, (long)low, 0, 0, 0);
}

static long reach_sendmsg(int fd, const struct attack_addr *to, const char *payload)
{
	struct iovec iov;
	struct msghdr msg = reach_message(to, &iov, payload);

	return sendmsg(fd, &msg, 0);
}

/* The first message goes where it may. */
static long reach_second(int fd, const struct attack_addr *to, const char *payload)
{
	struct iovec iov[2];
	struct mmsghdr msgs[2] = {{.msg_hdr = reach_message(&reach_allowed, &iov[0], "-")},
				  {.msg_hdr = reach_message(to, &iov[1], payload)}};
	int sent = sendmmsg(fd, msgs, 2, 0);

	if (sent != 1)
		return sent;
	/* Linux tells of the second one's error at the next call. */
	return sendmsg(fd, &msgs[1].msg_hdr, 0);
}

static long reach_corked(int fd, const struct attack_addr *to, const char *payload)
{
	sendto(fd, "-", 1, MSG_MORE, &reach_allowed.sa, reach_allowed.len);
	return reach_sendto(fd, to, payload);
}

static long reach_control(int fd, const struct attack_addr *to, const char *payload, int level,
			  int type, const void *data, size_t size)
{
	union {
		char space[CMSG_SPACE(64)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov;
	struct msghdr msg = reach_message(to, &iov, payload);
	struct cmsghdr *c;

	msg.msg_control = &control;
	msg.msg_controllen = CMSG_SPACE(size);
	c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), data, size);
	return sendmsg(fd, &msg, 0);
}

/* A source route by way of the target to where it may send. */
static long reach_routed(int fd, const struct attack_addr *to, const char *payload)
{
	unsigned char lsrr[8] = {131, 7, 4};

	memcpy(&lsrr[3], &to->in.sin_addr, 4);
	return reach_control(fd, &reach_allowed, payload, IPPROTO_IP, IP_RETOPTS, lsrr,
			     sizeof(lsrr));
}

static long reach_routed6(int fd, const struct attack_addr *to, const char *payload)
{
	unsigned char header[24] = {0, 2, 2, 1};

	memcpy(&header[8], &to->in6.sin6_addr, 16);
	return reach_control(fd, &reach_allowed, payload, IPPROTO_IPV6, IPV6_RTHDR, header,
			     sizeof(header));
}

static const struct reach_way reach_ways[] = {
	{"tcp connect", SOCK_STREAM, reach_libc, 0},
	{"tcp syscall", SOCK_STREAM, reach_syscall, 0},
	{"tcp reconnect", SOCK_STREAM, reach_again, 0},
	{"tcp i386", SOCK_STREAM, reach_i386, 0},
	{"tcp socketcall", SOCK_STREAM, reach_socketcall, 0},
	{"tcp fastopen sendto", SOCK_STREAM, reach_fastopen, 0},
	{"tcp fastopen sendmsg", SOCK_STREAM, reach_fastopen_msg, 0},
	{"tcp fastopen sendmmsg", SOCK_STREAM, reach_fastopen_mmsg, 0},
	{"tcp fastopen connect", SOCK_STREAM, reach_fastopen_connect, 0},
	{"tcp mapped", SOCK_STREAM, reach_mapped_connect, AF_INET6},
	{"udp connect", SOCK_DGRAM, reach_libc, 0},
	{"udp reconnect", SOCK_DGRAM, reach_again, 0},
	{"udp i386", SOCK_DGRAM, reach_i386, 0},
	{"udp sendto", SOCK_DGRAM, reach_sendto, 0},
	{"udp sendmsg", SOCK_DGRAM, reach_sendmsg, 0},
	{"udp sendmmsg", SOCK_DGRAM, reach_second, 0},
	{"udp corked", SOCK_DGRAM, reach_corked, 0},
	{"udp i386 sendto", SOCK_DGRAM, reach_i386_sendto, 0},
	{"udp connected sendto", SOCK_DGRAM, reach_connected_sendto, 0},
	{"udp unspec sendto", SOCK_DGRAM, reach_sendto_unspec, AF_INET},
	{"udp mapped", SOCK_DGRAM, reach_mapped_connect, AF_INET6},
	{"udp mapped sendto", SOCK_DGRAM, reach_mapped_sendto, AF_INET6},
	{"udp IPv4 address on IPv6", SOCK_DGRAM, reach_sendto, AF_INET6},
	{"udp IPv4 connect on IPv6", SOCK_DGRAM, reach_libc, AF_INET6},
	{"udp routed", SOCK_DGRAM, reach_routed, AF_INET},
};

/* What is for IPv4 targets alone has a family of its own. */
static bool reach_fits(const struct reach_way *w, const struct attack_addr *to)
{
	return w->family == 0 || to->sa.sa_family == AF_INET;
}

static void reach_send(int fd, const struct reach_way *w, const struct attack_addr *to)
{
	char step[160];
	long result = w->go(fd, to, w->name);

	/* What has connected says so. */
	if (result == 0)
		result = send(fd, w->name, strlen(w->name), MSG_NOSIGNAL);
	snprintf(step, sizeof(step), "%s %s", to->text, w->name);
	attack_say(step, result);
	if (result < 0)
		return;
	/* What is in flight must not be cut off by a reset. */
	shutdown(fd, SHUT_WR);
	if (w->type == SOCK_STREAM)
		recv(fd, step, sizeof(step), 0);
}

static int reach(int argc, char **argv)
{
	struct reach_way routed6 = {"udp routed", SOCK_DGRAM, reach_routed6, 0};

	reach_allowed = attack_addr(argv[0]);
	for (int i = 1; i < argc; i++) {
		struct attack_addr to = attack_addr(argv[i]);
		int fd;

		for (size_t w = 0; w < sizeof(reach_ways) / sizeof(reach_ways[0]); w++) {
			const struct reach_way *way = &reach_ways[w];

			if (!reach_fits(way, &to))
				continue;
			fd = attack_socket(way->family ? way->family : to.sa.sa_family, way->type);
			reach_send(fd, way, &to);
			close(fd);
		}
		if (to.sa.sa_family == AF_INET6) {
			fd = attack_socket(AF_INET6, SOCK_DGRAM);
			reach_send(fd, &routed6, &to);
			close(fd);
		}
	}
	return 0;
}

/*
 * A host socket in other hands: "passed TARGET..." gives one to a process that
 * was forked before, and to one that is forked after.
 */
static int reach_passed(int argc, char **argv)
{
	static const struct reach_way by_rights = {"rights", SOCK_STREAM, reach_libc, 0};
	static const struct reach_way by_fork = {"fork", SOCK_STREAM, reach_libc, 0};
	int channel[2];

	attack_need("make channel", socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
	if (fork() == 0) {
		for (int i = 0; i < argc; i++) {
			struct attack_addr to = attack_addr(argv[i]);

			reach_send(attack_receive_fd(channel[1]), &by_rights, &to);
		}
		_exit(0);
	}
	for (int i = 0; i < argc; i++) {
		struct attack_addr to = attack_addr(argv[i]);
		int fd = attack_socket(to.sa.sa_family, SOCK_STREAM);

		attack_send_fd(channel[0], fd);
		fd = attack_socket(to.sa.sa_family, SOCK_STREAM);
		if (fork() == 0) {
			reach_send(fd, &by_fork, &to);
			_exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
	return 0;
}

/* Where sockets are made, and what they become: connections to the loopback, to a port of it whose
 * server is on the host, and to ADDR. */
static struct both_ways {
	struct attack_addr loopback, served, remote;
	int listener, server, guessed, wrong, failed;
	uint64_t own;
} both_ways;

/* Connects a socket that has an option set, and is watched by an epoll. */
static void both_ways_once(const struct attack_addr *to, int listener)
{
	const bool to_loopback = listener == both_ways.listener;
	int fd = (int)attack_need("socket", socket(AF_INET, SOCK_STREAM, 0)), one = 1, is = 0;
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
	socklen_t length = sizeof(is);
	bool own = attack_netns(fd) == both_ways.own, works;

	both_ways.guessed += own && to_loopback;
	both_ways.wrong += own && !to_loopback;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	works = connect(fd, &to->sa, to->len) == 0 &&
		(attack_netns(fd) == both_ways.own) == to_loopback &&
		getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &is, &length) == 0 && is &&
		epoll_wait(epoll, &event, 1, -1) == 1 && event.data.fd == fd;
	if (works && listener >= 0)
		close((int)attack_need("accept", accept(listener, NULL, NULL)));
	both_ways.failed += !works;
	close(epoll);
	close(fd);
}

/* Returns a listener at an address, and its name in ADDR. */
static int both_ways_listener(struct attack_addr *addr)
{
	int fd = (int)attack_need("socket", socket(AF_INET, SOCK_STREAM, 0));

	attack_need("bind", bind(fd, &addr->sa, addr->len));
	attack_need("listen", listen(fd, 8));
	attack_need("name", getsockname(fd, &addr->sa, &addr->len));
	return fd;
}

/* "both-ways STEPS ADDR LOOPBACK SERVED": l is a connection to a listener at LOOPBACK, s one by the
 * loopback to one at SERVED, r one to ADDR. */
static int reach_both_ways(int argc, char **argv)
{
	both_ways.own = attack_netns(socket(AF_UNIX, SOCK_STREAM, 0));
	both_ways.remote = attack_addr(argv[1]);
	both_ways.loopback = attack_addr(argv[2]);
	both_ways.served = attack_addr(argv[argc - 1]);
	both_ways.server = both_ways_listener(&both_ways.served);
	both_ways.listener = both_ways_listener(&both_ways.loopback);
	for (const char *step = argv[0]; *step != '\0'; step++) {
		if (*step == 'l')
			both_ways_once(&both_ways.loopback, both_ways.listener);
		else if (*step == 's')
			both_ways_once(&both_ways.served, both_ways.server);
		else
			both_ways_once(&both_ways.remote, -1);
	}
	attack_note("guessed", "%s", both_ways.guessed > 0 ? "some" : "none");
	attack_note("wrong guesses", "%d", both_ways.wrong);
	attack_note("failed", "%d", both_ways.failed);
	return 0;
}

const struct attack_case reach_cases[] = {
	{"both-ways", reach_both_ways},
	{"reach", reach},
	{"passed", reach_passed},
	{0},
};
