// SPDX-License-Identifier: Apache-2.0
/* The other system call ABIs of an x86-64 kernel. */
#include "attack.h"

#include "../../../../shim/c/marks.h"
#include "../i386.h"

enum {
	SYS_SOCKET_OF_SOCKETCALL = 1,
	SYS_LISTEN_OF_SOCKETCALL = 4,
	IO_URING_SETUP = 425,
	X32 = 0x40000000,
};

long attack_i386(long number, long a, long b, long c, long d, long e)
{
	return i386_call(number, a, b, c, d, e, 0);
}

void *attack_low(void)
{
	static void *page;

	if (page == NULL) {
		page = i386_page();
		if (page == MAP_FAILED)
			attack_die("map low memory");
	}
	return page;
}

static long abi_x32(long number, long a, long b)
{
	return syscall(X32 + number, a, b);
}

/* Sockets that are made by another ABI, and where they get. */
static int abi_sockets(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	int fd = (int)attack_i386(I386_SOCKET, to.sa.sa_family, SOCK_STREAM, 0, 0, 0);
	int native = attack_socket(to.sa.sa_family, SOCK_STREAM);
	void *low = attack_low();

	memcpy(low, &to.in6, sizeof(to.in6));
	if (attack_say("i386 socket", fd) >= 0) {
		attack_note("i386 socket in the host's namespace", "%s",
			    attack_netns(fd) == attack_netns(native) ? "yes" : "no");
		attack_say("i386 connect", attack_i386(I386_CONNECT, fd, (long)low, to.len, 0, 0));
	}
	fd = (int)syscall(X32 + SYS_socket, to.sa.sa_family, SOCK_STREAM, 0);
	if (attack_say("x32 socket", fd) >= 0) {
		attack_note("x32 socket in the host's namespace", "%s",
			    attack_netns(fd) == attack_netns(native) ? "yes" : "no");
		attack_say("x32 connect", syscall(X32 + SYS_connect, fd, &to.sa, to.len));
	}
	memset(low, 0, 256);
	attack_say("io_uring_setup", syscall(IO_URING_SETUP, 4, low));
	attack_say("x32 io_uring_setup", syscall(X32 + IO_URING_SETUP, 4, low));
	attack_say("i386 io_uring_setup", attack_i386(IO_URING_SETUP, 4, (long)low, 0, 0, 0));
	return 0;
}

static long abi_socketcall_listen(int fd)
{
	int32_t *args = attack_low();

	args[0] = fd;
	args[1] = 10;
	return attack_i386(I386_SOCKETCALL, SYS_LISTEN_OF_SOCKETCALL, (long)args, 0, 0, 0);
}

/* bind(2) and listen(2) on host sockets by each ABI, then waits to be looked at. */
static int abi_listen(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[argc - 1]);
	void *low = attack_low();
	int fd;

	fd = attack_socket(AF_INET, SOCK_STREAM);
	attack_say("listen", syscall(SYS_listen, fd, 10));
	fd = attack_socket(AF_INET, SOCK_STREAM);
	attack_say("i386 listen", attack_i386(I386_LISTEN, fd, 10, 0, 0, 0));
	fd = attack_socket(AF_INET, SOCK_STREAM);
	attack_say("i386 socketcall listen", abi_socketcall_listen(fd));
	fd = attack_socket(AF_INET, SOCK_STREAM);
	attack_say("x32 listen", abi_x32(SYS_listen, fd, 10));
	fd = attack_socket(AF_INET6, SOCK_STREAM);
	attack_say("IPv6 i386 listen", attack_i386(I386_LISTEN, fd, 10, 0, 0, 0));

	memcpy(low, &at.in6, sizeof(at.in6));
	fd = attack_socket(at.sa.sa_family, SOCK_STREAM);
	attack_say("i386 bind", attack_i386(I386_BIND, fd, (long)low, at.len, 0, 0));
	attack_say("listen after i386 bind", listen(fd, 10));
	fd = attack_socket(at.sa.sa_family, SOCK_STREAM);
	attack_say("x32 bind", syscall(X32 + SYS_bind, fd, &at.sa, at.len));
	attack_say("listen after x32 bind", listen(fd, 10));
	attack_hold();
	return 0;
}

static long abi_socketcall_socket(int family, int type)
{
	int32_t *args = attack_low();

	args[0] = family;
	args[1] = type;
	args[2] = 0;
	return attack_i386(I386_SOCKETCALL, SYS_SOCKET_OF_SOCKETCALL, (long)args, 0, 0, 0);
}

/* "abi-elsewhere FAMILY...": sockets of these families, by each ABI, and with the shim's marks. */
static int abi_elsewhere(int argc, char **argv)
{
	static const unsigned long marks[] = {0, MARK_PASS, MARK_ASK, MARK_SHIM};
	char step[64];

	for (int i = 0; i < argc; i++) {
		int family = atoi(argv[i]);

		for (int m = 0; m < 4; m++) {
			snprintf(step, sizeof(step), "%d with mark %d", family, m);
			attack_say(step,
				   syscall(SYS_socket, family, SOCK_STREAM, 0, 0, 0, marks[m]));
		}
		snprintf(step, sizeof(step), "%d i386", family);
		attack_say(step, attack_i386(I386_SOCKET, family, SOCK_STREAM, 0, 0, 0));
		snprintf(step, sizeof(step), "%d i386 socketcall", family);
		attack_say(step, abi_socketcall_socket(family, SOCK_STREAM));
	}
	return 0;
}

const struct attack_case abi_cases[] = {
	{"abi-elsewhere", abi_elsewhere},
	{"abi-sockets", abi_sockets},
	{"abi-listen", abi_listen},
	{0},
};
