// SPDX-License-Identifier: Apache-2.0
/* Options that tell what a socket is, and calls that are wrong. */
#include "probe.h"

#include <linux/sockios.h>
#include <net/if.h>

static int optargs_int(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

static void optargs_kind_of(const char *step, int fd)
{
	probe_line(step, "type %d domain %d protocol %d accepts %d error %d",
		   optargs_int(fd, SOL_SOCKET, SO_TYPE), optargs_int(fd, SOL_SOCKET, SO_DOMAIN),
		   optargs_int(fd, SOL_SOCKET, SO_PROTOCOL),
		   optargs_int(fd, SOL_SOCKET, SO_ACCEPTCONN),
		   optargs_int(fd, SOL_SOCKET, SO_ERROR));
}

static void optargs_kind(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	optargs_kind_of("new", fd);
	probe_connect(fd, probe_peer(family, env.tcp));
	optargs_kind_of("connected", fd);
	fd = probe_socket(family, SOCK_STREAM);
	probe_bind(fd, probe_any(family, env.port));
	optargs_kind_of("bound", fd);
	listen(fd, 1);
	optargs_kind_of("listening", fd);
	probe_dial(family, env.port);
	optargs_kind_of("accepted", accept(fd, NULL, NULL));
	fd = probe_socket(family, SOCK_DGRAM);
	optargs_kind_of("datagram", fd);
	probe_connect(fd, probe_peer(family, env.udp));
	optargs_kind_of("datagram connected", fd);
}

static int optargs_state(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return -errno;
	return info.tcpi_state;
}

static void optargs_tcp_info(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), l, mtu;

	probe_line("new", "state %d", optargs_state(fd));
	probe_connect(fd, probe_peer(family, env.tcp));
	probe_line("connected", "state %d", optargs_state(fd));
	mtu = optargs_int(fd, IPPROTO_IP, IP_MTU);
	probe_line("IP_MTU", "%d", mtu);
	l = probe_socket(family, SOCK_STREAM);
	probe_bind(l, probe_any(family, env.port));
	probe_line("bound", "state %d", optargs_state(l));
	listen(l, 1);
	probe_line("listening", "state %d", optargs_state(l));
	fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	probe_connect(fd, probe_peer(family, env.hole));
	probe_line("pending", "state %d", optargs_state(fd));
	fd = probe_socket(family, SOCK_DGRAM);
	probe_line("datagram", "state %d %s", optargs_state(fd), probe_errno(-optargs_state(fd)));
}

static void optargs_lengths(int family)
{
	static const int lens[] = {-1, 0, 1, 2, 3, 4, 8};
	int fd = probe_socket(family, SOCK_STREAM);
	char buf[16];

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		socklen_t len = lens[i];
		char step[32];
		int rc;

		memset(buf, 0, sizeof(buf));
		buf[0] = 1;
		snprintf(step, sizeof(step), "set length %d", lens[i]);
		probe_rc(step, setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, buf, len));
		snprintf(step, sizeof(step), "get length %d", lens[i]);
		rc = getsockopt(fd, SOL_SOCKET, SO_TYPE, buf, &len);
		probe_rc(step, rc);
		probe_line(step, "%d", (int)len);
	}
}

static void optargs_wrong(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), value = 1;
	socklen_t len = sizeof(value);

	probe_want("unknown level", setsockopt(fd, 250, 1, &value, sizeof(value)), ENOPROTOOPT);
	probe_want("unknown option", setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof(value)),
		   ENOPROTOOPT);
	probe_want("get unknown level", getsockopt(fd, 250, 1, &value, &len), EOPNOTSUPP);
	probe_want("get unknown option", getsockopt(fd, SOL_SOCKET, 9999, &value, &len),
		   ENOPROTOOPT);
	probe_want("read-only", setsockopt(fd, SOL_SOCKET, SO_TYPE, &value, sizeof(value)),
		   ENOPROTOOPT);
	probe_want("unmapped value", setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, (void *)8, 4),
		   EFAULT);
	probe_want("get unmapped value", getsockopt(fd, SOL_SOCKET, SO_TYPE, (void *)8, &len),
		   EFAULT);
	probe_want("get unmapped length", getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, (void *)8),
		   EFAULT);
	probe_want("no such congestion control",
		   setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "none", 4), ENOENT);
	value = 0;
	probe_want("keepalive of zero",
		   setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof(value)), EINVAL);
	value = 256;
	probe_want("TTL out of range", setsockopt(fd, IPPROTO_IP, IP_TTL, &value, sizeof(value)),
		   EINVAL);
	value = 1;
	probe_want("v6 option on v4",
		   setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof(value)), ENOPROTOOPT);
	fd = probe_socket(family, SOCK_DGRAM);
	probe_want("TCP option on UDP",
		   setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value)), ENOPROTOOPT);
}

/* What needs privileges says so to those who have none. */
static void optargs_privileged(int family)
{
	int fd, value = 7;

	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		probe_die("setresuid");
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("SO_PRIORITY 7", setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value)),
		   EPERM);
	probe_want("SO_MARK", setsockopt(fd, SOL_SOCKET, SO_MARK, &value, sizeof(value)), EPERM);
	probe_want("SO_SNDBUFFORCE",
		   setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &value, sizeof(value)), EPERM);
	value = 6;
	probe_want("SO_PRIORITY 6", setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof(value)),
		   0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_line("SO_PRIORITY", "%d", optargs_int(fd, SOL_SOCKET, SO_PRIORITY));
	probe_echo("echo", fd, "as nobody");
}

/* ioctls on a socket before and after it is connected. */
static void optargs_ioctl(int family)
{
	int fd = probe_socket(family, SOCK_STREAM), n = -1;
	struct ifreq ifr = {.ifr_name = "lo"};

	probe_rc("SIOCOUTQ new", ioctl(fd, SIOCOUTQ, &n));
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_want("FIONREAD", ioctl(fd, FIONREAD, &n), 0);
	probe_line("to read", "%d", n);
	probe_want("write", write(fd, "seven..", 7), 0);
	while (ioctl(fd, FIONREAD, &n) == 0 && n != 7)
		probe_sleep(1);
	probe_line("to read", "%d", n);
	while (ioctl(fd, SIOCOUTQ, &n) == 0 && n != 0)
		probe_sleep(1);
	probe_line("not acknowledged", "%d", n);
	probe_want("SIOCOUTQNSD", ioctl(fd, SIOCOUTQNSD, &n), 0);
	probe_line("not sent", "%d", n);
	probe_want("SIOCATMARK", ioctl(fd, SIOCATMARK, &n), 0);
	probe_want("SIOCGIFINDEX", ioctl(fd, SIOCGIFINDEX, &ifr), 0);
	probe_line("loopback", "%d", ifr.ifr_ifindex);
	probe_want("unknown", ioctl(fd, 0x5eee, &n), ENOTTY);
}

const struct probe_case optargs_cases[] = {
	{"optargs-kind-v4", optargs_kind, AF_INET, 1},
	{"optargs-kind-v6", optargs_kind, AF_INET6, 1},
	{"optargs-tcp-info", optargs_tcp_info, AF_INET, 1},
	{"optargs-lengths", optargs_lengths, AF_INET, 0},
	{"optargs-wrong", optargs_wrong, AF_INET, 0},
	{"optargs-privileged", optargs_privileged, AF_INET, 0},
	{"optargs-ioctl", optargs_ioctl, AF_INET, 0},
	{0},
};
