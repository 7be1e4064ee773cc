// SPDX-License-Identifier: Apache-2.0
/*
 * Binds sockets to addresses, listens, connects and sends. Then it renames the file argv[1] to
 * argv[2], and waits to be killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void binds(const char *text, uint16_t port)
{
	struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	int s;

	if (inet_pton(AF_INET, text, &to4.sin_addr) == 1) {
		s = socket(AF_INET, SOCK_STREAM, 0);
		bind(s, (struct sockaddr *)&to4, sizeof(to4));
	} else if (inet_pton(AF_INET6, text, &to6.sin6_addr) == 1) {
		s = socket(AF_INET6, SOCK_STREAM, 0);
		bind(s, (struct sockaddr *)&to6, sizeof(to6));
	} else {
		_exit(2);
	}
	listen(s, 1);
}

/* Nobody listens at these addresses, whether the kernel carries on or not. */
static void destinations(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	struct iovec iov = {"x", 1};
	struct msghdr msg = {
		.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr many = {.msg_hdr = msg};
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
	sendmsg(s, &msg, 0);
	sendmmsg(s, &many, 1, 0);
	connect(s, (struct sockaddr *)&to, sizeof(to));
	s = socket(AF_INET, SOCK_STREAM, 0);
	sendto(s, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof(to));
}

int main(int argc, char **argv)
{
	static const char *const addresses[] = {
		"0.0.0.0", "127.0.0.1",	       "127.9.8.7",	 "198.51.100.1", "::",
		"::1",	   "::ffff:127.0.0.1", "::ffff:0.0.0.0", "2001:db8::1",
	};

	if (argc != 3)
		return 2;
	destinations();
	for (size_t i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
		binds(addresses[i], 0);
		binds(addresses[i], 8080);
	}
	if (rename(argv[1], argv[2]) != 0)
		return 2;
	pause();
	return 0;
}
