/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what calls of IPv4 sockets answer: errors, lengths, families and addresses, and whether
 *they leave the rest of the caller's memory alone.
 *
 *	probe ask NAME PORT	asks a server over TCP and UDP
 *	probe serve PORT	answers four clients over TCP, and over UDP until it is ended
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILL 0xaa
#define ROOM 128

/* Memory for an address, of which a call may write a part. */
struct room {
	socklen_t len;
	unsigned char octets[ROOM];
};

static struct room fresh(socklen_t len)
{
	struct room r = {.len = len};

	memset(r.octets, FILL, sizeof(r.octets));
	return r;
}

/* Prints an answer. A port is printed if it is known, else whether there is one. */
static void show(const char *call, int result, const struct room *r, socklen_t given, int port)
{
	socklen_t written = r->len < given ? r->len : given;
	struct sockaddr_in in;
	char text[INET6_ADDRSTRLEN] = "";

	if (result < 0) {
		printf("%s: %s\n", call, strerrorname_np(errno));
		return;
	}
	printf("%s: %u octets", call, r->len);
	for (int i = written; i < ROOM; i++)
		if (r->octets[i] != FILL)
			errx(1, "%s overwrites octet %d", call, i);
	memcpy(&in, r->octets, sizeof(in));
	if (written >= sizeof(in.sin_family))
		printf(", family %d", in.sin_family);
	if (written >= sizeof(in)) {
		printf(", %s", inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text)));
		if (port)
			printf(":%d", ntohs(in.sin_port));
		else if (!in.sin_port)
			printf(", no port");
		for (size_t i = 0; i < sizeof(in.sin_zero); i++)
			if (in.sin_zero[i]) {
				printf(", its end is not zero");
				break;
			}
	}
	printf("\n");
}

typedef int name_call(int, struct sockaddr *, socklen_t *);

/* Makes a call with memory of each size that programs have. */
static void names(const char *what, name_call *call, int fd, int port)
{
	static const socklen_t sizes[] = {ROOM, sizeof(struct sockaddr_in), 6, 2, 0};
	char text[100];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct room r = fresh(sizes[i]);
		int result = call(fd, (struct sockaddr *)r.octets, &r.len);

		snprintf(text, sizeof(text), "%s of %u", what, sizes[i]);
		show(text, result, &r, sizes[i], port);
	}
}

/* SO_PEERNAME says what getpeername(2) says, or EPERM. */
static void peer_option(int fd)
{
	struct room name = fresh(sizeof(struct sockaddr_in)), option = name;

	if (getpeername(fd, (struct sockaddr *)name.octets, &name.len))
		err(1, "getpeername");
	if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, option.octets, &option.len)) {
		if (errno != EPERM)
			err(1, "SO_PEERNAME");
		option = name;
	}
	if (option.len == name.len && !memcmp(option.octets, name.octets, ROOM))
		printf("SO_PEERNAME: the same, or nothing\n");
	else
		show("SO_PEERNAME", 0, &option, sizeof(struct sockaddr_in), 1);
}

static void number(int fd, const char *what, int level, int option)
{
	int value = -1;
	socklen_t len = sizeof(value);

	if (getsockopt(fd, level, option, &value, &len))
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: %d\n", what, value);
}

static void kind(int fd)
{
	number(fd, "SO_DOMAIN", SOL_SOCKET, SO_DOMAIN);
	number(fd, "SO_TYPE", SOL_SOCKET, SO_TYPE);
	number(fd, "SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL);
}

/* Receives one message with all that recvmsg(2) says of it. */
static struct room receive(const char *call, int fd)
{
	struct room r = fresh(ROOM);
	char data[200], control[200];
	struct iovec vec = {data, sizeof(data)};
	struct msghdr msg = {.msg_name = r.octets,
			     .msg_namelen = ROOM,
			     .msg_iov = &vec,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	int n = recvmsg(fd, &msg, 0);

	r.len = msg.msg_namelen;
	show(call, n, &r, ROOM, 0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); n >= 0 && c; c = CMSG_NXTHDR(&msg, c)) {
		struct in_pktinfo info;
		char text[INET_ADDRSTRLEN];

		printf("  control level %d type %d, %zu octets", c->cmsg_level, c->cmsg_type,
		       c->cmsg_len - CMSG_LEN(0));
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			memcpy(&info, CMSG_DATA(c), sizeof(info));
			printf(", to %s", inet_ntop(AF_INET, &info.ipi_addr, text, sizeof(text)));
			printf(", by %s",
			       inet_ntop(AF_INET, &info.ipi_spec_dst, text, sizeof(text)));
		}
		printf("\n");
	}
	return r;
}

static void set(int fd, int option, int value)
{
	if (setsockopt(fd, IPPROTO_IP, option, &value, sizeof(value)))
		err(1, "setsockopt of IPv4, %d", option);
}

static struct sockaddr_in resolve(const char *name, const char *port)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_flags = AI_ADDRCONFIG | AI_CANONNAME};
	struct sockaddr_in first = {};
	struct addrinfo *list;
	int result = getaddrinfo(name, port, &hints, &list);

	if (result)
		errx(1, "getaddrinfo: %s", gai_strerror(result));
	memcpy(&first, list->ai_addr, sizeof(first));
	for (struct addrinfo *a = list; a; a = a->ai_next) {
		struct room r = fresh(ROOM);

		r.len = a->ai_addrlen;
		memcpy(r.octets, a->ai_addr, a->ai_addrlen);
		show("getaddrinfo", 0, &r, ROOM, 1);
	}
	freeaddrinfo(list);
	return first;
}

static void ask_tcp(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), port = ntohs(at->sin_port);
	struct room r = fresh(ROOM);
	char data[200];
	int n;

	names("getsockname before", getsockname, fd, 1);
	names("getpeername before", getpeername, fd, port);
	if (connect(fd, (const struct sockaddr *)at, sizeof(*at)))
		err(1, "connect");
	kind(fd);
	names("getsockname", getsockname, fd, 0);
	names("getpeername", getpeername, fd, port);
	peer_option(fd);
	n = recvfrom(fd, data, 1, 0, (struct sockaddr *)r.octets, &r.len);
	show("recvfrom", n, &r, ROOM, port);
	receive("recvmsg", fd);
	close(fd);
}

static void ask_udp(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), port = ntohs(at->sin_port);
	const struct sockaddr *to = (const struct sockaddr *)at;
	static const socklen_t sizes[] = {ROOM, sizeof(*at), 6, 0};
	char data[200];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct room r = fresh(sizes[i]);
		int n = sendto(fd, "?", 1, 0, to, sizeof(*at));

		if (n == 1)
			n = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)r.octets,
				     &r.len);
		show("recvfrom", n, &r, sizes[i], port);
	}
	set(fd, IP_PKTINFO, 1);
	if (sendto(fd, "?", 1, 0, to, sizeof(*at)) != 1)
		err(1, "sendto");
	receive("recvmsg", fd);
	if (connect(fd, to, sizeof(*at)))
		err(1, "connect");
	kind(fd);
	names("getsockname", getsockname, fd, 0);
	names("getpeername", getpeername, fd, port);
	peer_option(fd);
	if (send(fd, "?", 1, 0) != 1)
		err(1, "send");
	receive("recvmsg", fd);
	close(fd);
}

/* A socket that may ask a name server is not on the loopback: programs choose an address by that.
 */
static void ask_names(struct sockaddr_in at)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	at.sin_port = htons(53);
	if (connect(fd, (const struct sockaddr *)&at, sizeof(at)))
		err(1, "connect");
	names("getsockname to port 53", getsockname, fd, 0);
	names("getpeername to port 53", getpeername, fd, 53);
	close(fd);
}

/* The container's interfaces have an address that the own sockets have. */
static void interfaces(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), has = 0, others = 0;
	struct ifreq list[20];
	struct ifconf conf = {.ifc_len = sizeof(list), .ifc_req = list};
	struct sockaddr_in own, other;
	socklen_t len = sizeof(own);
	struct ifaddrs *all;

	if (connect(fd, (const struct sockaddr *)at, sizeof(*at)) ||
	    getsockname(fd, (struct sockaddr *)&own, &len) || ioctl(fd, SIOCGIFCONF, &conf))
		err(1, "list interfaces");
	for (size_t i = 0; i < conf.ifc_len / sizeof(list[0]); i++) {
		memcpy(&other, &list[i].ifr_addr, sizeof(other));
		has += other.sin_addr.s_addr == own.sin_addr.s_addr;
		others += other.sin_family != AF_INET;
	}
	printf("SIOCGIFCONF: the own address %d times, %d of other families\n", has, others);
	has = 0;
	if (getifaddrs(&all))
		err(1, "getifaddrs");
	for (struct ifaddrs *a = all; a; a = a->ifa_next) {
		if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET)
			continue;
		memcpy(&other, a->ifa_addr, sizeof(other));
		has += other.sin_addr.s_addr == own.sin_addr.s_addr &&
		       a->ifa_netmask->sa_family == AF_INET;
	}
	printf("getifaddrs: the own address %d times\n", has);
	freeifaddrs(all);
	close(fd);
}

static void serve(int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), packets = socket(AF_INET, SOCK_DGRAM, 0);
	static const socklen_t sizes[] = {ROOM, 6, 0};
	int on = 1, fd;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	set(packets, IP_PKTINFO, 1);
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 5) ||
	    bind(packets, (struct sockaddr *)&at, sizeof(at)))
		err(1, "bind");
	kind(listener);
	names("getsockname of the listener", getsockname, listener, port);
	names("getpeername of the listener", getpeername, listener, 0);
	names("getsockname of the UDP server", getsockname, packets, port);
	fprintf(stderr, "ready\n");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct room r = fresh(sizes[i]);

		fd = accept4(listener, (struct sockaddr *)r.octets, &r.len, SOCK_CLOEXEC);
		show("accept4", fd, &r, sizes[i], 0);
		send(fd, "hello", 5, 0);
		close(fd);
	}
	fd = accept(listener, NULL, NULL);
	kind(fd);
	names("getsockname", getsockname, fd, port);
	names("getpeername", getpeername, fd, 0);
	send(fd, "hello", 5, 0);
	close(fd);
	for (;;) {
		struct room r = receive("recvmsg", packets);

		fflush(stdout);
		if (sendto(packets, "hello", 5, 0, (struct sockaddr *)r.octets, r.len) != 5)
			err(1, "sendto");
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at;

	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(atoi(argv[2]));
	if (argc != 4 || strcmp(argv[1], "ask"))
		errx(2, "usage: probe ask NAME PORT | probe serve PORT");
	at = resolve(argv[2], argv[3]);
	printf("TCP\n");
	ask_tcp(&at);
	printf("UDP\n");
	ask_udp(&at);
	ask_names(at);
	interfaces(&at);
	return 0;
}
