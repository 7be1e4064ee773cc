// SPDX-License-Identifier: Apache-2.0
/*
 * The porter keeps the gates of an agent's containers while they have nothing to do.
 *
 * Theory of operation
 *
 * A gate is a process of its container's own, in its cgroup, because it reads what hostile
 * programs have written. Most containers make no new connection for minutes, and a
 * process that waits costs about 140 KiB. So a gate that has nothing to do ends, and
 * hands what it held (enum gate_file) to the porter, which waits in its place:
 *
 *	agent, once		admission: files of a new container
 *	a call, an order,	fork into the container's cgroup; the child is the gate,
 *	a knock at the door	and the files are its own alone from then on
 *	nothing for a while	the gate hands them back, and ends
 *
 * The porter reads nothing that a container writes, neither calls nor memory: it only
 * learns that there is something. Children are not executed anew, for they have to inherit
 * the board: it can be mapped for writing only before it is sealed. Each inherits its own
 * (MADV_DONTFORK), and closes all other files before it looks at anything.
 *
 * What a gate that ends does not hand back is closed with it: its container has ended, or it was
 * killed, as the agent sees. The porter outlives the agent, as gates do, and ends when
 * it has neither an agent nor a gate.
 *
 * Calls that come meanwhile are not lost: a notification waits in the kernel until it is
 * received, an order in the socket.
 */
#define _GNU_SOURCE
#include "gatepool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../native/privilege/privilege.h"
#include "admission.h"
#include "calls.h"
#include "fork.h"
#include "idle.h"
#include "messages.h"

/* After how long a gate is tried again that could not be started: processes may end. */
#define PORTER_AGAIN_MS 100

/* What the porter's processes need: to enter cgroups of others, to be whom the program is, and
 * what gates do. */
#define PORTER_CAP_DAC_OVERRIDE 1
#define PORTER_CAP_SETGID	6
#define PORTER_CAP_SETUID	7
#define PORTER_CAP_SETPCAP	8
#define PORTER_KEEP                                                                                \
	(1ull << PORTER_CAP_DAC_OVERRIDE | 1ull << PORTER_CAP_SETGID | 1ull << PORTER_CAP_SETUID | \
	 1ull << PORTER_CAP_SETPCAP | 1ull << PRIVILEGE_CAP_SYS_PTRACE)

static bool porter_alone; /* the agent is gone */
/* Receives a message that is whole. */
static bool porter_receive(int from, struct gate_message *m)
{
	if (!gate_receive(from, m))
		return false;
	if (m->length > 0 && !m->cut)
		return true;
	gate_close_files(m);
	return false;
}

/* The process of a gate has ended. */
static void porter_line_ended(struct lodger *l)
{
	struct gate_message m;
	struct gate_rest rest;
	bool whole;

	porter_ignore(l->line);
	if (!porter_receive(l->line, &m)) {
		porter_dismiss(l);
		return;
	}
	memcpy(&rest, m.bytes, sizeof(rest));
	whole = m.length == sizeof(rest) && rest.version == GATE_VERSION && m.count == GATE_FILES;
	if (!whole) {
		gate_close_files(&m);
		porter_dismiss(l);
		return;
	}
	porter_close(&l->line);
	memcpy(l->files, m.files, sizeof(l->files));
	l->supervised = rest.supervised != 0;
	if (!porter_listen(l)) {
		porter_unlisten(l);
		porter_dismiss(l);
	}
}

/* Something has come for a gate that rests. */
static struct lodger *porter_called(struct lodger *l)
{
	if (porter_settles(l))
		return NULL;
	porter_unlisten(l);
	return porter_wake_kept(l);
}

static struct lodger *porter_hear_agent(void)
{
	struct gate_message m;

	if (porter_receive(PORTER_AGENT, &m))
		return porter_admit(&m);
	if (gate_has(PORTER_AGENT, POLLHUP)) {
		porter_ignore(PORTER_AGENT);
		porter_alone = true;
	}
	return NULL;
}

/* Tries those again that could not be woken. */
static struct lodger *porter_try_again(void)
{
	struct lodger *l, *next;

	for (l = porter_lodgers; l != NULL; l = next) {
		next = l->next;
		if (l->late && !porter_settles(l) && porter_wake_kept(l) != NULL)
			return l;
	}
	return NULL;
}

static void porter_take_descriptors(void)
{
	struct rlimit limit;

	/* All files that come are to have higher numbers than a gate's. */
	for (int i = PORTER_FIRST + 1; i < PORTER_FREE; i++)
		if (dup2(PORTER_AGENT, i) < 0)
			privilege_die("reserve descriptors");
	if (syscall(SYS_close_range, PORTER_FREE, ~0U, 0) != 0)
		privilege_die("close descriptors");
	close(PORTER_EVENTS);
	if (epoll_create1(EPOLL_CLOEXEC) != PORTER_EVENTS)
		privilege_die("make epoll");
	if (!porter_watch(NULL, PORTER_AGENT, EPOLLIN))
		privilege_die("watch agent");
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void porter_start(void)
{
	sigset_t all;

	porter_take_descriptors();
	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) != 0 || signal(SIGCHLD, SIG_IGN) == SIG_ERR)
		privilege_die("block signals");
	(void)prctl(PR_SET_NAME, "tsugiki-porter");
	privilege_drop_bounding(PORTER_KEEP);
	privilege_drop_capabilities(PORTER_KEEP);
	privilege_seal();
	porter_confine();
	/* Who reads what the agent prints is not to wait for us: standard input is /dev/null. */
	if (dup2(STDIN_FILENO, STDERR_FILENO) < 0)
		privilege_die("let go of standard error");
}

/* Waits for an event, at most until those that are late are tried again. */
static bool porter_wait(struct epoll_event *e)
{
	static struct timespec last;
	struct timespec now;
	int64_t left = -1;

	if (porter_lates > 0) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		left = PORTER_AGAIN_MS - (now.tv_sec - last.tv_sec) * 1000 -
		       (now.tv_nsec - last.tv_nsec) / 1000000;
		if (left <= 0) {
			last = now;
			return false;
		}
	}
	return epoll_wait(PORTER_EVENTS, e, 1, (int)left) == 1;
}

/* One event. Returns the gate that is to be, in the process that is to be it. */
static struct lodger *porter_turn(void)
{
	struct epoll_event e;
	struct lodger *l;

	if (!porter_wait(&e))
		return porter_lates > 0 ? porter_try_again() : NULL;
	l = e.data.ptr;
	if (l == NULL)
		return porter_hear_agent();
	if (l->line < 0)
		return porter_called(l);
	porter_line_ended(l);
	return NULL;
}

struct gate_life gate_porter(struct gate *g)
{
	struct lodger *l;

	porter_start();
	while ((l = porter_turn()) == NULL)
		if (porter_alone && porter_lodgers == NULL)
			_exit(0);
	porter_move_in(l, g);
	return (struct gate_life){.first = l->errors >= 0, .supervised = l->supervised};
}
