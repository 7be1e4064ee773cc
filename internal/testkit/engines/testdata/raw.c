/*
 * "raw ADDR PORT": sends datagrams there that only CAP_NET_RAW or CAP_NET_ADMIN may send,
 * makes sockets that only they may make, and prints what becomes of each: "ok" or the error.
 * The datagram "plain", which comes last, anybody may send.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void raw_say(const char *name, long result)
{
	printf("%s %s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
}

/* Sends a datagram with a control message of SOL_SOCKET, if type is not 0. */
static long raw_send(const struct sockaddr *to, socklen_t len, const char *text, int type,
		     uint32_t value)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(uint32_t))];
	} control = {.header = {.cmsg_level = SOL_SOCKET,
				.cmsg_type = type,
				.cmsg_len = CMSG_LEN(sizeof(value))}};
	struct iovec iov = {(void *)text, strlen(text)};
	struct msghdr message = {
		.msg_name = (void *)to, .msg_namelen = len, .msg_iov = &iov, .msg_iovlen = 1};
	int fd = socket(to->sa_family, SOCK_DGRAM, 0);
	long sent;

	if (type) {
		memcpy(CMSG_DATA(&control.header), &value, sizeof(value));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	sent = sendmsg(fd, &message, 0);
	close(fd);
	return sent;
}

int main(int argc, char **argv)
{
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	const struct sockaddr *to = (void *)&four;
	socklen_t len = sizeof(four);

	if (argc != 3)
		return 2;
	four.sin_port = six.sin6_port = htons((uint16_t)atoi(argv[2]));
	if (inet_pton(AF_INET, argv[1], &four.sin_addr) != 1) {
		if (inet_pton(AF_INET6, argv[1], &six.sin6_addr) != 1)
			return 2;
		to = (void *)&six;
		len = sizeof(six);
	}
	raw_say("mark", raw_send(to, len, "marked", SO_MARK, 1));
	raw_say("raw", socket(to->sa_family, SOCK_RAW, IPPROTO_UDP));
	raw_say("packet", socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)));
	raw_say("plain", raw_send(to, len, "plain", 0, 0));
	return 0;
}
