// SPDX-License-Identifier: Apache-2.0
/* Datagrams by the calls that do more: messages, batches, control data. */
#include "probe.h"

#include <linux/errqueue.h>
#include <netinet/udp.h>

#define BATCH 3

struct udpmsg_batch {
	struct mmsghdr m[BATCH];
	struct iovec iov[BATCH];
	struct probe_addr to[BATCH];
	char text[BATCH][16];
};

static void udpmsg_prepare(struct udpmsg_batch *b, bool names)
{
	for (int i = 0; i < BATCH; i++) {
		struct msghdr *h = &b->m[i].msg_hdr;

		memset(&b->m[i], 0, sizeof(b->m[i]));
		b->iov[i] = (struct iovec){b->text[i], sizeof(b->text[i])};
		h->msg_iov = &b->iov[i];
		h->msg_iovlen = 1;
		if (names) {
			h->msg_name = &b->to[i].ss;
			h->msg_namelen = b->to[i].len;
		}
	}
}

static void udpmsg_collect(const char *step, int fd, struct udpmsg_batch *b)
{
	int got = 0, bytes = 0;

	for (int i = 0; i < BATCH; i++)
		b->to[i].len = sizeof(b->to[i].ss);
	while (got < BATCH && probe_poll(fd, POLLIN, PROBE_PATIENCE)) {
		int n;

		udpmsg_prepare(b, true);
		n = recvmmsg(fd, b->m, BATCH - got, MSG_DONTWAIT, NULL);
		if (n <= 0)
			break;
		for (int i = 0; i < n; i++)
			bytes += b->m[i].msg_len;
		got += n;
	}
	probe_line(step, "%d messages, %d bytes", got, bytes);
	probe_want("no more", recvmmsg(fd, b->m, 1, MSG_DONTWAIT, NULL), EAGAIN);
}

static void udpmsg_batch(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	struct udpmsg_batch b;

	for (int i = 0; i < BATCH; i++)
		b.to[i] = probe_peer(family, i % 2 ? env.udp2 : env.udp);
	udpmsg_prepare(&b, true);
	for (int i = 0; i < BATCH; i++)
		b.iov[i].iov_len = i + 1;
	probe_want("sendmmsg", sendmmsg(fd, b.m, BATCH, 0), 0);
	probe_line("lengths", "%u %u %u", b.m[0].msg_len, b.m[1].msg_len, b.m[2].msg_len);
	udpmsg_collect("recvmmsg", fd, &b);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	udpmsg_prepare(&b, false);
	for (int i = 0; i < BATCH; i++)
		b.iov[i].iov_len = i + 4;
	probe_want("sendmmsg connected", sendmmsg(fd, b.m, BATCH, 0), 0);
	udpmsg_collect("recvmmsg", fd, &b);
}

/* The second of a batch goes nowhere: the first is counted. */
static void udpmsg_batch_fails(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	struct udpmsg_batch b;

	for (int i = 0; i < BATCH; i++)
		b.to[i] = probe_peer(family, env.udp);
	udpmsg_prepare(&b, true);
	for (int i = 0; i < BATCH; i++)
		b.iov[i].iov_len = 2;
	b.m[1].msg_hdr.msg_namelen = 3;
	probe_want("sendmmsg", sendmmsg(fd, b.m, BATCH, 0), 0);
	b.m[0].msg_hdr.msg_namelen = 3;
	probe_want("sendmmsg, first is bad", sendmmsg(fd, b.m, BATCH, 0), EINVAL);
	b.m[0].msg_hdr.msg_namelen = b.to[0].len;
	b.m[1].msg_hdr.msg_name = (void *)8;
	b.m[1].msg_hdr.msg_namelen = b.to[0].len;
	probe_want("sendmmsg, second is unmapped", sendmmsg(fd, b.m, BATCH, 0), 0);
	probe_want("sendmmsg of none", sendmmsg(fd, b.m, 0, 0), 0);
}

/* Prints what kinds of control messages a datagram came with. */
static void udpmsg_control(int fd)
{
	char control[512], buf[32];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct probe_addr local = probe_local(fd);
	struct in_pktinfo *info;
	struct in6_pktinfo *info6;

	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recvmsg", recvmsg(fd, &h, MSG_DONTWAIT), 0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		probe_line("control", "level %d type %d len %zu", c->cmsg_level, c->cmsg_type,
			   (size_t)c->cmsg_len);
		info = (struct in_pktinfo *)CMSG_DATA(c);
		info6 = (struct in6_pktinfo *)CMSG_DATA(c);
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO)
			probe_check("addressed to the local name",
				    info->ipi_addr.s_addr == local.in.sin_addr.s_addr);
		if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO)
			probe_check("addressed to the local name",
				    !memcmp(&info6->ipi6_addr, &local.in6.sin6_addr, 16));
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL)
			probe_line("TTL", "%d", *(int *)CMSG_DATA(c));
	}
}

static void udpmsg_pktinfo(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), one = 1;

	if (family == AF_INET) {
		setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one));
	} else {
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &one, sizeof(one));
	}
	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof(one));
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_want("send", send(fd, "info", 4, 0), 0);
	udpmsg_control(fd);
}

/* A source address chosen per datagram. */
static void udpmsg_pktinfo_send(int family)
{
	char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
	struct probe_addr to = probe_peer(family, env.udp), local;
	int fd = probe_socket(family, SOCK_DGRAM);
	struct iovec iov = {"src", 3};
	struct msghdr h = {.msg_name = &to.ss,
			   .msg_namelen = to.len,
			   .msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	struct in_pktinfo info = {0};
	char buf[8];

	c->cmsg_level = IPPROTO_IP;
	c->cmsg_type = IP_PKTINFO;
	c->cmsg_len = CMSG_LEN(sizeof(info));
	memcpy(CMSG_DATA(c), &info, sizeof(info));
	probe_want("no preference", sendmsg(fd, &h, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recv", recv(fd, buf, 8, MSG_DONTWAIT), 0);
	info.ipi_spec_dst = probe_text(AF_INET, "203.0.113.99", 0).in.sin_addr;
	memcpy(CMSG_DATA(c), &info, sizeof(info));
	probe_rc("a source that is not ours", sendmsg(fd, &h, 0));
	probe_want("connect", probe_connect(fd, to), 0);
	local = probe_local(fd);
	info.ipi_spec_dst = local.in.sin_addr;
	memcpy(CMSG_DATA(c), &info, sizeof(info));
	probe_want("our own source", sendmsg(fd, &h, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recv", recv(fd, buf, 8, MSG_DONTWAIT), 0);
}

/* Errors with their origin, from the error queue. */
static void udpmsg_error_queue(int family)
{
	char control[512], buf[32];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	int fd = probe_socket(family, SOCK_DGRAM), one = 1;
	struct probe_addr a = probe_peer(family, env.closed), off;
	struct sock_extended_err *e;

	probe_want("IP_RECVERR", setsockopt(fd, IPPROTO_IP, IP_RECVERR, &one, sizeof(one)), 0);
	probe_want("sendto", sendto(fd, "lost", 4, 0, &a.sa, a.len), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recvmsg", recvmsg(fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT), 0);
	if (!CMSG_FIRSTHDR(&h))
		return;
	e = (struct sock_extended_err *)CMSG_DATA(CMSG_FIRSTHDR(&h));
	probe_line("error", "%s origin %d type %d code %d", probe_errno(e->ee_errno), e->ee_origin,
		   e->ee_type, e->ee_code);
	memset(&off, 0, sizeof(off));
	memcpy(&off.in, SO_EE_OFFENDER(e), sizeof(off.in));
	off.len = sizeof(off.in);
	probe_name("offender", &off);
}

static void udpmsg_sizes(int family)
{
	static char big[70000];
	int fd = probe_socket(family, SOCK_DGRAM);
	char buf[16] = "";

	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_want("empty", send(fd, "", 0, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recv empty", recv(fd, buf, sizeof(buf), MSG_DONTWAIT), 0);
	probe_want("too big", send(fd, big, sizeof(big), 0), EMSGSIZE);
	probe_want("fragmented", send(fd, big, 5000, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recv cut", recv(fd, buf, 4, MSG_PEEK | MSG_DONTWAIT), 0);
	probe_want("recv, true length", recv(fd, buf, 4, MSG_TRUNC | MSG_DONTWAIT), 0);
	probe_want("write", write(fd, "write", 5), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("read", read(fd, buf, sizeof(buf)), 0);
	probe_line("text", "%.5s", buf);
	probe_want("shutdown", shutdown(fd, SHUT_WR), 0);
	probe_want("send after", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* One write, several datagrams: UDP segmentation. */
static void udpmsg_segment(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), size = 4, n = 0;
	char buf[16];

	probe_want("UDP_SEGMENT", setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof(size)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_want("send", send(fd, "onceupontime", 12, 0), 0);
	while (n < 3 && probe_poll(fd, POLLIN, PROBE_PATIENCE) &&
	       recv(fd, buf, sizeof(buf), MSG_DONTWAIT) == 4)
		n++;
	probe_line("datagrams", "%d", n);
}

const struct probe_case udpmsg_cases[] = {
	{"udpmsg-batch-v4", udpmsg_batch, AF_INET, 0},
	{"udpmsg-batch-v6", udpmsg_batch, AF_INET6, 0},
	{"udpmsg-batch-fails", udpmsg_batch_fails, AF_INET, 0},
	{"udpmsg-pktinfo-v4", udpmsg_pktinfo, AF_INET, 0},
	{"udpmsg-pktinfo-v6", udpmsg_pktinfo, AF_INET6, 0},
	{"udpmsg-pktinfo-send", udpmsg_pktinfo_send, AF_INET, 0},
	{"udpmsg-error-queue", udpmsg_error_queue, AF_INET, 0},
	{"udpmsg-sizes", udpmsg_sizes, AF_INET, 0},
	{"udpmsg-segment", udpmsg_segment, AF_INET, 0},
	{0},
};
