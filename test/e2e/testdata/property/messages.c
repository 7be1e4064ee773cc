// SPDX-License-Identifier: Apache-2.0
/* Messages with control data. */
#include "driver.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <time.h>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

/* Room for the control data of one message. */
union message_control {
	char space[512];
	struct cmsghdr align;
};

static void message_add(struct msghdr *msg, int level, int type, const void *value, size_t size)
{
	struct cmsghdr *c =
		(struct cmsghdr *)((char *)msg->msg_control + CMSG_ALIGN(msg->msg_controllen));

	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), value, size);
	msg->msg_controllen = CMSG_ALIGN(msg->msg_controllen) + CMSG_SPACE(size);
}

static void message_int(struct msghdr *msg, int level, int type, int value)
{
	message_add(msg, level, type, &value, sizeof(value));
}

/* An address of the world of a family, or none. */
static bool message_addr(struct actor *a, const struct list *l, int family, void *addr)
{
	return inet_pton(family, driver_of(a, l), addr) == 1;
}

/* An interface and a source for this datagram. */
static void message_info(struct actor *a, struct msghdr *msg)
{
	int link = driver_pick(a, 2) ? atoi(driver_of(a, &world_links)) : 0;
	bool source = driver_pick(a, 2);
	struct in_pktinfo in4 = {.ipi_ifindex = link};
	struct in6_pktinfo in6 = {.ipi6_ifindex = (uint32_t)link};

	if (source)
		message_addr(a, &world_at, AF_INET, &in4.ipi_spec_dst);
	if (source)
		message_addr(a, driver_pick(a, 3) ? &world_at : &world_to, AF_INET6,
			     &in6.ipi6_addr);
	if (driver_pick(a, 2))
		message_add(msg, IPPROTO_IP, IP_PKTINFO, &in4, sizeof(in4));
	else
		message_add(msg, IPPROTO_IPV6, IPV6_PKTINFO, &in6, sizeof(in6));
}

/* A route by way of another address. */
static void message_route(struct actor *a, struct msghdr *msg)
{
	/* IPOPT_NOOP, a loose source route of one address, its first place. */
	unsigned char options[8] = {1, driver_pick(a, 2) ? 131 : 137, 7, 4};
	struct {
		unsigned char next, length, type, left, reserved[4];
		struct in6_addr by;
	} route = {.length = 2, .type = (unsigned char)driver_pick(a, 5), .left = 1};

	message_addr(a, &world_to, AF_INET, options + 4);
	message_addr(a, &world_to, AF_INET6, &route.by);
	if (driver_pick(a, 2))
		message_add(msg, IPPROTO_IP, IP_RETOPTS, options, sizeof(options));
	else
		message_add(msg, IPPROTO_IPV6, IPV6_RTHDR, &route, sizeof(route));
}

static void message_control(struct actor *a, struct msghdr *msg)
{
	unsigned char padding[8] = {0, 0, 1, 4}; /* an extension header that says nothing */
	uint64_t when = 1;
	uint16_t segment = 8;

	switch (driver_pick(a, 12)) {
	case 0:
	case 1:
	case 2:
		message_info(a, msg);
		break;
	case 3:
		message_route(a, msg);
		break;
	case 4:
		message_int(msg, SOL_SOCKET, SO_MARK, 77);
		break;
	case 5:
		message_int(msg, SOL_SOCKET, SO_PRIORITY, (int)driver_pick(a, 16));
		break;
	case 6:
		message_int(msg, IPPROTO_IP, driver_pick(a, 2) ? IP_TTL : IP_TOS,
			    (int)driver_pick(a, 256));
		break;
	case 7:
		message_int(msg, IPPROTO_IPV6, driver_pick(a, 2) ? IPV6_HOPLIMIT : IPV6_TCLASS,
			    (int)driver_pick(a, 256));
		break;
	case 8:
		message_add(msg, IPPROTO_IPV6, driver_pick(a, 2) ? IPV6_HOPOPTS : IPV6_DSTOPTS,
			    padding, sizeof(padding));
		break;
	case 9:
		message_add(msg, SOL_SOCKET, SO_TXTIME, &when, sizeof(when));
		break;
	case 10:
		message_add(msg, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment));
		break;
	default:
		message_int(msg, (int)driver_pick(a, 60), (int)driver_pick(a, 80),
			    (int)driver_pick(a, 4));
	}
}

/* A message of one actor, with what its pointers lead to. */
struct message {
	struct driver_addr to;
	char text[PAYLOAD_MAX];
	struct iovec iov;
	union message_control control;
};

static void message_make(struct actor *a, struct message *m, struct msghdr *msg)
{
	memset(m, 0, sizeof(*m));
	memset(msg, 0, sizeof(*msg));
	m->to = driver_destination(a);
	m->iov = (struct iovec){m->text, (size_t)driver_payload(a, m->text)};
	msg->msg_iov = &m->iov;
	msg->msg_iovlen = 1;
	msg->msg_control = m->control.space;
	if (driver_pick(a, 6) != 0) {
		msg->msg_name = &m->to;
		msg->msg_namelen = m->to.len;
	}
	for (uint32_t i = driver_pick(a, 4); i > 0; i--)
		message_control(a, msg);
}

static const char *message_text(const struct msghdr *msg, const struct message *m)
{
	return msg->msg_name != NULL ? driver_text(&m->to) : "its peer";
}

/* The types of the control messages. */
static const char *message_types(const struct msghdr *msg, char *text, size_t size)
{
	size_t used = 0;

	text[0] = '\0';
	for (size_t at = 0; at + sizeof(struct cmsghdr) <= msg->msg_controllen && used < size;) {
		const struct cmsghdr *c = (const void *)((char *)msg->msg_control + at);

		used += (size_t)snprintf(text + used, size - used, " %d/%d", c->cmsg_level,
					 c->cmsg_type);
		at += CMSG_ALIGN(c->cmsg_len);
	}
	return text;
}

void call_sendmsg(struct actor *a)
{
	int fd = driver_fd(a), flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	struct message m;
	struct msghdr msg;
	char types[80];

	if (driver_pick(a, 12) == 0)
		flags |= driver_pick(a, 2) ? MSG_FASTOPEN : MSG_MORE;
	message_make(a, &m, &msg);
	driver_say(a, sendmsg(fd, &msg, flags), "sendmsg slot=%d flags=%#x %s control%s", a->slot,
		   flags, message_text(&msg, &m), message_types(&msg, types, sizeof(types)));
}

void call_sendmmsg(struct actor *a)
{
	enum { COUNT = 3 };
	int fd = driver_fd(a), flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	struct message m[COUNT];
	struct mmsghdr msgs[COUNT];
	char types[80];

	if (driver_pick(a, 12) == 0)
		flags |= MSG_FASTOPEN;
	for (int i = 0; i < COUNT; i++) {
		message_make(a, &m[i], &msgs[i].msg_hdr);
		m[i].iov.iov_len = (size_t)sprintf(m[i].text + m[i].iov.iov_len - 1, ".%d;", i) +
				   m[i].iov.iov_len - 1;
	}
	driver_say(a, sendmmsg(fd, msgs, COUNT, flags),
		   "sendmmsg slot=%d flags=%#x first %s control%s", a->slot, flags,
		   message_text(&msgs[0].msg_hdr, &m[0]),
		   message_types(&msgs[0].msg_hdr, types, sizeof(types)));
}
