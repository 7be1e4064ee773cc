// SPDX-License-Identifier: Apache-2.0
/* Starts the processes of gates (see gatepool.c). */
#define _GNU_SOURCE
#include "fork.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../native/privilege/privilege.h"

void fork_take_files(struct pooled_gate *p, struct gate *g)
{
	for (int i = 0; i < GATE_FILES; i++)
		if (dup2(p->files[i], POOL_FD_FIRST + i) < 0)
			privilege_die("take files");
	if (dup2(p->theirs, POOL_FD_POOL) < 0 ||
	    (p->errors >= 0 && dup2(p->errors, STDERR_FILENO) < 0) ||
	    syscall(SYS_close_range, POOL_FD_FREE, ~0U, 0) != 0)
		privilege_die("take files");
	p->gate.idle_ms = g->idle_ms;
	p->gate.stops = g->stops;
	*g = p->gate;
	g->control = POOL_FD_FIRST + GATE_FILE_CONTROL;
	g->listener = POOL_FD_FIRST + GATE_FILE_LISTENER;
	g->adopt_socket = POOL_FD_FIRST + GATE_FILE_ADOPT_SOCKET;
	g->netns = POOL_FD_FIRST + GATE_FILE_NETNS;
	g->board_file = POOL_FD_FIRST + GATE_FILE_BOARD;
	g->pool = POOL_FD_POOL;
	g->kill = -1;
	(void)prctl(PR_SET_NAME, "tsugiki-gate");
}

/* Forks into the cgroup of a gate, which inherits what is its own. */
static pid_t fork_into_cgroup(const struct pooled_gate *p)
{
	struct clone_args args = {
		.flags = CLONE_INTO_CGROUP,
		.exit_signal = SIGCHLD,
		.cgroup = (uint64_t)p->cgroup,
	};
	pid_t pid;

	madvise(p->gate.board, BOARD_SIZE, MADV_DOFORK);
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		return 0;
	madvise(p->gate.board, BOARD_SIZE, MADV_DONTFORK);
	return pid;
}

struct pooled_gate *fork_start(struct pooled_gate *p)
{
	int ends[2], error;
	pid_t pid = -1;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
		idle_set_retry(p, true);
		return NULL;
	}
	p->process = ends[0];
	p->theirs = ends[1];
	idle_set_state(p, POOLED_STARTING);
	if (idle_watch_file(p, p->process, 0 /* its end alone */))
		pid = fork_into_cgroup(p);
	if (pid == 0)
		return p;
	error = errno;
	idle_set_state(p, pid < 0 ? POOLED_IDLE : POOLED_WORKING);
	idle_close_file(&p->theirs);
	idle_set_retry(p, pid < 0);
	if (pid < 0) {
		idle_ignore_file(p->process);
		idle_close_file(&p->process);
		errno = error;
		return NULL;
	}
	idle_close_files(p->files, GATE_FILES);
	idle_close_file(&p->errors);
	return NULL;
}

struct pooled_gate *fork_restart(struct pooled_gate *p)
{
	if (fork_start(p) != NULL)
		return p;
	if (p->retry && errno == ENODEV)
		idle_remove(p);
	return NULL;
}
