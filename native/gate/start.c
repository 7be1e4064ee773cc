// SPDX-License-Identifier: Apache-2.0
/*
 * How the gate takes what it was given and gives up everything else. It keeps
 * CAP_SYS_PTRACE, without which the memory and the descriptors of programs that
 * have capabilities are closed to it, and root's user id, so that a program of
 * another user cannot signal it; the files that it makes are the program's
 * user's, for the host firewall's owner match.
 */
#define _GNU_SOURCE
#include "../privilege/privilege.h"
#include "gate.h"
#include "worker.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GATE_FD_CONTROL = 3, GATE_FD_LISTENER, GATE_FD_END, GATE_FD_NETNS };

/* Of those that may knock at once; one is let in. */
#define GATE_BACKLOG 8

/* From linux/fcntl.h, which a C library need not come with (5.1). */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

struct gate gate;

static const char gate_usage_text[] =
	"usage: tsugiki-gate --uid N --gid N --own INODE --cookie N [--born4] [--born6] "
	"[--datagrams] [--door], control socket at 3, seccomp listener at 4, cgroup.kill at 5, "
	"or with --door a bound socket at 5 and the program's network namespace at 6\n";

static bool gate_flag(struct gate *g, const char *name)
{
	if (strcmp(name, "--born4") == 0)
		g->born |= BOARD_BORN_4;
	else if (strcmp(name, "--born6") == 0)
		g->born |= BOARD_BORN_6;
	else if (strcmp(name, "--datagrams") == 0)
		g->datagrams = true;
	else if (strcmp(name, "--door") == 0)
		g->door = GATE_FD_END;
	else
		return false;
	return true;
}

void gate_arguments(struct gate *g, int argc, char **argv)
{
	g->door = -1;
	for (int i = 1; i < argc; i++) {
		if (gate_flag(g, argv[i]))
			continue;
		if (strcmp(argv[i], "--own") == 0) {
			g->own = privilege_number(argv[++i], gate_usage_text);
		} else if (strcmp(argv[i], "--cookie") == 0) {
			g->cookie = privilege_number64(argv[++i], gate_usage_text);
		} else if (strcmp(argv[i], "--uid") == 0) {
			g->uid = privilege_number(argv[++i], gate_usage_text);
		} else if (strcmp(argv[i], "--gid") == 0) {
			g->gid = privilege_number(argv[++i], gate_usage_text);
		} else {
			privilege_say(gate_usage_text);
			_exit(2);
		}
	}
}

static uint64_t gate_cookie(void)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (s < 0 || getsockopt(s, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) != 0)
		privilege_die("identify network namespace");
	close(s);
	return cookie;
}

/* Nobody but us can write on it, a supervisor that comes later included. */
static void gate_make_board(struct gate *g)
{
	const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	struct board *b;

	g->board_file = memfd_create("board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (g->board_file < 0 || ftruncate(g->board_file, BOARD_SIZE) != 0)
		privilege_die("make board");
	b = mmap(NULL, BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, g->board_file, 0);
	if (b == MAP_FAILED)
		privilege_die("map board");
	if (fcntl(g->board_file, F_ADD_SEALS, seals) != 0)
		privilege_die("seal board");
	b->magic = BOARD_MAGIC;
	b->version = BOARD_VERSION;
	b->own = g->cookie;
	b->host = gate_cookie();
	b->born = g->born;
	b->datagrams = g->datagrams;
	g->board = b;
}

static void gate_take(struct gate *g)
{
	bool door = g->door >= 0;

	g->control = GATE_FD_CONTROL;
	g->listener = GATE_FD_LISTENER;
	g->kill = door ? -1 : GATE_FD_END;
	g->netns = door ? GATE_FD_NETNS : -1;
	if (syscall(SYS_close_range, door ? GATE_FD_NETNS + 1 : GATE_FD_NETNS, ~0U, 0) != 0)
		privilege_die("close descriptors");
	/* Here and not by who has bound it: so SO_PEERCRED tells who knocks that it
	 * is us. */
	if (door && listen(g->door, GATE_BACKLOG) != 0)
		privilege_die("listen at door");
	gate_make_board(g);
}

void gate_start(struct gate *g)
{
	const uint64_t keep = 1ull << PRIVILEGE_CAP_SYS_PTRACE;
	sigset_t all;

	gate_take(g);
	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) != 0)
		privilege_die("block signals");
	privilege_drop_bounding(keep);
	setfsgid(g->gid);
	setfsuid(g->uid);
	privilege_drop_capabilities(keep);
	privilege_seal();
	if (syscall(SYS_close_range, 0, 2, 0) != 0)
		privilege_die("close descriptors");
}
