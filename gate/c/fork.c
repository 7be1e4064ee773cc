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

void porter_move_in(struct lodger *l, struct gate *g)
{
	for (int i = 0; i < GATE_FILES; i++)
		if (dup2(l->files[i], PORTER_FIRST + i) < 0)
			privilege_die("take files");
	if (dup2(l->line, PORTER_LINE) < 0 ||
	    (l->errors >= 0 && dup2(l->errors, STDERR_FILENO) < 0) ||
	    syscall(SYS_close_range, PORTER_FREE, ~0U, 0) != 0)
		privilege_die("take files");
	l->gate.rest_ms = g->rest_ms;
	l->gate.stops = g->stops;
	*g = l->gate;
	g->control = PORTER_FIRST + GATE_FILE_CONTROL;
	g->listener = PORTER_FIRST + GATE_FILE_LISTENER;
	g->door = PORTER_FIRST + GATE_FILE_DOOR;
	g->netns = PORTER_FIRST + GATE_FILE_NETNS;
	g->board_file = PORTER_FIRST + GATE_FILE_BOARD;
	g->porter = PORTER_LINE;
	g->kill = -1;
	(void)prctl(PR_SET_NAME, "tsugiki-gate");
}

/* Forks into the cgroup of a gate, which inherits what is its own. */
static pid_t porter_fork(const struct lodger *l)
{
	struct clone_args args = {
		.flags = CLONE_INTO_CGROUP,
		.exit_signal = SIGCHLD,
		.cgroup = (uint64_t)l->cgroup,
	};
	pid_t pid;

	madvise(l->gate.board, BOARD_SIZE, MADV_DOFORK);
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		return 0;
	madvise(l->gate.board, BOARD_SIZE, MADV_DONTFORK);
	return pid;
}

struct lodger *porter_wake(struct lodger *l)
{
	int line[2];
	pid_t pid = -1;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0) {
		porter_set_late(l, true);
		return NULL;
	}
	l->line = line[1];
	if (porter_watch(l, line[0], 0 /* its end alone */))
		pid = porter_fork(l);
	if (pid == 0)
		return l;
	close(line[1]);
	l->line = line[0];
	porter_set_late(l, pid < 0);
	if (pid < 0) {
		int error = errno;

		porter_ignore(l->line);
		porter_close(&l->line);
		errno = error;
		return NULL;
	}
	porter_close_all(l->files, GATE_FILES);
	porter_close(&l->errors);
	return NULL;
}

struct lodger *porter_wake_kept(struct lodger *l)
{
	if (porter_wake(l) != NULL)
		return l;
	if (l->late && errno == ENODEV)
		porter_dismiss(l);
	return NULL;
}
