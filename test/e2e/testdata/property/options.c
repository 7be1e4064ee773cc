// SPDX-License-Identifier: Apache-2.0
/* Options of all levels that a program may try. */
#include "driver.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>

/* What an option's value is. */
enum value { FLAG, SMALL, LINK, LINK_NAME, GROUP4, GROUP6, INFO6, ROUTE4, ROUTE6, FAMILY };

static const struct option {
	int level, name;
	enum value value;
	uint32_t weight;
} options[] = {
	{SOL_SOCKET, SO_REUSEADDR, FLAG, 8},
	{SOL_SOCKET, SO_REUSEPORT, FLAG, 6},
	{SOL_SOCKET, SO_BROADCAST, FLAG, 3},
	{SOL_SOCKET, SO_DONTROUTE, FLAG, 2},
	{SOL_SOCKET, SO_MARK, SMALL, 2},
	{SOL_SOCKET, SO_PRIORITY, SMALL, 2},
	{SOL_SOCKET, SO_BINDTODEVICE, LINK_NAME, 2},
	{SOL_SOCKET, 62 /* SO_BINDTOIFINDEX */, LINK, 2},
	{SOL_SOCKET, SO_KEEPALIVE, FLAG, 1},
	{SOL_SOCKET, 60 /* SO_ZEROCOPY */, FLAG, 1},
	{IPPROTO_IP, IP_OPTIONS, ROUTE4, 2},
	{IPPROTO_IP, IP_HDRINCL, FLAG, 1},
	{IPPROTO_IP, IP_TRANSPARENT, FLAG, 2},
	{IPPROTO_IP, IP_FREEBIND, FLAG, 3},
	{IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, FLAG, 1},
	{IPPROTO_IP, 50 /* IP_UNICAST_IF */, LINK, 2},
	{IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, SMALL, 1},
	{IPPROTO_IP, IP_MULTICAST_IF, LINK, 2},
	{IPPROTO_IP, IP_ADD_MEMBERSHIP, GROUP4, 2},
	{IPPROTO_IP, IP_MULTICAST_ALL, FLAG, 1},
	{IPPROTO_IP, IP_RECVERR, FLAG, 1},
	{IPPROTO_IP, IP_TOS, SMALL, 1},
	{IPPROTO_IPV6, IPV6_V6ONLY, FLAG, 6},
	{IPPROTO_IPV6, 78 /* IPV6_FREEBIND */, FLAG, 3},
	{IPPROTO_IPV6, IPV6_TRANSPARENT, FLAG, 1},
	{IPPROTO_IPV6, IPV6_PKTINFO, INFO6, 2},
	{IPPROTO_IPV6, IPV6_RTHDR, ROUTE6, 2},
	{IPPROTO_IPV6, IPV6_UNICAST_IF, LINK, 2},
	{IPPROTO_IPV6, IPV6_MULTICAST_IF, LINK, 2},
	{IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, GROUP6, 2},
	{IPPROTO_IPV6, IPV6_ADDRFORM, FAMILY, 3},
	{IPPROTO_TCP, TCP_FASTOPEN, SMALL, 2},
	{IPPROTO_TCP, 30 /* TCP_FASTOPEN_CONNECT */, FLAG, 2},
	{IPPROTO_TCP, TCP_REPAIR, FLAG, 2},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT, SMALL, 1},
	{IPPROTO_UDP, 1 /* UDP_CORK */, FLAG, 2},
	{IPPROTO_UDP, 100 /* UDP_ENCAP */, SMALL, 1},
	{IPPROTO_UDP, 103 /* UDP_SEGMENT */, SMALL, 1},
	{IPPROTO_UDP, 104 /* UDP_GRO */, FLAG, 1},
};

union value_room {
	int number;
	struct ip_mreqn group4;
	struct ipv6_mreq group6;
	struct in6_pktinfo info6;
	char text[64];
	unsigned char bytes[64];
};

/* Fills in a value and returns its length. */
static socklen_t option_value(struct actor *a, enum value kind, union value_room *v)
{
	int link = atoi(driver_of(a, &world_links));

	memset(v, 0, sizeof(*v));
	switch (kind) {
	case FLAG:
		v->number = (int)driver_pick(a, 2);
		return sizeof(int);
	case SMALL:
		v->number = (int)driver_pick(a, 20);
		return sizeof(int);
	case LINK:
		v->number = driver_pick(a, 2) ? link : (int)htonl((uint32_t)link);
		return sizeof(int);
	case LINK_NAME:
		return (socklen_t)snprintf(v->text, sizeof(v->text), "%s",
					   driver_pick(a, 2) ? "lo" : "srv");
	case GROUP4:
		v->group4.imr_multiaddr.s_addr = htonl(0xef010203);
		v->group4.imr_ifindex = link;
		return sizeof(v->group4);
	case GROUP6:
		inet_pton(AF_INET6, "ff15::7", &v->group6.ipv6mr_multiaddr);
		v->group6.ipv6mr_interface = (unsigned int)link;
		return sizeof(v->group6);
	case INFO6:
		inet_pton(AF_INET6, driver_of(a, &world_at), &v->info6.ipi6_addr);
		v->info6.ipi6_ifindex = (unsigned int)(driver_pick(a, 2) ? link : 0);
		return sizeof(v->info6);
	case ROUTE4:
		memcpy(v->bytes, "\1\203\7\4", 4);
		inet_pton(AF_INET, driver_of(a, &world_to), v->bytes + 4);
		return 8;
	case ROUTE6:
		v->bytes[1] = 2;
		v->bytes[2] = (unsigned char)driver_pick(a, 5);
		v->bytes[3] = 1;
		inet_pton(AF_INET6, driver_of(a, &world_to), v->bytes + 8);
		return 24;
	case FAMILY:
		v->number = AF_INET;
		return sizeof(int);
	}
	return 0;
}

static const struct option *option_pick(struct actor *a)
{
	uint32_t all = 0, at;
	const struct option *o = options;

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		all += options[i].weight;
	for (at = driver_pick(a, all); at >= o->weight; o++)
		at -= o->weight;
	return o;
}

void call_setsockopt(struct actor *a)
{
	const struct option *o = option_pick(a);
	int fd = driver_fd(a), level = o->level, name = o->name;
	union value_room v;
	socklen_t len = option_value(a, o->value, &v);

	if (driver_pick(a, 6) == 0) {
		static const int levels[] = {0, 1, 6, 17, 41, 132, 136, 254, 284};

		level = levels[driver_pick(a, 9)];
		name = (int)driver_pick(a, 120);
	}
	driver_say(a, setsockopt(fd, level, name, &v, len), "setsockopt slot=%d %d/%d value=%d",
		   a->slot, level, name, v.number);
}

void call_getsockopt(struct actor *a)
{
	const struct option *o = option_pick(a);
	int fd = driver_fd(a);
	char value[256];
	socklen_t len = driver_pick(a, sizeof(value));

	driver_say(a, getsockopt(fd, o->level, o->name, value, &len), "getsockopt slot=%d %d/%d",
		   a->slot, o->level, o->name);
}
