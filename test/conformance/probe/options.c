// SPDX-License-Identifier: Apache-2.0
/* Socket options: what is set before a socket is used stays set. */
#include "probe.h"

#include <linux/filter.h>
#include <netinet/udp.h>
#include <sys/time.h>

struct option {
	int level, name;
	const char *label;
	int value;
};

static const struct option tcp_options[] = {
	{SOL_SOCKET, SO_KEEPALIVE, "SO_KEEPALIVE", 1},
	{SOL_SOCKET, SO_REUSEADDR, "SO_REUSEADDR", 5},
	{SOL_SOCKET, SO_SNDBUF, "SO_SNDBUF", 50000},
	{SOL_SOCKET, SO_RCVBUF, "SO_RCVBUF", 60000},
	{SOL_SOCKET, SO_PRIORITY, "SO_PRIORITY", 4},
	{SOL_SOCKET, SO_RCVLOWAT, "SO_RCVLOWAT", 3},
	{SOL_SOCKET, SO_OOBINLINE, "SO_OOBINLINE", 1},
	{SOL_SOCKET, SO_DONTROUTE, "SO_DONTROUTE", 0},
	{IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY", 1},
	{IPPROTO_TCP, TCP_KEEPIDLE, "TCP_KEEPIDLE", 77},
	{IPPROTO_TCP, TCP_KEEPINTVL, "TCP_KEEPINTVL", 13},
	{IPPROTO_TCP, TCP_KEEPCNT, "TCP_KEEPCNT", 4},
	{IPPROTO_TCP, TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", 12345},
	{IPPROTO_TCP, TCP_SYNCNT, "TCP_SYNCNT", 4},
	{IPPROTO_TCP, TCP_LINGER2, "TCP_LINGER2", 9},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT", 5},
	{IPPROTO_TCP, TCP_WINDOW_CLAMP, "TCP_WINDOW_CLAMP", 30000},
	{IPPROTO_TCP, TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", 16384},
	{IPPROTO_TCP, TCP_MAXSEG, "TCP_MAXSEG", 1000},
};

static const struct option v4_options[] = {
	{IPPROTO_IP, IP_TOS, "IP_TOS", 0x28},
	{IPPROTO_IP, IP_TTL, "IP_TTL", 33},
	{IPPROTO_IP, IP_MTU_DISCOVER, "IP_MTU_DISCOVER", IP_PMTUDISC_DO},
	{IPPROTO_IP, IP_RECVERR, "IP_RECVERR", 1},
	{IPPROTO_IP, IP_RECVTOS, "IP_RECVTOS", 1},
	{IPPROTO_IP, IP_RECVTTL, "IP_RECVTTL", 1},
	{IPPROTO_IP, IP_PKTINFO, "IP_PKTINFO", 1},
	{IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, "IP_BIND_ADDRESS_NO_PORT", 1},
};

static const struct option v6_options[] = {
	{IPPROTO_IPV6, IPV6_V6ONLY, "IPV6_V6ONLY", 1},
	{IPPROTO_IPV6, IPV6_UNICAST_HOPS, "IPV6_UNICAST_HOPS", 22},
	{IPPROTO_IPV6, IPV6_TCLASS, "IPV6_TCLASS", 0x20},
	{IPPROTO_IPV6, IPV6_MTU_DISCOVER, "IPV6_MTU_DISCOVER", IPV6_PMTUDISC_DO},
	{IPPROTO_IPV6, IPV6_RECVERR, "IPV6_RECVERR", 1},
	{IPPROTO_IPV6, IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO", 1},
	{IPPROTO_IPV6, IPV6_RECVTCLASS, "IPV6_RECVTCLASS", 1},
};

static const struct option udp_options[] = {
	{SOL_SOCKET, SO_BROADCAST, "SO_BROADCAST", 1},	{SOL_SOCKET, SO_RCVBUF, "SO_RCVBUF", 40000},
	{SOL_SOCKET, SO_SNDBUF, "SO_SNDBUF", 30000},	{SOL_SOCKET, SO_PRIORITY, "SO_PRIORITY", 3},
	{SOL_SOCKET, SO_TIMESTAMP, "SO_TIMESTAMP", 1},	{SOL_SOCKET, SO_RXQ_OVFL, "SO_RXQ_OVFL", 1},
	{IPPROTO_UDP, UDP_SEGMENT, "UDP_SEGMENT", 600}, {IPPROTO_UDP, UDP_GRO, "UDP_GRO", 1},
};

static const struct option v4_udp_options[] = {
	{IPPROTO_IP, IP_MULTICAST_TTL, "IP_MULTICAST_TTL", 7},
	{IPPROTO_IP, IP_MULTICAST_LOOP, "IP_MULTICAST_LOOP", 0},
	{IPPROTO_IP, IP_MULTICAST_ALL, "IP_MULTICAST_ALL", 0},
};

static const struct option v6_udp_options[] = {
	{IPPROTO_IPV6, IPV6_MULTICAST_HOPS, "IPV6_MULTICAST_HOPS", 3},
	{IPPROTO_IPV6, IPV6_MULTICAST_LOOP, "IPV6_MULTICAST_LOOP", 0},
	{IPPROTO_IPV6, IPV6_RECVHOPLIMIT, "IPV6_RECVHOPLIMIT", 1},
};

struct option_set {
	const struct option *options;
	size_t n;
};

#define SET(table) ((struct option_set){table, sizeof(table) / sizeof(*table)})

#define SETS 3

/* The options that a kind of socket has, in sets. Their order matters: IP_TOS
 * changes SO_PRIORITY. */
static struct option_set option_set(int family, int type, int which)
{
	bool v4 = family == AF_INET;

	if (which == 0)
		return type == SOCK_STREAM ? SET(tcp_options) : SET(udp_options);
	if (which == 1)
		return v4 ? SET(v4_options) : SET(v6_options);
	if (type == SOCK_STREAM)
		return (struct option_set){NULL, 0};
	return v4 ? SET(v4_udp_options) : SET(v6_udp_options);
}

static void options_set(int fd, int family, int type)
{
	for (int k = 0; k < SETS; k++) {
		struct option_set s = option_set(family, type, k);

		for (size_t i = 0; i < s.n; i++)
			probe_want(s.options[i].label,
				   setsockopt(fd, s.options[i].level, s.options[i].name,
					      &s.options[i].value, sizeof(int)),
				   0);
	}
}

/* The values of all options, whether they were set or not. */
static void options_show(const char *when, int fd, int family, int type)
{
	for (int k = 0; k < SETS; k++) {
		struct option_set s = option_set(family, type, k);

		for (size_t i = 0; i < s.n; i++) {
			int value = -1;
			socklen_t len = sizeof(value);
			int rc =
				getsockopt(fd, s.options[i].level, s.options[i].name, &value, &len);
			char step[64];

			snprintf(step, sizeof(step), "%s %s", when, s.options[i].label);
			if (rc)
				probe_rc(step, rc);
			else
				probe_line(step, "%d", value);
		}
	}
}

/* Options with values that are no numbers. */
static void options_set_more(int fd)
{
	struct linger linger = {1, 7};
	struct timeval rcv = {3, 500000}, snd = {4, 250000};

	probe_want("SO_LINGER", setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	probe_want("SO_RCVTIMEO", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &rcv, sizeof(rcv)), 0);
	probe_want("SO_SNDTIMEO", setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &snd, sizeof(snd)), 0);
	probe_want("TCP_CONGESTION", setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
}

static void options_show_more(const char *when, int fd)
{
	struct linger linger = {0};
	struct timeval rcv = {0}, snd = {0};
	char congestion[16] = "";
	socklen_t len = sizeof(linger);

	getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len);
	len = sizeof(rcv);
	getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &rcv, &len);
	len = sizeof(snd);
	getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &snd, &len);
	len = sizeof(congestion);
	getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &len);
	probe_line(when, "linger %d/%d rcvtimeo %ld.%06ld sndtimeo %ld.%06ld %s", linger.l_onoff,
		   linger.l_linger, (long)rcv.tv_sec, (long)rcv.tv_usec, (long)snd.tv_sec,
		   (long)snd.tv_usec, congestion);
}

static void options_default(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	options_show("tcp", fd, family, SOCK_STREAM);
	options_show_more("tcp", fd);
	fd = probe_socket(family, SOCK_DGRAM);
	options_show("udp", fd, family, SOCK_DGRAM);
}

static void options_connect(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	options_set(fd, family, SOCK_STREAM);
	options_set_more(fd);
	options_show("before", fd, family, SOCK_STREAM);
	options_show_more("before", fd);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	options_show("after", fd, family, SOCK_STREAM);
	options_show_more("after", fd);
	probe_echo("echo", fd, "with options");
}

/* The same socket, but it turns out to be for the loopback. */
static void options_loopback(int family)
{
	int l = probe_listener(probe_loopback(family, 0));
	int fd = probe_socket(family, SOCK_STREAM), conn;

	options_set(fd, family, SOCK_STREAM);
	options_set_more(fd);
	probe_want("connect", probe_connect(fd, probe_local(l)), 0);
	options_show("after", fd, family, SOCK_STREAM);
	options_show_more("after", fd);
	conn = probe_accept("accept", l, NULL);
	probe_serve("talk", fd, conn, "with options");
}

/* What is set on a listener its connections inherit. */
static void options_listen(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), conn, off = 0;

	options_set(fd, family, SOCK_STREAM);
	options_set_more(fd);
	setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &off, sizeof(off));
	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	options_show("bound", fd, family, SOCK_STREAM);
	options_show_more("bound", fd);
	probe_want("listen", listen(fd, 4), 0);
	probe_line("dial", "%s", probe_dial(family, env.port));
	conn = probe_accept("accept", fd, NULL);
	options_show("accepted", conn, family, SOCK_STREAM);
	options_show_more("accepted", conn);
	probe_echo("talk", conn, "inherited");
}

static void options_bind_loopback(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	options_set(fd, family, SOCK_STREAM);
	options_set_more(fd);
	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	probe_want("listen", listen(fd, 4), 0);
	options_show("listening", fd, family, SOCK_STREAM);
	options_show_more("listening", fd);
}

static void options_udp(int family)
{
	struct probe_addr a = probe_peer(family, env.udp);
	int fd = probe_socket(family, SOCK_DGRAM), u;

	options_set(fd, family, SOCK_DGRAM);
	probe_want("connect", probe_connect(fd, a), 0);
	options_show("connected", fd, family, SOCK_DGRAM);
	probe_echo("echo", fd, "with options");
	u = probe_socket(family, SOCK_DGRAM);
	options_set(u, family, SOCK_DGRAM);
	probe_want("sendto", sendto(u, "x", 1, 0, &a.sa, a.len), 0);
	options_show("sent", u, family, SOCK_DGRAM);
}

static void options_udp_loopback(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM);
	int u = probe_socket(family, SOCK_DGRAM);

	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	options_set(u, family, SOCK_DGRAM);
	probe_want("connect to loopback", probe_connect(u, probe_local(fd)), 0);
	options_show("loopback", u, family, SOCK_DGRAM);
	probe_serve("talk", u, fd, "with options");
}

/* Options of a socket in use. */
static void options_later(int family)
{
	int fd = probe_echo_client(family);

	options_set_more(fd);
	options_show_more("set", fd);
	for (int i = 0; i < 12; i++) {
		if (i == 1 || i == 6)
			continue; /* SO_REUSEADDR, SO_OOBINLINE: no effect now
				   */
		probe_want(tcp_options[i].label,
			   setsockopt(fd, tcp_options[i].level, tcp_options[i].name,
				      &tcp_options[i].value, sizeof(int)),
			   0);
	}
	options_show("set", fd, family, SOCK_STREAM);
	probe_echo("echo", fd, "later");
}

/* Two bytes of every datagram, says a filter set before the first one. */
static void options_filter(int family)
{
	struct sock_filter two[] = {{BPF_RET | BPF_K, 0, 0, 8 + 2}};
	struct sock_fprog prog = {1, two};
	int fd = probe_socket(family, SOCK_DGRAM);
	char buf[16];

	probe_want("attach", setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_want("send", send(fd, "filtered", 8, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("recv", recv(fd, buf, sizeof(buf), MSG_DONTWAIT), 0);
}

const struct probe_case options_cases[] = {
	{"options-default-v4", options_default, AF_INET, 0},
	{"options-default-v6", options_default, AF_INET6, 0},
	{"options-connect-v4", options_connect, AF_INET, 0},
	{"options-connect-v6", options_connect, AF_INET6, 0},
	{"options-loopback-v4", options_loopback, AF_INET, 0},
	{"options-loopback-v6", options_loopback, AF_INET6, 0},
	{"options-listen-v4", options_listen, AF_INET, 1},
	{"options-listen-v6", options_listen, AF_INET6, 1},
	{"options-bind-loopback", options_bind_loopback, AF_INET, 0},
	{"options-udp-v4", options_udp, AF_INET, 0},
	{"options-udp-v6", options_udp, AF_INET6, 0},
	{"options-udp-loopback-v4", options_udp_loopback, AF_INET, 0},
	{"options-udp-loopback-v6", options_udp_loopback, AF_INET6, 0},
	{"options-later", options_later, AF_INET, 0},
	{"options-filter", options_filter, AF_INET, 0},
	{0},
};
