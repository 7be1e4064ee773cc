// SPDX-License-Identifier: Apache-2.0
/* The data of a stream: flags, ends, errors. */
#include "probe.h"

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static volatile sig_atomic_t stream_pipes;

static void stream_sigpipe(int sig)
{
	(void)sig;
	stream_pipes++;
}

/* The program ends its side, hears the rest, then the end. */
static void stream_half_close(int family)
{
	int fd = probe_echo_client(family);
	char buf[16] = "";

	probe_want("write", write(fd, "the last", 8), 0);
	probe_want("shutdown", shutdown(fd, SHUT_WR), 0);
	probe_want("write after", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	probe_want("read the rest", probe_read(fd, buf, sizeof(buf)), 0);
	probe_want("read the end", read(fd, buf, sizeof(buf)), 0);
	probe_want("shutdown again", shutdown(fd, SHUT_WR), ENOTCONN);
}

/* The peer ends its side; the program can still write. */
static void stream_half_closed(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	char buf[16] = "";

	probe_want("connect", probe_connect(fd, probe_peer(family, env.half)), 0);
	probe_want("read", probe_read(fd, buf, sizeof(buf)), 0);
	probe_line("text", "%s", buf);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLIN | POLLRDHUP | POLLOUT, 0)));
	probe_want("write", send(fd, "more", 4, MSG_NOSIGNAL), 0);
	probe_want("write again", send(fd, "more", 4, MSG_NOSIGNAL), 0);
	probe_want("read the end", read(fd, buf, sizeof(buf)), 0);
	probe_names("half closed", fd);
	probe_want("close", close(fd), 0);
}

static void stream_shut_rd(int family)
{
	int fd = probe_echo_client(family);
	long start = probe_now();
	char byte;

	probe_want("shutdown reading", shutdown(fd, SHUT_RD), 0);
	probe_want("read", read(fd, &byte, 1), 0);
	probe_want("write", send(fd, "x", 1, MSG_NOSIGNAL), 0);
	/* What comes after both sides are shut resets the connection. */
	for (int n = 0; n == 0 && probe_now() - start < PROBE_PATIENCE; probe_sleep(2))
		ioctl(fd, FIONREAD, &n);
	probe_want("shutdown nonsense", shutdown(fd, 7), EINVAL);
	probe_want("shutdown both", shutdown(fd, SHUT_RDWR), 0);
	probe_want("write after", send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

static void stream_unconnected(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	char byte = 0;

	signal(SIGPIPE, stream_sigpipe);
	probe_want("read", read(fd, &byte, 1), ENOTCONN);
	probe_want("write", write(fd, &byte, 1), EPIPE);
	probe_line("SIGPIPE", "%d", stream_pipes);
	probe_want("send quietly", send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
	probe_line("SIGPIPE", "%d", stream_pipes);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "unspoilt");
	probe_want("shutdown", shutdown(probe_socket(family, SOCK_STREAM), SHUT_WR), ENOTCONN);
}

static void stream_reset(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	char byte = 0;

	signal(SIGPIPE, stream_sigpipe);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.reset)), 0);
	probe_want("write", write(fd, "x", 1), 0);
	probe_want("poll", probe_poll(fd, POLLIN, PROBE_PATIENCE) ? 0 : -1, 0);
	probe_line("poll", "%s", probe_events(probe_poll(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
	probe_want("read", read(fd, &byte, 1), ECONNRESET);
	probe_want("read again", read(fd, &byte, 1), 0);
	probe_want("write", write(fd, "x", 1), EPIPE);
	probe_line("SIGPIPE", "%d", stream_pipes);
	probe_names("reset", fd);
}

static void stream_peek(int family)
{
	int fd = probe_echo_client(family);
	char buf[16] = "";

	probe_want("nothing yet", recv(fd, buf, 4, MSG_DONTWAIT), EAGAIN);
	probe_want("peek at nothing", recv(fd, buf, 4, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
	probe_want("write", write(fd, "peekaboo", 8), 0);
	probe_want("wait for all, peeking", recv(fd, buf, 8, MSG_PEEK | MSG_WAITALL), 0);
	probe_line("text", "%.8s", buf);
	memset(buf, 0, sizeof(buf));
	probe_want("peek", recv(fd, buf, 4, MSG_PEEK), 0);
	probe_line("text", "%.4s", buf);
	probe_want("throw away", recv(fd, NULL, 4, MSG_TRUNC), 0);
	probe_want("read", recv(fd, buf, sizeof(buf), 0), 0);
	probe_line("text", "%.4s", buf);
	probe_want("nothing left", recv(fd, buf, 4, MSG_DONTWAIT), EAGAIN);
}

static void stream_waitall(int family)
{
	int fd = probe_echo_client(family);
	pid_t pid = probe_fork();
	char buf[16] = "";

	if (pid == 0) {
		for (int i = 0; i < 4; i++) {
			if (write(fd, "abc", 3) != 3)
				_exit(1);
			probe_sleep(20);
		}
		_exit(0);
	}
	probe_want("recv", recv(fd, buf, 12, MSG_WAITALL), 0);
	probe_line("text", "%s", buf);
	probe_wait("writer", pid);
}

static void stream_timeout(int family)
{
	struct timeval tv = {.tv_usec = 150000};
	int fd = probe_socket(family, SOCK_STREAM);
	long start;
	char byte;

	probe_want("SO_RCVTIMEO", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	start = probe_now();
	probe_want("read", read(fd, &byte, 1), EAGAIN);
	probe_check("it took its time", probe_now() - start >= 140);
}

static void stream_vectors(int family)
{
	int fd = probe_echo_client(family);
	char a[4] = "", b[8] = "";
	struct iovec out[] = {{"one", 3}, {"", 0}, {"twothree", 8}};
	struct iovec in[] = {{a, 3}, {b, 8}};
	struct msghdr msg = {.msg_iov = out, .msg_iovlen = 3};

	probe_want("writev", writev(fd, out, 3), 0);
	probe_want("recv", recv(fd, b, 1, MSG_PEEK), 0);
	while (recv(fd, a, 1, MSG_PEEK) == 1) {
		int n;

		ioctl(fd, FIONREAD, &n);
		if (n == 11)
			break;
		probe_sleep(5);
	}
	probe_want("readv", readv(fd, in, 2), 0);
	probe_line("text", "%.3s %.8s", a, b);
	probe_want("send more", send(fd, "00", 2, MSG_MORE), 0);
	probe_want("sendmsg", sendmsg(fd, &msg, MSG_NOSIGNAL), 0);
	msg.msg_iov = in;
	msg.msg_iovlen = 2;
	probe_want("recvmsg", recvmsg(fd, &msg, MSG_WAITALL), 0);
	probe_line("text", "%.3s %.8s name %d flags %d", a, b, (int)msg.msg_namelen, msg.msg_flags);
}

/* An address given with data on a connected stream is not looked at. */
static void stream_sendto(int family)
{
	struct probe_addr a = probe_peer(family, env.closed);
	struct probe_addr from = {.len = sizeof(from.ss)};
	int fd = probe_echo_client(family);
	char buf[8] = "";

	probe_want("sendto", sendto(fd, "hello", 5, 0, &a.sa, a.len), 0);
	probe_want("poll", probe_poll(fd, POLLIN, PROBE_PATIENCE) ? 0 : -1, 0);
	probe_want("recvfrom", recvfrom(fd, buf, 5, MSG_WAITALL, &from.sa, &from.len), 0);
	probe_line("address length", "%d", (int)from.len);
	fd = probe_socket(family, SOCK_STREAM);
	a = probe_peer(family, env.tcp);
	probe_want("unconnected", sendto(fd, "x", 1, MSG_NOSIGNAL, &a.sa, a.len), EPIPE);
}

/* More than any buffer holds, in both directions at once. */
static void stream_bulk(int family)
{
	static unsigned char out[65536], in[65536];
	size_t sent = 0, got = 0, total = 4 << 20, wrong = 0;
	int fd = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = i * 7 + (i >> 8);
	probe_connect(fd, probe_peer(family, env.tcp));
	while (got < total) {
		int events = probe_poll(fd, POLLIN | (sent < total ? POLLOUT : 0), PROBE_PATIENCE);
		ssize_t n;

		if (!events)
			probe_die("poll");
		if (sent < total && events & POLLOUT) {
			size_t at = sent % sizeof(out);

			n = write(fd, out + at, sizeof(out) - at);
			sent += n > 0 ? n : 0;
		}
		n = read(fd, in, sizeof(in) - got % sizeof(in));
		if (n == 0 || (n < 0 && errno != EAGAIN))
			probe_die("read");
		if (n > 0) {
			wrong += memcmp(in, out + got % sizeof(out), n) != 0;
			got += n;
		}
	}
	probe_line("bytes", "%zu wrong %zu", got, wrong);
}

static void stream_splice(int family)
{
	int fd = probe_echo_client(family), file, p[2];
	char buf[32] = "";
	off_t at = 0;

	file = memfd_create("probe", 0);
	if (file < 0 || pipe(p) || write(file, "from a file", 11) != 11)
		probe_die("memfd_create");
	probe_want("sendfile", sendfile(fd, file, &at, 11), 0);
	probe_want("read", probe_read(fd, buf, 11), 0);
	probe_line("text", "%s", buf);
	probe_want("into the pipe", write(p[1], "from a pipe", 11), 0);
	probe_want("splice", splice(p[0], NULL, fd, NULL, 11, 0), 0);
	probe_poll(fd, POLLIN, PROBE_PATIENCE);
	probe_want("splice back", splice(fd, NULL, p[1], NULL, 11, 0), 0);
	probe_want("out of the pipe", read(p[0], buf, 11), 0);
	probe_line("text", "%.11s", buf);
}

static void stream_urgent(int family)
{
	int pair[2], mark = -1;
	char byte = 0;

	probe_pair(family, pair);
	probe_want("send", send(pair[0], "ab", 2, 0), 0);
	probe_want("send urgent", send(pair[0], "!", 1, MSG_OOB), 0);
	probe_line("poll", "%s", probe_events(probe_poll(pair[1], POLLPRI, PROBE_PATIENCE)));
	probe_want("urgent", recv(pair[1], &byte, 1, MSG_OOB), 0);
	probe_line("byte", "%c", byte);
	ioctl(pair[1], SIOCATMARK, &mark);
	probe_line("at mark", "%d", mark);
	probe_want("urgent again", recv(pair[1], &byte, 1, MSG_OOB), EINVAL);
}

/* Zero linger: close is a reset. */
static void stream_linger(int family)
{
	struct linger now = {1, 0};
	int pair[2];
	char byte;

	probe_pair(family, pair);
	probe_want("SO_LINGER", setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	probe_want("close", close(pair[0]), 0);
	probe_poll(pair[1], POLLIN, PROBE_PATIENCE);
	probe_want("read", read(pair[1], &byte, 1), ECONNRESET);
}

const struct probe_case stream_cases[] = {
	{"stream-half-close-v4", stream_half_close, AF_INET, 0},
	{"stream-half-close-v6", stream_half_close, AF_INET6, 0},
	{"stream-half-closed", stream_half_closed, AF_INET, 0},
	{"stream-shut-rd", stream_shut_rd, AF_INET, 0},
	{"stream-unconnected", stream_unconnected, AF_INET, 0},
	{"stream-reset", stream_reset, AF_INET, 0},
	{"stream-peek", stream_peek, AF_INET, 0},
	{"stream-waitall", stream_waitall, AF_INET, 0},
	{"stream-timeout", stream_timeout, AF_INET, 0},
	{"stream-vectors", stream_vectors, AF_INET, 0},
	{"stream-sendto", stream_sendto, AF_INET, 0},
	{"stream-bulk", stream_bulk, AF_INET, 0},
	{"stream-splice", stream_splice, AF_INET, 0},
	{"stream-urgent", stream_urgent, AF_INET, 0},
	{"stream-linger", stream_linger, AF_INET, 0},
	{0},
};
