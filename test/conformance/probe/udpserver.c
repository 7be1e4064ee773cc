// SPDX-License-Identifier: Apache-2.0
/* Datagram servers: the peer speaks first. */
#include "probe.h"

static struct probe_addr udpserver_hear(int fd, const char *text)
{
	struct probe_addr from = {.len = sizeof(from.ss)};
	char buf[32] = "";

	if (!probe_poll(fd, POLLIN, PROBE_PATIENCE)) {
		probe_line("heard", "silence");
		probe_fail();
		return from;
	}
	probe_want("recvfrom",
		   recvfrom(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT, &from.sa, &from.len), 0);
	probe_check("heard", !strcmp(buf, text));
	probe_name("from", &from);
	return from;
}

static void udpserver_sendto(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), asked;
	struct probe_addr from;

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_names("bound", fd);
	asked = probe_dial_udp(family, env.port, "question");
	from = udpserver_hear(fd, "question");
	probe_want("sendto", sendto(fd, "answer", 6, 0, &from.sa, from.len), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
	asked = probe_dial_udp(family, env.port, "again");
	from = udpserver_hear(fd, "again");
	probe_want("sendto", sendto(fd, "and again", 9, 0, &from.sa, from.len), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
}

static void udpserver_sendmsg(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), asked;
	struct probe_addr from = {.len = sizeof(from.ss)};
	char buf[32] = "";
	struct iovec iov = {buf, sizeof(buf) - 1};
	struct msghdr h = {.msg_name = &from.ss,
			   .msg_namelen = sizeof(from.ss),
			   .msg_iov = &iov,
			   .msg_iovlen = 1};

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	asked = probe_dial_udp(family, env.port, "message");
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	iov.iov_len = sizeof(buf) - 1;
	iov.iov_len = (size_t)probe_want("recvmsg", recvmsg(fd, &h, MSG_DONTWAIT), 0);
	probe_line("name length", "%d", (int)h.msg_namelen);
	probe_want("sendmsg", sendmsg(fd, &h, 0), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
}

/* A server that connects to each client, on the port that it is bound to. */
static void udpserver_connect(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), asked;

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	asked = probe_dial_udp(family, env.port, "session");
	probe_want("connect", probe_connect(fd, udpserver_hear(fd, "session")), 0);
	probe_names("connected", fd);
	probe_want("send", send(fd, "welcome", 7, 0), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
	probe_want("dissolve", probe_connect(fd, probe_unspec()), 0);
	probe_names("dissolved", fd);
}

/* A bound port that is not closed to what comes before a wait. */
static void udpserver_queue(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), asked[2], n = 0;
	char buf[8];

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	asked[0] = probe_dial_udp(family, env.port, "one");
	asked[1] = probe_dial_udp(family, env.port, "two");
	while (n < 2 && probe_poll(fd, POLLIN, PROBE_PATIENCE) &&
	       recv(fd, buf, sizeof(buf), MSG_DONTWAIT) == 3)
		n++;
	probe_line("datagrams", "%d", n);
	close(fd);
	probe_line("first heard", "%s", probe_heard_by_now(asked[0]));
	probe_line("second heard", "%s", probe_heard_by_now(asked[1]));
}

static void udpserver_dual(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), asked;
	struct probe_addr from;

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	asked = probe_dial_udp(AF_INET, env.port, "four");
	from = udpserver_hear(fd, "four");
	probe_want("sendto", sendto(fd, "vier", 4, 0, &from.sa, from.len), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
	asked = probe_dial_udp(AF_INET6, env.port, "six");
	from = udpserver_hear(fd, "six");
	probe_want("sendto", sendto(fd, "sechs", 5, 0, &from.sa, from.len), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
}

/* A server answers from the address that it was asked at. */
static void udpserver_pktinfo(int family)
{
	char control[128], buf[32] = "";
	int fd = probe_socket(family, SOCK_DGRAM), one = 1, asked;
	struct probe_addr from = {.len = sizeof(from.ss)};
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_name = &from.ss,
			   .msg_namelen = sizeof(from.ss),
			   .msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};

	probe_want("IP_PKTINFO", setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one)), 0);
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	asked = probe_dial_udp(family, env.port, "where");
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	iov.iov_len = (size_t)probe_want("recvmsg", recvmsg(fd, &h, MSG_DONTWAIT), 0);
	probe_check("with control data", CMSG_FIRSTHDR(&h) != NULL);
	probe_want("sendmsg with the same", sendmsg(fd, &h, 0), 0);
	probe_line("peer heard", "%s", probe_heard(asked));
}

/* Two servers share a port: each datagram comes to one of them. */
static void udpserver_reuseport(int family)
{
	int fds[2], one = 1, asked[8], n = 0;
	char buf[8];

	for (int i = 0; i < 2; i++) {
		fds[i] = probe_socket(family, SOCK_DGRAM | SOCK_NONBLOCK);
		setsockopt(fds[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
		probe_want("bind", probe_bind(fds[i], probe_any(family, env.port)), 0);
	}
	for (int i = 0; i < 8; i++)
		asked[i] = probe_dial_udp(family, env.port, "x");
	while (n < 8) {
		for (int i = 0; i < 2; i++) {
			struct probe_addr a = {.len = sizeof(a.ss)};

			if (recvfrom(fds[i], buf, 8, 0, &a.sa, &a.len) != 1)
				continue;
			n += sendto(fds[i], "y", 1, 0, &a.sa, a.len) == 1;
		}
		probe_sleep(5);
	}
	probe_line("datagrams", "%d", n);
	for (int i = 0; i < 8; i++)
		n -= strcmp(probe_heard(asked[i]), "y") == 0;
	probe_line("unanswered", "%d", n);
}

const struct probe_case udpserver_cases[] = {
	{"udpserver-sendto-v4", udpserver_sendto, AF_INET, 1},
	{"udpserver-sendto-v6", udpserver_sendto, AF_INET6, 1},
	{"udpserver-sendmsg", udpserver_sendmsg, AF_INET, 1},
	{"udpserver-connect-v4", udpserver_connect, AF_INET, 1},
	{"udpserver-connect-v6", udpserver_connect, AF_INET6, 1},
	{"udpserver-queue", udpserver_queue, AF_INET, 1},
	{"udpserver-dual", udpserver_dual, AF_INET6, 1},
	{"udpserver-pktinfo", udpserver_pktinfo, AF_INET, 1},
	{"udpserver-reuseport", udpserver_reuseport, AF_INET, 1},
	{0},
};
