// SPDX-License-Identifier: Apache-2.0
/* socket(2) itself: which kinds of sockets there are. AF_IPX, 4, is left out:
 * its number is that of AF_GRAFT. */
#include "probe.h"

static void kinds_try(int domain, int type, int protocol)
{
	char step[64];
	int fd = socket(domain, type, protocol);

	snprintf(step, sizeof(step), "socket %d %d %d", domain, type, protocol);
	if (fd < 0)
		probe_rc(step, fd);
	else
		probe_line(step, "fd");
	if (fd >= 0)
		close(fd);
}

static void kinds_matrix(int family)
{
	static const int types[] = {0, SOCK_STREAM, SOCK_DGRAM, SOCK_RDM, SOCK_SEQPACKET,
				    6, 11,	    -1,		0x100,	  SOCK_STREAM | 0x100};
	static const int protocols[] = {-1,	      0,   IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP,
					IPPROTO_SCTP, 200, 256,		INT_MAX};

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (size_t p = 0; p < sizeof(protocols) / sizeof(protocols[0]); p++)
			kinds_try(family, types[t], protocols[p]);
}

/* Without privileges: those that root has depend on the container. */
static void kinds_raw(int family)
{
	static const int protocols[] = {-1, 0, IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_RAW, 256};

	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		probe_die("setresuid");
	for (size_t p = 0; p < sizeof(protocols) / sizeof(protocols[0]); p++)
		kinds_try(family, SOCK_RAW, protocols[p]);
}

static void kinds_domains(int family)
{
	static const int domains[] = {-1, 0, 3, 5, 9, 46, 255, 65536, INT_MAX};

	(void)family;
	for (size_t i = 0; i < sizeof(domains) / sizeof(domains[0]); i++) {
		kinds_try(domains[i], SOCK_STREAM, 0);
		kinds_try(domains[i], SOCK_DGRAM, 0);
	}
}

/* Flags beside the type; they are the descriptor's from the first. */
static void kinds_flags(int family)
{
	static const int flags[] = {0, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_CLOEXEC | SOCK_NONBLOCK};
	static const int types[] = {SOCK_STREAM, SOCK_DGRAM};

	for (int t = 0; t < 2; t++) {
		for (int i = 0; i < 4; i++) {
			int fd = probe_socket(family, types[t] | flags[i]);

			probe_line("flags", "%d %d", fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
		}
	}
}

static void kinds_socketpair(int family)
{
	int pair[2];

	probe_want("socketpair", socketpair(family, SOCK_STREAM, 0, pair), EOPNOTSUPP);
	probe_want("socketpair unix", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	probe_serve("talk", pair[0], pair[1], "pair");
}

const struct probe_case kinds_cases[] = {
	{"kinds-matrix-v4", kinds_matrix, AF_INET, 0},
	{"kinds-matrix-v6", kinds_matrix, AF_INET6, 0},
	{"kinds-raw-v4", kinds_raw, AF_INET, 0},
	{"kinds-raw-v6", kinds_raw, AF_INET6, 0},
	{"kinds-domains", kinds_domains, 0, 0},
	{"kinds-flags", kinds_flags, AF_INET, 0},
	{"kinds-socketpair", kinds_socketpair, AF_INET, 0},
	{0},
};
