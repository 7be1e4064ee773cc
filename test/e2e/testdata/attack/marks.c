// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that speak like the shim. "marks ALLOWED TARGET..." makes every call
 * that the filter looks at with each of the shim's marks, on sockets that were
 * made with each; what arrives there says by which.
 */
#include "attack.h"

#include "../../../../shim/c/marks.h"

static const struct {
	const char *name;
	uint64_t value;
} marks[] = {
	{"none", 0},	     {"pass", MARK_PASS},	    {"ask", MARK_ASK},
	{"shim", MARK_SHIM}, {"half", (uint32_t)MARK_PASS},
};

enum { MARKS = sizeof(marks) / sizeof(marks[0]) };

static struct attack_addr marks_allowed;

static int marks_socket(int family, int type, uint64_t mark)
{
	int one = 1, fd = (int)syscall(SYS_socket, family, type | SOCK_CLOEXEC, 0, 0, 0, mark);

	attack_need("make socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	return fd;
}

static long marks_connect(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	if (syscall(SYS_connect, fd, &to->sa, to->len, 0, 0, mark) < 0)
		return -1;
	return send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* After a call that was decided on, for a destination where it may go. */
static long marks_reconnect(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	struct sockaddr_in6 none = {.sin6_family = AF_UNSPEC};

	syscall(SYS_connect, fd, &marks_allowed.sa, marks_allowed.len, 0, 0, MARK_ASK);
	syscall(SYS_connect, fd, &none, sizeof(none), 0, 0, mark);
	return marks_connect(fd, to, text, mark);
}

static long marks_message(int fd, const struct attack_addr *to, const char *text, uint64_t mark,
			  int flags)
{
	struct iovec iov = {(void *)text, strlen(text)};
	struct msghdr msg = {.msg_name = (void *)&to->sa,
			     .msg_namelen = to->len,
			     .msg_iov = &iov,
			     .msg_iovlen = 1};

	return syscall(SYS_sendmsg, fd, &msg, flags | MSG_NOSIGNAL, 0, 0, mark);
}

static long marks_sendmsg(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	return marks_message(fd, to, text, mark, 0);
}

static long marks_fastopen(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	return marks_message(fd, to, text, mark, MSG_FASTOPEN);
}

static long marks_messages(int fd, const struct attack_addr *to, const char *text, uint64_t mark,
			   int flags)
{
	struct iovec iov = {(void *)text, strlen(text)};
	struct mmsghdr msg = {.msg_hdr = {.msg_name = (void *)&to->sa,
					  .msg_namelen = to->len,
					  .msg_iov = &iov,
					  .msg_iovlen = 1}};

	return syscall(SYS_sendmmsg, fd, &msg, 1, flags | MSG_NOSIGNAL, 0, mark);
}

static long marks_sendmmsg(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	return marks_messages(fd, to, text, mark, 0);
}

static long marks_fastopens(int fd, const struct attack_addr *to, const char *text, uint64_t mark)
{
	return marks_messages(fd, to, text, mark, MSG_FASTOPEN);
}

static const struct marks_way {
	const char *name;
	int type;
	long (*go)(int fd, const struct attack_addr *to, const char *text, uint64_t mark);
} marks_ways[] = {
	{"tcp connect", SOCK_STREAM, marks_connect},
	{"tcp reconnect", SOCK_STREAM, marks_reconnect},
	{"tcp fastopen sendmsg", SOCK_STREAM, marks_fastopen},
	{"tcp fastopen sendmmsg", SOCK_STREAM, marks_fastopens},
	{"udp connect", SOCK_DGRAM, marks_connect},
	{"udp reconnect", SOCK_DGRAM, marks_reconnect},
	{"udp sendmsg", SOCK_DGRAM, marks_sendmsg},
	{"udp sendmmsg", SOCK_DGRAM, marks_sendmmsg},
};

static void marks_try(const struct marks_way *way, const struct attack_addr *to, int made, int sent)
{
	int fd = marks_socket(to->sa.sa_family, way->type, marks[made].value);
	char text[80], answer[16];
	long result;

	snprintf(text, sizeof(text), "%s %s %s", way->name, marks[made].name, marks[sent].name);
	result = way->go(fd, to, text, marks[sent].value);
	if (result >= 0 && way->type == SOCK_STREAM) {
		/* What is in flight must not be cut off by a reset. */
		shutdown(fd, SHUT_WR);
		recv(fd, answer, sizeof(answer), 0);
	}
	attack_say(text, result);
	close(fd);
}

static int marks_reach(int argc, char **argv)
{
	marks_allowed = attack_addr(argv[0]);
	for (int i = 1; i < argc; i++) {
		struct attack_addr to = attack_addr(argv[i]);

		for (size_t w = 0; w < sizeof(marks_ways) / sizeof(marks_ways[0]); w++)
			for (int pair = 0; pair < MARKS * MARKS; pair++)
				marks_try(&marks_ways[w], &to, pair / MARKS, pair % MARKS);
	}
	return 0;
}

/* "marked-listen AT...": binds and listens, with all marks; then waits. */
static int marks_listen(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		struct attack_addr at = attack_addr(argv[i]);

		for (int pair = 0; pair < MARKS * MARKS; pair++) {
			uint64_t made = marks[pair / MARKS].value, mark = marks[pair % MARKS].value;
			int tcp = marks_socket(at.sa.sa_family, SOCK_STREAM, made);
			int udp = marks_socket(at.sa.sa_family, SOCK_DGRAM, made);
			int unbound = marks_socket(at.sa.sa_family, SOCK_STREAM, made);

			attack_say("bind", syscall(SYS_bind, tcp, &at.sa, at.len, 0, 0, mark));
			attack_say("listen", syscall(SYS_listen, tcp, 5, 0, 0, 0, mark));
			attack_say("bind", syscall(SYS_bind, udp, &at.sa, at.len, 0, 0, mark));
			attack_say("listen", syscall(SYS_listen, unbound, 5, 0, 0, 0, mark));
		}
	}
	attack_hold();
	return 0;
}

const struct attack_case marks_cases[] = {
	{"marks", marks_reach},
	{"marked-listen", marks_listen},
	{0},
};
