// SPDX-License-Identifier: Apache-2.0
/*
 * Makes calls that a composed filter passes to the gate although they do not concern it. Writes the
 * result of each call into the file argv[1], renames the file to argv[2], and waits to be killed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *out;

static long say(const char *what, long result)
{
	int error = result < 0 ? errno : 0;

	fprintf(out, "%s: %s %d\n", what, result < 0 ? "failed" : "done", error);
	return result;
}

static void local(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct sockaddr_storage nobody = {.ss_family = AF_UNSPEC};
	struct sockaddr_storage netlink = {.ss_family = AF_NETLINK};
	struct iovec iov = {"x", 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	socklen_t length = sizeof(name);
	int pair[2], s;

	s = (int)say("unix socket", socket(AF_UNIX, SOCK_STREAM, 0));
	say("unix bind", bind(s, (struct sockaddr *)&name, sizeof(name.sun_family)));
	say("unix bind again", bind(s, (struct sockaddr *)&name, sizeof(name)));
	say("unix getsockname", getsockname(s, (struct sockaddr *)&name, &length));
	strcpy(name.sun_path, "/nowhere/at/all");
	say("unix connect", connect(s, (struct sockaddr *)&name, sizeof(name)));
	say("pair", socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	say("send", sendto(pair[0], "x", 1, 0, NULL, 0));
	say("sendto nowhere", sendto(pair[0], "x", 1, 0, NULL, 16));
	say("sendmsg", sendmsg(pair[0], &msg, 0));
	say("sendmsg from nowhere", sendmsg(pair[0], NULL, 0));
	s = (int)say("netlink socket", socket(AF_NETLINK, SOCK_RAW, 0));
	say("netlink bind", bind(s, (struct sockaddr *)&netlink, 12));
	say("raw socket", socket(AF_INET, SOCK_RAW, 1));
	s = (int)say("socket", socket(AF_INET6, SOCK_DGRAM, 0));
	say("connect briefly", connect(s, (struct sockaddr *)&nobody, 8));
	say("connect to nobody", connect(s, (struct sockaddr *)&nobody, sizeof(nobody)));
	say("connect nowhere", connect(s, NULL, 16));
	say("bind briefly", bind(s, (struct sockaddr *)&nobody, 8));
	say("bind nowhere", bind(s, NULL, 16));
	say("bind to another family", bind(s, (struct sockaddr *)&netlink, sizeof(netlink)));
	say("setsockopt", setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
	say("setsockopt v6", setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &(int){1}, sizeof(int)));
	length = sizeof(int);
	say("getsockopt", getsockopt(s, SOL_SOCKET, SO_TYPE, &(int){0}, &length));
	/* About the socket, and about a file that is no socket. */
	say("ioctl", ioctl(s, SIOCATMARK, &(int){0}));
	say("ioctl of bytes", ioctl(s, FIONREAD, &(int){0}));
	say("ioctl of bad descriptor", ioctl(-1, TCGETS, NULL));
	say("bad descriptor", connect(-1, (struct sockaddr *)&name, sizeof(name)));
}

static void processes(void)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0)
		_exit(unshare(CLONE_FILES) == 0 ? 3 : 4);
	say("fork", child);
	waitpid(child, &status, 0);
	fprintf(out, "child: %d\n", WEXITSTATUS(status));
	say("setns", setns(-1, CLONE_NEWUTS));
}

#ifdef __x86_64__
static long i386(long number, long a, long b, long c, long d, long e)
{
	long result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
			 : "memory", "r8", "r9", "r10", "r11");
	result = (int32_t)result;
	if (result >= 0 || result <= -4096)
		return result;
	errno = (int)-result;
	return -1;
}

static void foreign(void)
{
	int32_t *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	long at = (long)low;
	int s = (int)say("i386 socket", i386(359, AF_INET, SOCK_DGRAM, 0, 0, 0));

	memset(low, 0, 4096);
	low[0] = AF_INET;
	say("i386 bind", i386(361, s, at, 16, 0, 0));
	say("i386 connect", i386(362, s, at, 16, 0, 0));
	say("i386 getsockopt", i386(365, s, SOL_SOCKET, SO_TYPE, at + 64, at + 68));
	say("i386 setsockopt", i386(366, s, SOL_SOCKET, SO_REUSEADDR, at + 64, 4));
	low[32] = 16;
	say("i386 getsockname", i386(367, s, at + 64, at + 128, 0, 0));
	say("i386 ioctl", i386(54, s, FIONREAD, at + 64, 0, 0));
	say("i386 sendto", i386(369, s, at, 1, 0, 0));
	say("i386 sendmsg", i386(370, s, at, 0, 0, 0));
	say("i386 listen", i386(363, s, 1, 0, 0, 0));
	low[256] = AF_UNIX, low[257] = SOCK_STREAM, low[258] = 0;
	say("i386 socketcall socket", i386(102, 1, at + 1024, 0, 0, 0));
	say("i386 unshare", i386(310, CLONE_FS, 0, 0, 0, 0));
	say("i386 setns", i386(346, -1, CLONE_NEWUTS, 0, 0, 0));
	say("x32 socket", syscall(0x40000000 + SYS_socket, AF_UNIX, SOCK_STREAM, 0));
	say("x32 bind", syscall(0x40000000 + SYS_bind, -1, NULL, 0));
}
#else
static void foreign(void)
{
}
#endif

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	out = fopen(argv[1], "w");
	if (out == NULL)
		return 1;
	local();
	processes();
	foreign();
	if (fclose(out) != 0 || rename(argv[1], argv[2]) != 0)
		return 1;
	for (;;)
		pause();
}
