/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The socket options that a host socket is refused: they would lead it around
 * the kernel programs, or around the host's own routing and firewall.
 *
 * The kernel programs refuse them to native callers. The kernel does not ask
 * them for callers of a 32-bit ABI (in_compat_syscall() in net/socket.c), which
 * the gate refuses. The numbers are of the uapi headers, which clash with one
 * another and with the C library's.
 */
#ifndef TSUGIKI_OPTIONS_H
#define TSUGIKI_OPTIONS_H

#include <stdbool.h>

/*
 * An option of SOL_IP that there is not. Where the programs are in force it is
 * EPERM, else the kernel knows it not: so a socket is proved to be made where
 * they are attached, though the keeper may have been moved to another cgroup.
 */
#define OPTIONS_PROOF 0x7473

/*
 * An option of SOL_IPV6 that there is not. Where IPv4 is translated, the programs make a new IPv6
 * socket of TCP a translated one by it (bpf/translated.h), and clear IPV6_V6ONLY. Anybody may set
 * it: which addresses a socket reaches, the rules say.
 */
#define OPTIONS_TRANSLATED 0x7474

/*
 * TCP_ULP. "smc" makes another socket, of the caller's own cgroup, of a host socket: its options
 * are set where the kernel programs do not see them. "espintcp" has the host's IPsec read what
 * arrives, as UDP_ENCAP does. The programs let "tls" pass.
 */
#define OPTIONS_ULP 31

static inline __attribute__((always_inline)) bool options_refused_socket(int name)
{
	return name == 25 /* SO_BINDTODEVICE */ || name == 36 /* SO_MARK */ ||
	       name == 62 /* SO_BINDTOIFINDEX */;
}

static inline __attribute__((always_inline)) bool options_refused_ip(int name)
{
	switch (name) {
	case 4:	 /* IP_OPTIONS: source routes */
	case 16: /* IP_IPSEC_POLICY */
	case 17: /* IP_XFRM_POLICY */
	case 19: /* IP_TRANSPARENT */
	case 32: /* IP_MULTICAST_IF */
	case 35: /* IP_ADD_MEMBERSHIP */
	case 39: /* IP_ADD_SOURCE_MEMBERSHIP */
	case 41: /* IP_MSFILTER */
	case 42: /* MCAST_JOIN_GROUP */
	case 46: /* MCAST_JOIN_SOURCE_GROUP */
	case 48: /* MCAST_MSFILTER */
	case 50: /* IP_UNICAST_IF */
	case 51: /* IP_LOCAL_PORT_RANGE */
		return true;
	}
	return false;
}

static inline __attribute__((always_inline)) bool options_refused_ip6(int name)
{
	switch (name) {
	case 2:	 /* IPV6_2292PKTINFO */
	case 4:	 /* IPV6_2292DSTOPTS */
	case 5:	 /* IPV6_2292RTHDR */
	case 6:	 /* IPV6_2292PKTOPTIONS */
	case 17: /* IPV6_MULTICAST_IF */
	case 20: /* IPV6_ADD_MEMBERSHIP */
	case 27: /* IPV6_JOIN_ANYCAST */
	case 34: /* IPV6_IPSEC_POLICY */
	case 35: /* IPV6_XFRM_POLICY */
	case 42: /* MCAST_JOIN_GROUP */
	case 46: /* MCAST_JOIN_SOURCE_GROUP */
	case 48: /* MCAST_MSFILTER */
	case 50: /* IPV6_PKTINFO: a sticky source and interface */
	case 54: /* IPV6_HOPOPTS */
	case 55: /* IPV6_RTHDRDSTOPTS */
	case 57: /* IPV6_RTHDR */
	case 59: /* IPV6_DSTOPTS */
	case 75: /* IPV6_TRANSPARENT */
	case 76: /* IPV6_UNICAST_IF */
		return true;
	}
	return false;
}

static inline __attribute__((always_inline)) bool options_refused(int level, int name)
{
	switch (level) {
	case 1: /* SOL_SOCKET */
		return options_refused_socket(name);
	case 0: /* SOL_IP */
		return options_refused_ip(name);
	case 41: /* SOL_IPV6 */
		return options_refused_ip6(name);
	case 6: /* SOL_TCP */
		return name == 19 /* TCP_REPAIR */ || name == OPTIONS_ULP;
	case 17:		    /* SOL_UDP */
		return name == 100; /* UDP_ENCAP: other protocols would get the datagrams */
	}
	return false;
}

/*
 * SO_TIMESTAMPING, by the numbers of both sizes of time. The datagrams that it sends
 * back are those that went to the relay, with the source that is the relay's secret,
 * unless it sends back no data (SOF_TIMESTAMPING_OPT_TSONLY).
 */
static inline __attribute__((always_inline)) bool options_timestamping(int level, int name)
{
	return level == 1 && (name == 37 || name == 65);
}

#define OPTIONS_TIMESTAMPING_SENT    (1 << 0 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18)
#define OPTIONS_TIMESTAMPING_NO_DATA (1 << 11)

#endif
