// SPDX-License-Identifier: Apache-2.0
/* Descriptors that are no Internet sockets: every call answers as if nobody
 * stood between the program and the kernel. */
#include "probe.h"

#include <linux/netlink.h>
#include <sys/epoll.h>
#include <sys/un.h>

static void badfd_say(const char *call, const char *what, long rc)
{
	char step[64];
	int err = errno;

	snprintf(step, sizeof(step), "%s of %s", call, what);
	errno = err;
	probe_rc(step, rc);
}

static void badfd_calls(const char *what, int fd)
{
	struct probe_addr to = probe_peer(AF_INET, env.udp);
	struct probe_addr a = {.len = sizeof(a.ss)};
	struct iovec iov = {"x", 1};
	struct msghdr h = {
		.msg_name = &to.ss, .msg_namelen = to.len, .msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr mm = {.msg_hdr = h};
	int value = 1;
	socklen_t len = sizeof(value);

	badfd_say("connect", what, probe_connect(fd, to));
	badfd_say("bind", what, probe_bind(fd, probe_any(AF_INET, 0)));
	badfd_say("listen", what, listen(fd, 1));
	badfd_say("accept", what, accept4(fd, NULL, NULL, SOCK_NONBLOCK));
	badfd_say("sendto", what, sendto(fd, "x", 1, MSG_NOSIGNAL, &to.sa, to.len));
	badfd_say("sendmsg", what, sendmsg(fd, &h, MSG_NOSIGNAL));
	badfd_say("sendmmsg", what, sendmmsg(fd, &mm, 1, MSG_NOSIGNAL));
	badfd_say("getsockname", what, getsockname(fd, &a.sa, &a.len));
	badfd_say("getpeername", what, getpeername(fd, &a.sa, &a.len));
	badfd_say("getsockopt", what, getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
	badfd_say("setsockopt", what, setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, len));
	badfd_say("shutdown", what, shutdown(fd, SHUT_WR));
}

static void badfd_none(int family)
{
	int closed = dup(0);

	(void)family;
	close(closed);
	badfd_calls("closed", closed);
	badfd_calls("-1", -1);
	badfd_calls("huge", INT_MAX);
	badfd_calls("AT_FDCWD", AT_FDCWD);
}

static void badfd_files(int family)
{
	int p[2];

	(void)family;
	if (pipe(p))
		probe_die("pipe");
	badfd_calls("file", open("/proc/self/exe", O_RDONLY));
	badfd_calls("path", open("/", O_PATH));
	badfd_calls("directory", open("/", O_RDONLY));
	badfd_calls("pipe", p[0]);
	badfd_calls("epoll", epoll_create1(0));
}

static void badfd_sockets(int family)
{
	int pair[2];

	(void)family;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		probe_die("socketpair");
	badfd_calls("unix stream", probe_socket(AF_UNIX, SOCK_STREAM));
	badfd_calls("unix datagram", probe_socket(AF_UNIX, SOCK_DGRAM));
	badfd_calls("socket pair", pair[0]);
	badfd_calls("netlink", probe_socket(AF_NETLINK, SOCK_RAW));
}

/* Local sockets, untouched: each kind talks to itself. */
static void badfd_unix(int family)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct ucred cred;
	socklen_t len = sizeof(sa_family_t), credlen = sizeof(cred);

	(void)family;
	for (int i = 0; i < 3; i++) {
		int s = probe_socket(AF_UNIX, types[i]), c, conn = s;
		socklen_t alen = sizeof(a);

		/* A name of the kernel's choice, as autobind gives it. */
		probe_want("bind", bind(s, (struct sockaddr *)&a, len), 0);
		getsockname(s, (struct sockaddr *)&a, &alen);
		probe_line("name", "length %d", (int)alen);
		if (types[i] != SOCK_DGRAM)
			probe_want("listen", listen(s, 1), 0);
		c = probe_socket(AF_UNIX, types[i]);
		probe_want("connect", connect(c, (struct sockaddr *)&a, alen), 0);
		if (types[i] != SOCK_DGRAM)
			conn = probe_accept("accept", s, NULL);
		probe_serve("talk", c, conn, "local");
	}
	probe_want("no such path",
		   connect(probe_socket(AF_UNIX, SOCK_STREAM),
			   (struct sockaddr *)&(struct sockaddr_un){AF_UNIX, "/nonexistent/socket"},
			   sizeof(a)),
		   ENOENT);
	probe_want("SO_PEERCRED",
		   getsockopt(probe_socket(AF_UNIX, SOCK_STREAM), SOL_SOCKET, SO_PEERCRED, &cred,
			      &credlen),
		   0);
}

static void badfd_netlink(int family)
{
	struct sockaddr_nl a = {.nl_family = AF_NETLINK};
	int fd = probe_socket(AF_NETLINK, SOCK_RAW);
	struct {
		struct nlmsghdr h;
		char body[16];
	} request = {.h = {.nlmsg_len = sizeof(request),
			   .nlmsg_type = 18, /* RTM_GETLINK */
			   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP}};
	socklen_t len = sizeof(a);
	char buf[8192];

	(void)family;
	probe_want("bind", bind(fd, (struct sockaddr *)&a, len), 0);
	probe_want("getsockname", getsockname(fd, (struct sockaddr *)&a, &len), 0);
	probe_check("port nonzero", a.nl_pid != 0);
	a.nl_pid = 0;
	probe_want("sendto",
		   sendto(fd, &request, sizeof(request), 0, (struct sockaddr *)&a, sizeof(a)), 0);
	probe_check("answer", recv(fd, buf, sizeof(buf), 0) > 100);
	probe_want("connect", connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
}

const struct probe_case badfd_cases[] = {
	{"badfd-none", badfd_none, 0, 0},	{"badfd-files", badfd_files, 0, 0},
	{"badfd-sockets", badfd_sockets, 0, 0}, {"badfd-unix", badfd_unix, 0, 0},
	{"badfd-netlink", badfd_netlink, 0, 0}, {0},
};
