// SPDX-License-Identifier: Apache-2.0
/* Socket options and ioctls by which a socket could get around the rules. */
#include "attack.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <sys/ioctl.h>

struct option {
	const char *name;
	int family, type, level, number;
	const void *value;
	socklen_t size;
};

static const int option_one = 1;
static const struct ip_mreqn option_group = {.imr_multiaddr = {0x0101a8ef}, .imr_ifindex = 1};
static const struct ip_mreq_source option_source = {.imr_multiaddr = {0x0101a8ef},
						    .imr_sourceaddr = {0x026433c6}};
static const struct in6_pktinfo option_pktinfo = {.ipi6_ifindex = 1};
static struct ipv6_mreq option_group6;
static struct group_req option_request = {.gr_interface = 1};
static const unsigned char option_route[8] = {131, 7, 4, 198, 51, 100, 3, 0};
static const unsigned char option_header[24] = {0, 2, 2, 1};

/* Not one macro by way of another: that would put the numbers in the names. */
#define OPTION(f, t, l, n, v)                                                                      \
	{                                                                                          \
#n, f, t, l, n, &(v), sizeof(v)                                                    \
	}
#define IN4(n, v)                                                                                  \
	{                                                                                          \
#n, AF_INET, SOCK_DGRAM, IPPROTO_IP, n, &(v), sizeof(v)                            \
	}
#define IN6(n, v)                                                                                  \
	{                                                                                          \
#n, AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, n, &(v), sizeof(v)                         \
	}

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef IPV6_TRANSPARENT
#define IPV6_TRANSPARENT 75
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static const struct option options[] = {
	OPTION(AF_INET, SOCK_STREAM, SOL_SOCKET, SO_MARK, option_one),
	{"SO_BINDTODEVICE", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3},
	OPTION(AF_INET, SOCK_STREAM, SOL_SOCKET, SO_BINDTOIFINDEX, option_one),
	OPTION(AF_INET, SOCK_STREAM, IPPROTO_IP, IP_TRANSPARENT, option_one),
	OPTION(AF_INET, SOCK_STREAM, IPPROTO_IP, IP_OPTIONS, option_route),
	OPTION(AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_REPAIR, option_one),
	IN4(IP_MULTICAST_IF, option_group),
	IN4(IP_ADD_MEMBERSHIP, option_group),
	IN4(IP_ADD_SOURCE_MEMBERSHIP, option_source),
	IN4(MCAST_JOIN_GROUP, option_request),
	IN4(IP_UNICAST_IF, option_one),
	IN6(IPV6_MULTICAST_IF, option_one),
	IN6(IPV6_ADD_MEMBERSHIP, option_group6),
	IN6(IPV6_JOIN_ANYCAST, option_group6),
	IN6(MCAST_JOIN_GROUP, option_request),
	IN6(IPV6_PKTINFO, option_pktinfo),
	IN6(IPV6_2292PKTINFO, option_pktinfo),
	IN6(IPV6_RTHDR, option_header),
	IN6(IPV6_HOPOPTS, option_header),
	IN6(IPV6_DSTOPTS, option_header),
	IN6(IPV6_RTHDRDSTOPTS, option_header),
	IN6(IPV6_TRANSPARENT, option_one),
	IN6(IPV6_UNICAST_IF, option_one),
	/* An IPv6 socket takes IPv4's too. */
	OPTION(AF_INET6, SOCK_DGRAM, IPPROTO_IP, IP_TRANSPARENT, option_one),
	OPTION(AF_INET6, SOCK_DGRAM, IPPROTO_IP, IP_ADD_MEMBERSHIP, option_group),
	/* Harmless ones pass. */
	OPTION(AF_INET, SOCK_STREAM, SOL_SOCKET, SO_KEEPALIVE, option_one),
	OPTION(AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_NODELAY, option_one),
	OPTION(AF_INET, SOCK_STREAM, IPPROTO_IP, IP_FREEBIND, option_one),
	IN6(IPV6_V6ONLY, option_one),
};

static long options_by_i386(int fd, const struct option *o)
{
	memcpy(attack_low(), o->value, o->size);
	return attack_i386(366, fd, o->level, o->number, (long)attack_low(), o->size);
}

static int options_set(int argc, char **argv)
{
	(void)argc, (void)argv;
	inet_pton(AF_INET6, "ff15::1", &option_group6.ipv6mr_multiaddr);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		const struct option *o = &options[i];
		int fd = attack_socket(o->family, o->type);
		struct sockaddr_in6 group = {.sin6_family = (sa_family_t)(o->family)};
		char step[80];

		if (o->family == AF_INET)
			((struct sockaddr_in *)&group)->sin_addr = option_group.imr_multiaddr;
		else
			group.sin6_addr = option_group6.ipv6mr_multiaddr;
		memcpy(&option_request.gr_group, &group, sizeof(group));
		snprintf(step, sizeof(step), "%s%s", o->family == AF_INET6 ? "6 " : "", o->name);
		attack_say(step, setsockopt(fd, o->level, o->number, o->value, o->size));
		snprintf(step, sizeof(step), "i386 %s%s", o->family == AF_INET6 ? "6 " : "",
			 o->name);
		attack_say(step, options_by_i386(fd, o));
		close(fd);
	}
	return 0;
}

/* "ioctls INTERFACE": tries to configure the host through its socket. */
static int options_ioctls(int argc, char **argv)
{
	static const struct {
		const char *name;
		unsigned long request;
	} requests[] = {
		{"SIOCSIFADDR", SIOCSIFADDR},	  {"SIOCSIFFLAGS", SIOCSIFFLAGS},
		{"SIOCSIFMTU", SIOCSIFMTU},	  {"SIOCSIFNAME", SIOCSIFNAME},
		{"SIOCSIFHWADDR", SIOCSIFHWADDR}, {"SIOCSIFNETMASK", SIOCSIFNETMASK},
		{"SIOCADDMULTI", SIOCADDMULTI},
	};
	int fd = attack_socket(AF_INET, SOCK_DGRAM);
	struct rtentry route = {0};
	struct arpreq arp = {0};

	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct ifreq r = {.ifr_addr.sa_family = AF_INET};

		strncpy(r.ifr_name, argv[argc - 1], IFNAMSIZ - 1);
		attack_say(requests[i].name, ioctl(fd, requests[i].request, &r));
	}
	route.rt_dst.sa_family = AF_INET;
	attack_say("SIOCADDRT", ioctl(fd, SIOCADDRT, &route));
	attack_say("SIOCDELRT", ioctl(fd, SIOCDELRT, &route));
	arp.arp_pa.sa_family = AF_INET;
	attack_say("SIOCSARP", ioctl(fd, SIOCSARP, &arp));
	attack_say("SIOCGSKNS", ioctl(fd, SIOCGSKNS));
	return 0;
}

const struct attack_case options_cases[] = {
	{"options", options_set},
	{"ioctls", options_ioctls},
	{0},
};
