// SPDX-License-Identifier: Apache-2.0
/* UDP servers and clients, and to whom they may speak. */
#include "attack.h"

#include <arpa/inet.h>

/*
 * "server AT OTHER...": answers what comes and then tries the others, each with
 * "server" as the payload. Ends with a datagram that says "end".
 */
static int udp_server(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[0]);
	int fd = socket(at.sa.sa_family, SOCK_DGRAM, 0);

	attack_need("bind", bind(fd, &at.sa, at.len));
	attack_note("ready", "ok");
	for (;;) {
		struct sockaddr_in6 from = {0};
		socklen_t len = sizeof(from);
		char data[64] = "";

		attack_need("receive", recvfrom(fd, data, sizeof(data) - 1, 0,
						(struct sockaddr *)&from, &len));
		if (strcmp(data, "end") == 0)
			return 0;
		attack_note("received", "%s", data);
		attack_say("answer", sendto(fd, "answer", 6, 0, (struct sockaddr *)&from, len));
		for (int i = 1; i < argc; i++) {
			struct attack_addr to = attack_addr(argv[i]);

			attack_say(argv[i], sendto(fd, "server", 6, 0, &to.sa, to.len));
		}
	}
}

/* The source in a control message, on a socket of each kind. */
static void udp_from(int fd, const char *step, const struct attack_addr *to, bool named,
		     const struct attack_addr *source)
{
	union {
		char space[CMSG_SPACE(sizeof(struct in6_pktinfo))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {"source", 6};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
	struct cmsghdr *c;

	if (named) {
		msg.msg_name = (void *)&to->sa;
		msg.msg_namelen = to->len;
	}
	msg.msg_controllen = sizeof(control);
	c = CMSG_FIRSTHDR(&msg);
	if (source->sa.sa_family == AF_INET) {
		struct in_pktinfo info = {.ipi_spec_dst = source->in.sin_addr};

		c->cmsg_level = IPPROTO_IP;
		c->cmsg_type = IP_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(info));
		msg.msg_controllen = CMSG_SPACE(sizeof(info));
		memcpy(CMSG_DATA(c), &info, sizeof(info));
	} else {
		struct in6_pktinfo info = {.ipi6_addr = source->in6.sin6_addr};

		c->cmsg_level = IPPROTO_IPV6;
		c->cmsg_type = IPV6_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(info));
		memcpy(CMSG_DATA(c), &info, sizeof(info));
	}
	attack_say(step, sendmsg(fd, &msg, 0));
}

/* "source TO ADDR": sends to TO with ADDR as the source. */
static int udp_source(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[0]), source = attack_addr(argv[argc - 1]);
	int fd = attack_socket(to.sa.sa_family, SOCK_DGRAM);

	udp_from(fd, "unconnected", &to, true, &source);
	fd = attack_socket(to.sa.sa_family, SOCK_DGRAM);
	attack_need("connect", connect(fd, &to.sa, to.len));
	udp_from(fd, "connected", &to, false, &source);
	udp_from(fd, "connected, named", &to, true, &source);
	return 0;
}

/* "udp-later TO": connects a socket that has sent before. */
static int udp_later(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	int fd = attack_socket(to.sa.sa_family, SOCK_DGRAM);

	attack_say("sendto", sendto(fd, "first", 5, 0, &to.sa, to.len));
	attack_say("connect", connect(fd, &to.sa, to.len));
	attack_say("send", send(fd, "later", 5, 0));
	return 0;
}

/* "udp-range PORT TO": asks for one port by the range of local ports. */
static int udp_range(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	struct sockaddr_in a = {.sin_family = AF_INET};
	uint32_t port = (uint32_t)atoi(argv[0]), range = port | port << 16;
	int fd = attack_socket(AF_INET, SOCK_DGRAM);
	socklen_t len = sizeof(a);

	attack_say("range",
		   setsockopt(fd, IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, &range, sizeof(range)));
	attack_say("bind", bind(fd, (struct sockaddr *)&a, sizeof(a)));
	attack_say("connect", connect(fd, &to.sa, to.len));
	getsockname(fd, (struct sockaddr *)&a, &len);
	attack_note("got the port", "%s", ntohs(a.sin_port) == port ? "yes" : "no");
	return 0;
}

/* "udp-outlive AT BY": a client of an own server that is no more. It waits for a line before the
 * server closes, and for another before it sends again. */
static int udp_outlive(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[0]), by = attack_addr(argv[argc - 1]);
	int server = attack_socket(at.sa.sa_family, SOCK_DGRAM);
	int client = attack_socket(by.sa.sa_family, SOCK_DGRAM);
	char data[16];

	attack_need("bind", bind(server, &at.sa, at.len));
	attack_need("connect", connect(client, &by.sa, by.len));
	attack_need("send", send(client, "mine", 4, 0));
	attack_need("receive", recv(server, data, sizeof(data), 0));
	attack_note("heard", "ok");
	attack_need("wait", read(STDIN_FILENO, data, 1));
	close(server);
	attack_note("closed", "ok");
	attack_need("wait", read(STDIN_FILENO, data, 1));
	attack_say("send", send(client, "outlived", 8, 0));
	attack_hold();
	return 0;
}

/* "udp-own AT": a datagram over the container's own loopback. */
static int udp_own(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[argc - 1]);
	int server = attack_socket(at.sa.sa_family, SOCK_DGRAM);
	int client = attack_socket(at.sa.sa_family, SOCK_DGRAM);
	char data[16] = "";

	attack_need("bind", bind(server, &at.sa, at.len));
	attack_say("sendto", sendto(client, "mine", 4, 0, &at.sa, at.len));
	attack_say("receive", recv(server, data, sizeof(data) - 1, 0));
	return strcmp(data, "mine") != 0;
}

const struct attack_case udp_cases[] = {
	{"udp-server", udp_server},
	{"udp-source", udp_source},
	{"udp-later", udp_later},
	{"udp-range", udp_range},
	{"udp-outlive", udp_outlive},
	{"udp-own", udp_own},
	{0},
};
