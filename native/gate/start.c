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

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GATE_FD_CONTROL = 3, GATE_FD_LISTENER, GATE_FD_BOARD, GATE_FD_KILL, GATE_FDS };

struct gate gate;

static const char gate_usage_text[] = "usage: tsugiki-gate --uid N --gid N --own INODE "
				      "[--report], control socket, seccomp "
				      "listener, board and cgroup.kill at 3 to 6\n";

void gate_arguments(struct gate *g, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--report") == 0) {
			g->report = true;
		} else if (strcmp(argv[i], "--own") == 0) {
			g->own = privilege_number(argv[++i], gate_usage_text);
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

static void gate_take(struct gate *g)
{
	socklen_t length = sizeof(g->board->host);
	struct stat st;
	int s;

	g->control = GATE_FD_CONTROL;
	g->listener = GATE_FD_LISTENER;
	g->kill = GATE_FD_KILL;
	g->board_file = GATE_FD_BOARD;
	if (fstat(GATE_FD_BOARD, &st) != 0)
		privilege_die("look at board");
	g->board = mmap(NULL, BOARD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, GATE_FD_BOARD, 0);
	if (g->board == MAP_FAILED)
		privilege_die("map board");
	if (st.st_size != BOARD_SIZE || g->board->magic != BOARD_MAGIC ||
	    g->board->version != BOARD_VERSION) {
		errno = EINVAL;
		privilege_die("read board");
	}
	s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0 || getsockopt(s, SOL_SOCKET, SO_NETNS_COOKIE, &g->board->host, &length) != 0)
		privilege_die("identify network namespace");
	close(s);
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
	if (syscall(SYS_close_range, GATE_FDS, ~0U, 0) != 0 ||
	    syscall(SYS_close_range, 0, 2, 0) != 0)
		privilege_die("close descriptors");
}
