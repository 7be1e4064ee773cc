// SPDX-License-Identifier: Apache-2.0
/*
 * The keeper gives up its privileges before it sends anything to its supervisor. The order matters:
 * the bounding set needs CAP_SETPCAP, the ids need theirs, so the capabilities themselves go late,
 * and the system calls after them; stderr is closed when nothing can fail any more.
 */
#define _GNU_SOURCE
#include "../../native/privilege/privilege.h"
#include "calls.h"
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char keeper_usage_text[] = "usage: tsugiki-keeper [--kill] [--uid N --gid N], "
					"control socket at 3, eventfd at 4, cgroup.kill at 5\n";

static _Noreturn void keeper_usage(void)
{
	privilege_say(keeper_usage_text);
	_exit(2);
}

void keeper_arguments(struct keeper *k, int argc, char **argv)
{
	bool uid = false, gid = false;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--kill") == 0) {
			k->kill = 5;
		} else if (strcmp(argv[i], "--uid") == 0 && !uid) {
			k->uid = privilege_number(argv[++i], keeper_usage_text);
			uid = true;
		} else if (strcmp(argv[i], "--gid") == 0 && !gid) {
			k->gid = privilege_number(argv[++i], keeper_usage_text);
			gid = true;
		} else {
			keeper_usage();
		}
	}
	if (uid != gid)
		keeper_usage();
	k->change_ids = uid;
}

static void keeper_check_fds(const struct keeper *k)
{
	int type = 0;
	socklen_t length = sizeof(type);

	if (getsockopt(k->control, SOL_SOCKET, SO_TYPE, &type, &length) != 0)
		privilege_die("use control socket");
	if (type != SOCK_SEQPACKET) {
		errno = EPROTOTYPE;
		privilege_die("use control socket");
	}
	if (fcntl(k->returned, F_GETFL) < 0)
		privilege_die("use eventfd");
	if (k->kill >= 0) {
		int flags = fcntl(k->kill, F_GETFL);

		if (flags < 0)
			privilege_die("use cgroup.kill");
		if ((flags & O_ACCMODE) == O_RDONLY) {
			errno = EBADF;
			privilege_die("use cgroup.kill");
		}
	}
}

/*
 * The keeper ends with its supervisor, not with the terminal or the session. Signals that cannot be
 * ignored (SIGKILL) or belong to the C library are refused and left alone. Faults are left alone
 * too, because they would only occur again.
 */
static void keeper_ignore_signals(void)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP, 0};

	for (int sig = 1; sig < NSIG; sig++) {
		bool fault = false;

		for (const int *f = faults; *f != 0; f++)
			fault = fault || *f == sig;
		if (!fault)
			(void)signal(sig, SIG_IGN);
	}
}

/* The soft limit bounds the numbers that epoll can be served with. */
static void keeper_raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		privilege_die("read file limit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		privilege_die("raise file limit");
}

static void keeper_drop_privileges(const struct keeper *k)
{
	if (prctl(PR_SET_DUMPABLE, 0) != 0)
		privilege_die("become undumpable");
	privilege_drop_bounding(0);
	if (k->change_ids) {
		if (setgroups(0, NULL) != 0)
			privilege_die("drop groups");
		if (setresgid(k->gid, k->gid, k->gid) != 0)
			privilege_die("become group");
		if (setresuid(k->uid, k->uid, k->uid) != 0)
			privilege_die("become user");
	}
	privilege_drop_capabilities(0);
	privilege_seal();
}

static void keeper_close_others(const struct keeper *k)
{
	unsigned int first = k->kill < 0 ? 5 : 6;

	if (syscall(SYS_close_range, first, ~0U, 0) != 0 || syscall(SYS_close_range, 0, 2, 0) != 0)
		privilege_die("close descriptors");
}

void keeper_start(const struct keeper *k)
{
	keeper_check_fds(k);
	keeper_ignore_signals();
	keeper_raise_file_limit();
	keeper_drop_privileges(k);
	privilege_confine(keeper_calls, sizeof(keeper_calls) / sizeof(*keeper_calls));
	keeper_close_others(k);
}
