// SPDX-License-Identifier: Apache-2.0
/* A program's own loopback: datagrams between its own sockets, at ports that no rule names. */
#include "probe.h"

#include <linux/errqueue.h>

/* A socket that hears of errors whether it is connected or not. */
static int ownudp_client(int family)
{
	int fd = probe_socket(family, SOCK_DGRAM), one = 1;

	setsockopt(fd, IPPROTO_IP, IP_RECVERR, &one, sizeof(one));
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, &one, sizeof(one));
	return fd;
}

static int ownudp_server(struct probe_addr at)
{
	int fd = ownudp_client(at.sa.sa_family);

	probe_want("bind", probe_bind(fd, at), 0);
	return fd;
}

/* Takes a datagram and prints who has sent it. The sender may hear that nobody is there. */
static struct probe_addr ownudp_hear(const char *step, int fd, int sender, const char *text)
{
	struct probe_addr from = {.len = sizeof(from.ss)};
	struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = sender, .events = 0}};
	char buf[32] = "";

	poll(p, 2, PROBE_PATIENCE);
	if (!probe_want(step, p[0].revents & POLLIN ? 0 : (errno = ETIMEDOUT, -1), 0)) {
		recvfrom(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT, &from.sa, &from.len);
		probe_check("what was sent", !strcmp(buf, text));
		probe_host("from", &from);
		return from;
	}
	probe_line("sender", "%s", probe_events(p[1].revents));
	exit(1);
}

static long ownudp_send(int fd, const char *text, struct probe_addr to)
{
	return sendto(fd, text, strlen(text), 0, &to.sa, to.len);
}

/* One question to a server, and its answer. */
static void ownudp_ask(int c, int s, struct probe_addr to, bool connected)
{
	struct probe_addr from, local;

	if (connected) {
		probe_want("connect", probe_connect(c, to), 0);
		local = probe_local(c);
		probe_host("getsockname", &local);
		local = probe_remote(c);
		probe_host("getpeername", &local);
		probe_want("send", send(c, "question", 8, 0), 0);
	} else {
		probe_want("sendto", ownudp_send(c, "question", to), 0);
	}
	from = ownudp_hear("server hears", s, c, "question");
	local = probe_local(c);
	probe_check("from the client's port", probe_port(&from) == probe_port(&local));
	probe_want("answer", ownudp_send(s, "answer", from), 0);
	from = ownudp_hear("client hears", c, s, "answer");
	probe_check("from the port it called", probe_port(&from) == probe_port(&to));
}

/* Server and client at every kind of address and port. */
static void ownudp_names(int family)
{
	struct probe_addr servers[] = {probe_loopback(family, probe_private(0)),
				       probe_any(family, probe_private(0)),
				       probe_loopback(family, 0), probe_any(family, 0)};
	struct probe_addr clients[] = {probe_loopback(family, probe_private(1)),
				       probe_any(family, probe_private(1)),
				       probe_loopback(family, 0),
				       probe_any(family, 0),
				       {.len = 0}};

	for (int i = 0; i < 4 * 5 * 2; i++) {
		int s = ownudp_server(servers[i % 4]), c;
		struct probe_addr at = probe_local(s);

		c = clients[i / 4 % 5].len ? ownudp_server(clients[i / 4 % 5])
					   : ownudp_client(family);
		probe_host("server", &at);
		ownudp_ask(c, s, probe_loopback(family, probe_port(&at)), i >= 20);
		close(s);
		close(c);
	}
}

/* Other ways to write the loopback. */
static void ownudp_any(int family)
{
	int s = ownudp_server(probe_any(family, probe_private(0)));
	int c = ownudp_client(family);

	ownudp_ask(c, s, probe_any(family, probe_private(0)), false);
	ownudp_ask(c, s, probe_any(family, probe_private(0)), true);
	c = ownudp_client(AF_INET6);
	if (family == AF_INET6) {
		ownudp_ask(c, s, probe_text(family, "::ffff:127.0.0.1", probe_private(0)), false);
		ownudp_ask(c, s, probe_text(family, "::ffff:127.0.0.1", probe_private(0)), true);
		return;
	}
	ownudp_ask(ownudp_client(family), s, probe_text(family, "127.0.0.53", probe_private(0)),
		   false);
}

/* One socket, at a port of its choice, asks another machine and an own server in turn. */
static void ownudp_client_port(int family)
{
	int s = ownudp_server(probe_loopback(family, probe_private(0)));
	int c = ownudp_server(probe_any(family, probe_private(1)));
	struct probe_addr far = probe_peer(family, env.udp), from = {.len = sizeof(from.ss)};
	char buf[8] = "";

	for (int i = 0; i < 2; i++) {
		if (probe_want("send far", ownudp_send(c, "far", far), 0) < 0)
			exit(1);
		probe_poll(c, POLLIN, PROBE_PATIENCE);
		probe_want("recvfrom", recvfrom(c, buf, 8, MSG_DONTWAIT, &from.sa, &from.len), 0);
		probe_check("from there", probe_same(&from, &far));
		ownudp_ask(c, s, probe_loopback(family, probe_private(0)), false);
	}
	probe_names("client", c);
	probe_want(
		"again",
		probe_bind(probe_socket(family, SOCK_DGRAM), probe_any(family, probe_private(1))),
		EADDRINUSE);
}

/* A socket that is connected to one after the other. */
static void ownudp_unspec(int family)
{
	int s = ownudp_server(probe_loopback(family, probe_private(0)));
	int t = ownudp_server(probe_any(family, probe_private(1)));
	int c = ownudp_client(family);

	ownudp_ask(c, s, probe_loopback(family, probe_private(0)), true);
	ownudp_ask(c, t, probe_loopback(family, probe_private(1)), true);
	probe_want("dissolve", probe_connect(c, probe_unspec()), 0);
	probe_names("dissolved", c);
	ownudp_ask(c, s, probe_loopback(family, probe_private(0)), false);
	probe_want("connect far", probe_connect(c, probe_peer(family, env.udp)), 0);
	probe_echo("echo", c, "far");
	probe_want("dissolve", probe_connect(c, probe_unspec()), 0);
	ownudp_ask(c, t, probe_loopback(family, probe_private(1)), true);
}

/* A server that connects to its client hears nobody else. */
static void ownudp_connected_server(int family)
{
	struct probe_addr at = probe_loopback(family, probe_private(0));
	int s = ownudp_server(at), c = probe_socket(family, SOCK_DGRAM);
	int other = probe_socket(family, SOCK_DGRAM);

	ownudp_ask(c, s, at, true);
	probe_want("server connects", probe_connect(s, probe_local(c)), 0);
	probe_names("server", s);
	probe_want("another sends", ownudp_send(other, "other", at), 0);
	probe_serve("talk", c, s, "after the other");
	probe_serve("talk back", s, c, "to the client");
}

/* The error that a socket has asked for, which came before what it hears now. */
static void ownudp_error(int fd)
{
	char control[512], buf[32];
	struct probe_addr to = {.len = sizeof(to.ss)}, off = {.len = sizeof(off.in6)};
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_name = &to.ss};
	struct sock_extended_err *e;

	h.msg_namelen = sizeof(to.ss);
	h.msg_control = control;
	h.msg_controllen = sizeof(control);
	if (probe_want("recvmsg", recvmsg(fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT), 0) < 0 ||
	    !CMSG_FIRSTHDR(&h))
		return;
	e = (struct sock_extended_err *)CMSG_DATA(CMSG_FIRSTHDR(&h));
	probe_line("error", "%s origin %d type %d code %d", probe_errno(e->ee_errno), e->ee_origin,
		   e->ee_type, e->ee_code);
	probe_host("sent to", &to);
	memcpy(&off.ss, SO_EE_OFFENDER(e), sizeof(off.in6));
	off.in.sin_port = 0;
	probe_host("offender", &off);
}

/* A server that is gone, and a port that nobody has had. */
static void ownudp_refused(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int s = ownudp_server(to), c = probe_socket(family, SOCK_DGRAM);
	char byte;

	ownudp_ask(c, s, to, true);
	close(s);
	for (int i = 1; i >= 0; i--) {
		probe_want("send", send(c, "x", 1, 0), 0);
		probe_poll(c, POLLIN, PROBE_PATIENCE);
		probe_want("recv", recv(c, &byte, 1, MSG_DONTWAIT), ECONNREFUSED);
		probe_want("send", send(c, "x", 1, 0), 0);
		probe_poll(c, POLLIN, PROBE_PATIENCE);
		probe_want("send again", send(c, "x", 1, 0), ECONNREFUSED);
		c = ownudp_client(family);
		probe_want("connect", probe_connect(c, probe_loopback(family, probe_private(i))),
			   0);
		probe_want("send", send(c, "lost", 4, 0), 0);
		probe_poll(c, POLLERR, PROBE_PATIENCE);
		ownudp_error(c);
	}
}

/* The same of a socket that is not connected. The answer of a server comes after the error. */
static void ownudp_error_unconnected(int family)
{
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int s = ownudp_server(to), c = ownudp_client(family);

	probe_want("sendto", ownudp_send(c, "lost", probe_loopback(family, probe_private(1))), 0);
	probe_want("the error", ownudp_send(c, "sentinel", to), ECONNREFUSED);
	probe_want("sentinel", ownudp_send(c, "sentinel", to), 0);
	ownudp_hear("server hears", s, -1, "sentinel");
	ownudp_error(c);
}

/* One call that sends to own servers and to another machine. */
static void ownudp_batch(int family)
{
	struct probe_addr to[] = {probe_loopback(family, probe_private(0)),
				  probe_peer(family, env.udp),
				  probe_loopback(family, probe_private(1))};
	int s[2] = {ownudp_server(to[0]), ownudp_server(to[2])};
	int c = ownudp_client(family), got = 0;
	struct iovec iov = {"batch", 5};
	struct mmsghdr m[3] = {0};

	for (int i = 0; i < 3; i++) {
		m[i].msg_hdr = (struct msghdr){.msg_name = &to[i].ss,
					       .msg_namelen = to[i].len,
					       .msg_iov = &iov,
					       .msg_iovlen = 1};
	}
	for (int sent = 0, n; sent < 3; sent += n) {
		n = sendmmsg(c, m + sent, 3 - sent, 0);
		if (n <= 0)
			probe_die("sendmmsg");
	}
	for (int i = 0; i < 2; i++)
		ownudp_send(s[i], "answer", ownudp_hear("server hears", s[i], c, "batch"));
	while (got < 3 && probe_poll(c, POLLIN, PROBE_PATIENCE)) {
		struct probe_addr from = {.len = sizeof(from.ss)};
		char buf[8];

		m[0].msg_hdr = (struct msghdr){.msg_name = &from.ss,
					       .msg_namelen = from.len,
					       .msg_iov = &(struct iovec){buf, 8},
					       .msg_iovlen = 1};
		if (recvmmsg(c, m, 1, MSG_DONTWAIT, NULL) != 1)
			break;
		for (int i = 0; i < 3; i++)
			got += probe_same(&from, &to[i]) ? 1 : 0;
	}
	probe_line("answers of those that were asked", "%d", got);
}

/* The address that a datagram came to, and an answer from it. */
static void ownudp_pktinfo(int family)
{
	int s = ownudp_server(probe_any(family, probe_private(0))), one = 1;
	int c = ownudp_client(family);
	struct probe_addr to = family == AF_INET
				       ? probe_text(family, "127.0.0.53", probe_private(0))
				       : probe_loopback(family, probe_private(0));
	struct probe_addr from = {.len = sizeof(from.ss)};
	char control[128], buf[32];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr h = {.msg_name = &from.ss,
			   .msg_namelen = sizeof(from.ss),
			   .msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control};
	struct cmsghdr *p;

	h.msg_controllen = sizeof(control);
	setsockopt(s, family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
		   family == AF_INET ? IP_PKTINFO : IPV6_RECVPKTINFO, &one, sizeof(one));
	probe_want("sendto", ownudp_send(c, "where", to), 0);
	probe_poll(s, POLLIN, PROBE_PATIENCE);
	iov.iov_len = (size_t)probe_want("recvmsg", recvmsg(s, &h, MSG_DONTWAIT), 0);
	probe_host("from", &from);
	p = CMSG_FIRSTHDR(&h);
	if (!probe_check("with control data", p != NULL))
		return;
	if (family == AF_INET) {
		struct in_pktinfo *info = (struct in_pktinfo *)CMSG_DATA(p);

		probe_check("addressed to", info->ipi_addr.s_addr == to.in.sin_addr.s_addr);
		probe_line("interface", "%d", info->ipi_ifindex);
	} else {
		struct in6_pktinfo *info = (struct in6_pktinfo *)CMSG_DATA(p);

		probe_check("addressed to", !memcmp(&info->ipi6_addr, &to.in6.sin6_addr, 16));
		probe_line("interface", "%u", info->ipi6_ifindex);
	}
	from.len = h.msg_namelen;
	probe_want("answer with the same", sendmsg(s, &h, 0), 0);
	from = ownudp_hear("client hears", c, s, "where");
	probe_check("from where it asked", probe_same(&from, &to));
}

/* A client bound to the loopback's device. */
static void ownudp_device(int family)
{
	int s = ownudp_server(probe_loopback(family, probe_private(0)));
	int c = ownudp_client(family);

	probe_want("device", setsockopt(c, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3), 0);
	ownudp_ask(c, s, probe_loopback(family, probe_private(0)), false);
}

/* Datagrams of all sizes that the loopback takes at once. */
static void ownudp_sizes(int family)
{
	static char big[65507], got[65507];
	struct probe_addr to = probe_loopback(family, probe_private(0));
	int s = ownudp_server(to), c = probe_socket(family, SOCK_DGRAM);

	memset(big, 'b', sizeof(big));
	probe_want("empty", sendto(c, "", 0, 0, &to.sa, to.len), 0);
	probe_poll(s, POLLIN, PROBE_PATIENCE);
	probe_want("recv", recv(s, got, sizeof(got), MSG_DONTWAIT), 0);
	probe_want("largest", sendto(c, big, sizeof(big), 0, &to.sa, to.len), 0);
	probe_poll(s, POLLIN, PROBE_PATIENCE);
	probe_want("recv", recv(s, got, sizeof(got), MSG_DONTWAIT), 0);
	probe_check("unchanged", !memcmp(big, got, sizeof(big)));
}

const struct probe_case ownudp_cases[] = {
	{"own-names-udp-v4", ownudp_names, AF_INET, 2},
	{"own-names-udp-v6", ownudp_names, AF_INET6, 2},
	{"own-any-udp-v4", ownudp_any, AF_INET, 1},
	{"own-any-udp-v6", ownudp_any, AF_INET6, 1},
	{"own-client-port-udp-v4", ownudp_client_port, AF_INET, 2},
	{"own-client-port-udp-v6", ownudp_client_port, AF_INET6, 2},
	{"own-unspec-udp-v4", ownudp_unspec, AF_INET, 2},
	{"own-unspec-udp-v6", ownudp_unspec, AF_INET6, 2},
	{"own-connected-server-v4", ownudp_connected_server, AF_INET, 1},
	{"own-connected-server-v6", ownudp_connected_server, AF_INET6, 1},
	{"own-refused-udp-v4", ownudp_refused, AF_INET, 2},
	{"own-refused-udp-v6", ownudp_refused, AF_INET6, 2},
	{"own-error-udp-v4", ownudp_error_unconnected, AF_INET, 2},
	{"own-error-udp-v6", ownudp_error_unconnected, AF_INET6, 2},
	{"own-batch-v4", ownudp_batch, AF_INET, 2},
	{"own-batch-v6", ownudp_batch, AF_INET6, 2},
	{"own-pktinfo-v4", ownudp_pktinfo, AF_INET, 1},
	{"own-pktinfo-v6", ownudp_pktinfo, AF_INET6, 1},
	{"own-device-udp", ownudp_device, AF_INET, 1},
	{"own-sizes", ownudp_sizes, AF_INET, 1},
	{0},
};
