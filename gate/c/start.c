// SPDX-License-Identifier: Apache-2.0
/*
 * The start of a gate: it takes the files that it was given, and gives up everything else. It keeps
 * CAP_SYS_PTRACE, without which it could not read the memory and take the descriptors of programs
 * that have capabilities. It keeps root's user id, so that a program of another user cannot signal
 * it. The program's user owns the sockets that it makes, for the host firewall's owner match.
 */
#define _GNU_SOURCE
#include "start.h"

#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../native/privilege/privilege.h"
#include "calls.h"

enum { GATE_FD_CONTROL = 3, GATE_FD_LISTENER, GATE_FD_KILL };

static const char gate_usage_text[] =
	"usage: tsugiki-gate --uid N --gid N --own INODE --cookie N [--host-first4] "
	"[--host-first6] "
	"[--datagrams] [--untrapped [--untrapped-port-0] [--translated FIRST [--relayed]]], "
	"control "
	"socket at 3, "
	"seccomp listener "
	"at 4, cgroup.kill at 5; or "
	"tsugiki-gate --pool IDLE-MS KEEP-MS, control socket at 3, a file to keep at 4 unless "
	"KEEP-MS is 0\n";

static bool gate_flag(struct gate *g, const char *name)
{
	if (strcmp(name, "--host-first4") == 0)
		g->host_first |= BOARD_HOST_FIRST_4;
	else if (strcmp(name, "--host-first6") == 0)
		g->host_first |= BOARD_HOST_FIRST_6;
	else if (strcmp(name, "--datagrams") == 0)
		g->datagrams = true;
	else if (strcmp(name, "--untrapped") == 0)
		g->untrapped |= BOARD_UNTRAPPED_DESTINATIONS;
	else if (strcmp(name, "--untrapped-port-0") == 0)
		g->untrapped |= BOARD_UNTRAPPED_PORT_0;
	else if (strcmp(name, "--relayed") == 0)
		g->untrapped |= BOARD_RELAYED;
	else
		return false;
	return true;
}

bool gate_is_pool(struct gate *g, int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "--pool") != 0)
		return false;
	g->idle_ms = privilege_number(argv[2], gate_usage_text);
	g->keep_ms = privilege_number(argv[3], gate_usage_text);
	g->stops = argc > 4 && strcmp(argv[4], "--stop-before-handover") == 0;
	return true;
}

static void gate_take(struct gate *g)
{
	g->control = GATE_FD_CONTROL;
	g->listener = GATE_FD_LISTENER;
	g->kill = GATE_FD_KILL;
	g->adopt_socket = g->netns = g->pool = -1;
	if (syscall(SYS_close_range, GATE_FD_KILL + 1, ~0U, 0) != 0)
		privilege_die("close descriptors");
	if (!gate_make_board(g))
		privilege_die("make board");
}

void gate_arguments(struct gate *g, int argc, char **argv)
{
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
		} else if (strcmp(argv[i], "--translated") == 0) {
			g->untrapped |= BOARD_TRANSLATED;
			g->virtual_pool = privilege_number(argv[++i], gate_usage_text);
		} else {
			privilege_say(gate_usage_text);
			_exit(2);
		}
	}
	gate_take(g);
}

void gate_give_up(const struct gate *g)
{
	const uint64_t keep = 1ull << PRIVILEGE_CAP_SYS_PTRACE;
	sigset_t all;

	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) != 0)
		privilege_die("block signals");
	privilege_drop_bounding(keep);
	setfsgid(g->gid);
	setfsuid(g->uid);
	privilege_drop_capabilities(keep);
	privilege_seal();
	gate_confine(gate.untrapped & BOARD_TRANSLATED);
	if (syscall(SYS_close_range, 0, 2, 0) != 0)
		privilege_die("close descriptors");
}
