// SPDX-License-Identifier: Apache-2.0
/*
 * What datagrams can be made to do by control messages and by what a socket was
 * before: other ways, other sources, other ears.
 */
#include "attack.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>

/* Sends a datagram with one control message. */
static long packets_message(int fd, struct attack_addr to, int level, int type, const void *data,
			    size_t size)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(64)];
	} control = {0};
	struct iovec io = {.iov_base = "message", .iov_len = 7};
	struct msghdr m = {
		.msg_name = &to.sa,
		.msg_namelen = to.len,
		.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(size),
	};

	control.header = (struct cmsghdr){
		.cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(size)};
	memcpy(CMSG_DATA(&control.header), data, size);
	return sendmsg(fd, &m, 0);
}

/* packets-message ADDR FOREIGN: to where it may send, as it may not. */
static int packets_messages(int argc, char **argv)
{
	static const unsigned char nop[] = {1, 1, 1, 1}, record[] = {7, 7, 4, 0, 0, 0, 0, 0};
	static const unsigned char strict[] = {137, 7, 4, 203, 0, 113, 9, 0},
				   loose[] = {131, 7, 4, 203, 0, 113, 9, 0};
	/* Type 2, one segment left, four bytes reserved, an address (RFC 6275). */
	static const unsigned char routing[24] = {0,	2,    2,    1,	     [8] = 0x20,
						  0x01, 0x0d, 0xb8, [23] = 9};
	struct attack_addr to = attack_addr(argv[0]);
	int fd = attack_socket(to.sa.sa_family, SOCK_DGRAM), one = 1;

	(void)argc;
	attack_say("plain", sendto(fd, "plain", 5, 0, &to.sa, to.len));
	if (to.sa.sa_family == AF_INET) {
		attack_say("no operation", packets_message(fd, to, SOL_IP, IP_RETOPTS, nop, 4));
		attack_say("record route", packets_message(fd, to, SOL_IP, IP_RETOPTS, record, 8));
		attack_say("loose route", packets_message(fd, to, SOL_IP, IP_RETOPTS, loose, 8));
		attack_say("strict route", packets_message(fd, to, SOL_IP, IP_RETOPTS, strict, 8));
	} else {
		struct in6_pktinfo info = {0};

		attack_say("routing header",
			   packets_message(fd, to, SOL_IPV6, IPV6_RTHDR, routing, sizeof(routing)));
		inet_pton(AF_INET6, argv[1], &info.ipi6_addr);
		attack_say("foreign source",
			   packets_message(fd, to, SOL_IPV6, IPV6_PKTINFO, &info, sizeof(info)));
		attack_say("freebind", setsockopt(fd, SOL_IPV6, 78, &one, sizeof(one)));
		attack_say("foreign source with it",
			   packets_message(fd, to, SOL_IPV6, IPV6_PKTINFO, &info, sizeof(info)));
		attack_say("freebind of IPv4",
			   setsockopt(fd, SOL_IP, IP_FREEBIND, &one, sizeof(one)));
		attack_say("foreign source with that",
			   packets_message(fd, to, SOL_IPV6, IPV6_PKTINFO, &info, sizeof(info)));
	}
	attack_say("plain again", sendto(fd, "plain again", 11, 0, &to.sa, to.len));
	return 0;
}

/* What a socket hears until "sentinel" comes. */
static void packets_listen(const char *step, int fd)
{
	char buf[64];
	ssize_t n;

	do {
		n = recv(fd, buf, sizeof(buf) - 1, 0);
		attack_need("hear", n);
		buf[n] = 0;
		attack_note(step, "%s", buf);
	} while (strcmp(buf, "sentinel") != 0);
}

/*
 * packets-ears ADDR [OWN]: asks ADDR, once not connected, once connected and once
 * after that. ADDR answers "sentinel" when others have tried. With OWN the
 * socket is bound to that first.
 */
static int packets_ears(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[0]);
	int fd = socket(to.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;
	socklen_t length = sizeof(one);

	attack_need("reuse", setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	if (argc > 1) {
		struct attack_addr own = attack_addr(argv[1]);

		attack_say("bind", bind(fd, &own.sa, own.len));
	} else {
		attack_say("send", sendto(fd, "ask", 3, 0, &to.sa, to.len));
		packets_listen("not connected", fd);
	}
	attack_say("connect", connect(fd, &to.sa, to.len));
	attack_say("send", send(fd, "ask", 3, 0));
	packets_listen("connected", fd);
	attack_say("dissolve", attack_unspec(fd));
	attack_say("send", sendto(fd, "ask", 3, 0, &to.sa, to.len));
	packets_listen("dissolved", fd);
	one = 0;
	attack_need("read", getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, &length));
	attack_note("reuses", "%d", one);
	return 0;
}

/* Sends and notes the answer, which is the source that the peer sees. */
static void packets_where(const char *step, int fd, const struct attack_addr *to)
{
	char buf[128] = "";

	attack_need(step, to != NULL ? sendto(fd, "where", 5, 0, &to->sa, to->len)
				     : send(fd, "where", 5, 0));
	attack_need(step, recv(fd, buf, sizeof(buf) - 1, 0));
	attack_note(step, "%s", buf);
}

/* packets-lent ANY A B: what B sees of a socket that A has seen before, or how it is
 * refused. */
static int packets_lent(int argc, char **argv)
{
	struct attack_addr any = attack_addr(argv[0]), a = attack_addr(argv[1]),
			   b = attack_addr(argv[2]);

	(void)argc;
	for (int way = 0; way < 5; way++) {
		int fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		if (way > 2)
			attack_need("bind", bind(fd, &any.sa, any.len));
		if (way == 3) {
			packets_where("first", fd, &a);
			packets_where("bound and sent", fd, &b);
			continue;
		}
		attack_need("connect", connect(fd, &a.sa, a.len));
		packets_where("first", fd, NULL);
		if (way == 0)
			attack_say("sent while connected", sendto(fd, "w", 1, 0, &b.sa, b.len));
		attack_need("dissolve", attack_unspec(fd));
		if (way == 1)
			attack_say("dissolved and sent", sendto(fd, "w", 1, 0, &b.sa, b.len));
		if (way == 2 || way == 4) {
			attack_need("connect", connect(fd, &b.sa, b.len));
			packets_where(way == 2 ? "dissolved and connected" : "bound and connected",
				      fd, NULL);
		}
	}
	return 0;
}

/* packets-broadcast ADDR... */
static int packets_broadcast(int argc, char **argv)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1;
	socklen_t length = sizeof(one);

	attack_say("option", setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one)));
	one = 0;
	attack_need("read", getsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, &length));
	attack_note("value", "%d", one);
	for (int i = 0; i < argc; i++) {
		struct attack_addr to = attack_addr(argv[i]);

		attack_say(argv[i], sendto(fd, argv[i], strlen(argv[i]), 0, &to.sa, to.len));
	}
	return 0;
}

/*
 * packets-cork ALLOWED BROADCAST: a datagram for the one address that waits for its rest,
 * while the socket tries to connect to the other. The kernel keeps where a datagram that
 * waits is going in the place where connect(2) works out where it would go.
 */
static int packets_cork(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[0]), broadcast = attack_addr(argv[1]);
	int fd = attack_socket(AF_INET, SOCK_DGRAM);

	(void)argc;
	attack_say("begin", sendto(fd, "cor", 3, MSG_MORE, &to.sa, to.len));
	attack_say("connect", connect(fd, &broadcast.sa, broadcast.len));
	attack_say("end", sendto(fd, "ked", 3, 0, &to.sa, to.len));
	attack_say("next", sendto(fd, "next", 4, 0, &to.sa, to.len));
	attack_say("begin again", sendto(fd, "cor", 3, MSG_MORE, &to.sa, to.len));
	attack_say("connect to it", connect(fd, &to.sa, to.len));
	attack_say("end again", send(fd, "ked", 3, 0));
	attack_say("dissolve", attack_unspec(fd));
	attack_say("send", sendto(fd, "last", 4, 0, &to.sa, to.len));
	return 0;
}

/* packets-source FROM TO: a datagram that says where it comes from. */
static int packets_source(int argc, char **argv)
{
	struct attack_addr from = attack_addr(argv[0]), to = attack_addr(argv[1]);
	struct in_pktinfo info4 = {.ipi_spec_dst = from.in.sin_addr};
	struct in6_pktinfo info6 = {.ipi6_addr = from.in6.sin6_addr};
	int fd = attack_socket(to.sa.sa_family, SOCK_DGRAM);

	(void)argc;
	attack_say("plain", sendto(fd, "plain", 5, 0, &to.sa, to.len));
	if (to.sa.sa_family == AF_INET)
		attack_say("from it",
			   packets_message(fd, to, SOL_IP, IP_PKTINFO, &info4, sizeof(info4)));
	else
		attack_say("from it",
			   packets_message(fd, to, SOL_IPV6, IPV6_PKTINFO, &info6, sizeof(info6)));
	attack_say("plain again", sendto(fd, "plain again", 11, 0, &to.sa, to.len));
	return 0;
}

static atomic_bool packets_over;

static void *packets_flipper(void *at)
{
	volatile uint32_t *args = at;

	while (!atomic_load(&packets_over)) {
		args[2] = SO_KEEPALIVE;
		args[2] = 62; /* SO_BINDTOIFINDEX */
	}
	return NULL;
}

/*
 * packets-flip: options by socketcall(2) of i386, whose arguments are in memory, while
 * another thread changes which one. The value is the loopback's index, and true.
 */
static int packets_flip(int argc, char **argv)
{
	enum { I386_SOCKETCALL = 102, SETSOCKOPT = 14 };
	uint32_t *args = attack_low(), *value = args + 8;
	int set = 0, bound = 0, tries = 4000;
	struct timeval limit = {0};
	socklen_t length = sizeof(limit);
	pthread_t thread;

	(void)argc, (void)argv;
	*value = 1;
	args[1] = SOL_SOCKET;
	args[3] = (uint32_t)(uintptr_t)value;
	args[4] = sizeof(*value);
	pthread_create(&thread, NULL, packets_flipper, args);
	while (tries-- > 0) {
		int fd = attack_socket(AF_INET, SOCK_DGRAM), one = 0;

		args[0] = (uint32_t)fd;
		attack_i386(I386_SOCKETCALL, SETSOCKOPT, (long)args, 0, 0, 0);
		length = sizeof(one);
		getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, &length);
		set += one != 0;
		one = 0;
		getsockopt(fd, SOL_SOCKET, 62, &one, &length);
		bound += one != 0;
		close(fd);
	}
	atomic_store(&packets_over, true);
	pthread_join(thread, NULL);
	attack_note("harmless ones set", "%s", set > 0 ? "some" : "none");
	attack_note("bound to an interface", "%d", bound);
	/* A time, whose words are narrower. */
	args[0] = (uint32_t)attack_socket(AF_INET, SOCK_DGRAM);
	args[2] = SO_RCVTIMEO;
	args[4] = 2 * sizeof(*value);
	value[0] = 7;
	value[1] = 500000;
	attack_say("time", attack_i386(I386_SOCKETCALL, SETSOCKOPT, (long)args, 0, 0, 0));
	length = sizeof(limit);
	getsockopt((int)args[0], SOL_SOCKET, SO_RCVTIMEO, &limit, &length);
	attack_note("time", "%ld.%ld", (long)limit.tv_sec, (long)limit.tv_usec / 1000);
	args[2] = SO_REUSEADDR;
	attack_say("reuse", attack_i386(366, args[0], SOL_SOCKET, SO_REUSEADDR, (long)value, 4));
	attack_say("device", attack_i386(366, args[0], SOL_SOCKET, 62, (long)value, 4));
	args[3] = 8;
	attack_say("nowhere", attack_i386(I386_SOCKETCALL, SETSOCKOPT, (long)args, 0, 0, 0));
	return 0;
}

const struct attack_case packets_cases[] = {
	{"packets-message", packets_messages}, {"packets-ears", packets_ears},
	{"packets-lent", packets_lent},	       {"packets-broadcast", packets_broadcast},
	{"packets-flip", packets_flip},	       {"packets-cork", packets_cork},
	{"packets-source", packets_source},    {NULL, NULL},
};
