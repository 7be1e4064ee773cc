// SPDX-License-Identifier: Apache-2.0
/*
 * The gate pool: one process that holds the descriptors of idle gates.
 *
 * Theory of operation
 *
 * A gate is a process in the cgroup of its container, because it reads what hostile programs have
 * written. Most containers make no new connection for minutes, and a process that waits costs
 * about 140 KiB. So an idle gate exits. It hands its descriptors (enum gate_file) to the pool,
 * which waits in its place:
 *
 *	a message of the agent	admission: the descriptors of a new container
 *	a call, an order, the	the pool forks into the container's cgroup. The child is the
 *	next supervisor		gate. Only the child has the descriptors from then on.
 *	the gate is idle	the gate hands the descriptors back, and exits
 *
 * The pool reads nothing that a container writes, neither calls nor memory: it only learns that
 * there is something to read. A child does not execute the program again, because it has to
 * inherit the board: a board can be mapped for writing only before it is sealed. Each child
 * inherits only its own board (MADV_DONTFORK), and closes all other files before it looks at
 * anything.
 *
 * What a gate does not hand back is closed when its process ends. Then its container has ended, or
 * the gate was killed, and the agent sees the end of the control socket. The pool outlives the
 * agent, as gates do, and ends when it has neither an agent nor a gate.
 *
 * No call is lost meanwhile: a notification waits in the kernel until it is received, and an order
 * waits in the socket.
 */
#define _GNU_SOURCE
#include "gatepool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
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

/* How long after a failed start of a gate's process another is tried: processes may end. */
#define GATEPOOL_RETRY_MS 100

/* What the pool and its gates need: the pool forks into cgroups of other users and takes the
 * user of the program; gates read memory. */
#define GATEPOOL_CAP_DAC_OVERRIDE 1
#define GATEPOOL_CAP_SETGID	  6
#define GATEPOOL_CAP_SETUID	  7
#define GATEPOOL_CAP_SETPCAP	  8
#define GATEPOOL_KEEP                                                                              \
	(1ull << GATEPOOL_CAP_DAC_OVERRIDE | 1ull << GATEPOOL_CAP_SETGID |                         \
	 1ull << GATEPOOL_CAP_SETUID | 1ull << GATEPOOL_CAP_SETPCAP |                              \
	 1ull << PRIVILEGE_CAP_SYS_PTRACE)

static bool gatepool_agent_is_gone;
/* Receives a message that is whole. */
static bool gatepool_receive(int from, struct gate_message *m)
{
	if (!gate_receive(from, m))
		return false;
	if (m->length > 0 && !m->cut)
		return true;
	gate_close_files(m);
	return false;
}

/* The process of a gate has ended. */
static void gatepool_process_ended(struct pooled_gate *p)
{
	struct gate_message m;
	struct gate_handover handover;
	bool whole;

	idle_ignore_file(p->process);
	if (!gatepool_receive(p->process, &m)) {
		idle_remove(p);
		return;
	}
	memcpy(&handover, m.bytes, sizeof(handover));
	whole = m.length == sizeof(handover) && handover.version == GATE_VERSION &&
		m.count == GATE_FILES;
	if (!whole) {
		gate_close_files(&m);
		idle_remove(p);
		return;
	}
	idle_close_file(&p->process);
	memcpy(p->files, m.files, sizeof(p->files));
	p->supervised = handover.supervised != 0;
	if (!idle_watch(p)) {
		idle_ignore(p);
		idle_remove(p);
	}
}

/* Something has come for an idle gate. Returns the gate in its process. */
static struct pooled_gate *gatepool_wake(struct pooled_gate *p)
{
	if (idle_settles(p))
		return NULL;
	idle_ignore(p);
	return fork_restart(p);
}

static struct pooled_gate *gatepool_read_agent(void)
{
	struct gate_message m;

	if (gatepool_receive(POOL_FD_AGENT, &m))
		return admission_admit(&m);
	if (gate_has(POOL_FD_AGENT, POLLHUP)) {
		idle_ignore_file(POOL_FD_AGENT);
		gatepool_agent_is_gone = true;
	}
	return NULL;
}

/* Tries failed starts again. Returns the gate in its process. */
static struct pooled_gate *gatepool_retry(void)
{
	struct pooled_gate *p, *next;

	for (p = pooled_gates; p != NULL; p = next) {
		next = p->next;
		if (p->retry && !idle_settles(p) && fork_restart(p) != NULL)
			return p;
	}
	return NULL;
}

static void gatepool_take_descriptors(void)
{
	struct rlimit limit;

	/* All files that come are to have higher numbers than a gate's. */
	for (int i = POOL_FD_FIRST + 1; i < POOL_FD_FREE; i++)
		if (dup2(POOL_FD_AGENT, i) < 0)
			privilege_die("reserve descriptors");
	if (syscall(SYS_close_range, POOL_FD_FREE, ~0U, 0) != 0)
		privilege_die("close descriptors");
	close(POOL_FD_EVENTS);
	if (epoll_create1(EPOLL_CLOEXEC) != POOL_FD_EVENTS)
		privilege_die("make epoll");
	if (!idle_watch_file(NULL, POOL_FD_AGENT, EPOLLIN))
		privilege_die("watch agent");
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void gatepool_start(void)
{
	sigset_t all;

	gatepool_take_descriptors();
	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) != 0 || signal(SIGCHLD, SIG_IGN) == SIG_ERR)
		privilege_die("block signals");
	(void)prctl(PR_SET_NAME, "tsugiki-pool");
	privilege_drop_bounding(GATEPOOL_KEEP);
	privilege_drop_capabilities(GATEPOOL_KEEP);
	privilege_seal();
	gatepool_confine();
	/* Who reads what the agent prints is not to wait for us: standard input is /dev/null. */
	if (dup2(STDIN_FILENO, STDERR_FILENO) < 0)
		privilege_die("let go of standard error");
}

/* Waits for an event, at most until failed starts are tried again. */
static bool gatepool_wait(struct epoll_event *e)
{
	static struct timespec last;
	struct timespec now;
	int64_t left = -1;

	if (idle_retries > 0) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		left = GATEPOOL_RETRY_MS - (now.tv_sec - last.tv_sec) * 1000 -
		       (now.tv_nsec - last.tv_nsec) / 1000000;
		if (left <= 0) {
			last = now;
			return false;
		}
	}
	return epoll_wait(POOL_FD_EVENTS, e, 1, (int)left) == 1;
}

/* One event. Returns the gate that is to be, in the process that is to be it. */
static struct pooled_gate *gatepool_turn(void)
{
	struct epoll_event e;
	struct pooled_gate *p;

	if (!gatepool_wait(&e))
		return idle_retries > 0 ? gatepool_retry() : NULL;
	p = e.data.ptr;
	if (p == NULL)
		return gatepool_read_agent();
	if (p->process < 0)
		return gatepool_wake(p);
	gatepool_process_ended(p);
	return NULL;
}

struct gate_life gatepool_run(struct gate *g)
{
	struct pooled_gate *p;

	gatepool_start();
	while ((p = gatepool_turn()) == NULL)
		if (gatepool_agent_is_gone && pooled_gates == NULL)
			_exit(0);
	fork_take_files(p, g);
	return (struct gate_life){.first = p->errors >= 0, .supervised = p->supervised};
}
