// SPDX-License-Identifier: Apache-2.0
/* Calls with plain arguments. */
#include "driver.h"

#include <fcntl.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

void call_socket(struct actor *a)
{
	static const int families[] = {AF_INET, AF_INET, AF_INET, AF_INET6, AF_INET6, GRAFT_FAMILY};
	static const int protocols[] = {IPPROTO_TCP,  IPPROTO_UDP,  IPPROTO_MPTCP, IPPROTO_UDPLITE,
					IPPROTO_SCTP, IPPROTO_ICMP, IPPROTO_RAW};
	int family = families[driver_pick(a, 6)];
	int type = driver_pick(a, 5) < 2 ? SOCK_STREAM : SOCK_DGRAM;
	int protocol = protocols[driver_pick(a, 7)], broadcast = driver_pick(a, 2) == 0, one = 1;
	bool plain = driver_pick(a, 6) != 0;
	uint32_t odd = driver_pick(a, 40);
	int fd;

	if (odd == 0)
		type = SOCK_RAW;
	else if (odd == 1)
		type = SOCK_SEQPACKET;
	else if (odd == 2)
		family = (int)driver_pick(a, 45);
	if (plain)
		protocol = 0;
	else if (protocol == IPPROTO_MPTCP)
		type = SOCK_STREAM;
	driver_fd(a);
	fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
	driver_say(a, fd, "socket family=%d type=%d protocol=%d broadcast=%d slot=%d", family, type,
		   protocol, broadcast, a->slot);
	if (fd >= 0 && broadcast)
		setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	driver_put(a, fd);
}

void call_bind(struct actor *a)
{
	int fd = driver_fd(a);
	struct driver_addr at = driver_own(a);

	driver_say(a, bind(fd, &at.sa, at.len), "bind slot=%d %s", a->slot, driver_text(&at));
}

void call_connect(struct actor *a)
{
	int fd = driver_fd(a);
	struct driver_addr to = driver_destination(a);

	driver_say(a, connect(fd, &to.sa, to.len), "connect slot=%d %s", a->slot, driver_text(&to));
}

void call_disconnect(struct actor *a)
{
	int fd = driver_fd(a);
	struct driver_addr to = driver_unspec();

	driver_say(a, connect(fd, &to.sa, to.len), "disconnect slot=%d", a->slot);
}

void call_listen(struct actor *a)
{
	int fd = driver_fd(a), backlog = (int)driver_pick(a, 8) - 1;

	driver_say(a, listen(fd, backlog), "listen slot=%d backlog=%d", a->slot, backlog);
}

void call_accept(struct actor *a)
{
	int fd = driver_fd(a), from = a->slot;
	int got = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	a->slot = (int)driver_pick(a, SLOTS);
	driver_say(a, got, "accept slot=%d into %d", from, a->slot);
	driver_put(a, got);
}

static int call_flags(struct actor *a)
{
	static const int odd[] = {MSG_MORE,	MSG_DONTROUTE, MSG_CONFIRM,  MSG_OOB,
				  MSG_ZEROCOPY, MSG_FASTOPEN,  MSG_FASTOPEN, 0x10 /* MSG_PROBE */};
	uint32_t which = driver_pick(a, 24);

	return MSG_DONTWAIT | MSG_NOSIGNAL | (which < 8 ? odd[which] : 0);
}

void call_send(struct actor *a)
{
	int fd = driver_fd(a), flags = call_flags(a);
	char text[PAYLOAD_MAX];
	int n = driver_payload(a, text);
	long result =
		driver_pick(a, 2) ? send(fd, text, (size_t)n, flags) : write(fd, text, (size_t)n);

	driver_say(a, result, "send slot=%d flags=%#x", a->slot, flags);
}

void call_sendto(struct actor *a)
{
	int fd = driver_fd(a), flags = call_flags(a);
	struct driver_addr to = driver_destination(a);
	char text[PAYLOAD_MAX];
	int n = driver_payload(a, text);

	driver_say(a, sendto(fd, text, (size_t)n, flags, &to.sa, to.len),
		   "sendto slot=%d flags=%#x %s", a->slot, flags, driver_text(&to));
}

void call_receive(struct actor *a)
{
	int fd = driver_fd(a);

	driver_hear(a, fd);
	driver_say(a, 0, "receive slot=%d", a->slot);
}

void call_names(struct actor *a)
{
	int fd = driver_fd(a);
	struct driver_addr own = {.len = sizeof(own.in6)}, peer = own;
	long result = getsockname(fd, &own.sa, &own.len);

	getpeername(fd, &peer.sa, &peer.len);
	driver_say(a, result, "getsockname slot=%d %s", a->slot, driver_text(&own));
}

void call_close(struct actor *a)
{
	int fd = driver_fd(a);

	if (driver_pick(a, 2)) {
		driver_say(a, shutdown(fd, (int)driver_pick(a, 3)), "shutdown slot=%d", a->slot);
		return;
	}
	fd = __atomic_exchange_n((int *)&driver_fds[a->slot], -1, __ATOMIC_SEQ_CST);
	driver_say(a, fd >= 0 ? close(fd) : 0, "close slot=%d", a->slot);
}
