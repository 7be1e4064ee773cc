// SPDX-License-Identifier: Apache-2.0
/*
 * The gate pool: one process that holds the descriptors of idle gates.
 *
 * Theory of operation
 *
 * A gate is a process in the cgroup of its container, because it reads data of hostile programs.
 * Most containers make no new connection for minutes, and a waiting process costs about 140 KiB. So
 * an idle gate exits. It hands its descriptors (enum gate_file) to the pool, which waits in its
 * place:
 *
 *	a message of the agent	admission: the descriptors of a new container
 *	a call, an order, the	the pool forks into the container's cgroup. The child is the
 *	next supervisor		gate. Only the child has the descriptors from then on.
 *	the gate is idle	the gate hands the descriptors back, and exits
 *
 * The pool reads no data of a container, neither calls nor memory: it only learns that there is
 * something to read. A child does not execute the program again, because it has to inherit the
 * board: a board can be mapped for writing only before it is sealed. Each child inherits only its
 * own board (MADV_DONTFORK), and closes all other files before it looks at anything.
 *
 * Descriptors that a gate does not hand back are closed when its process ends. Then its container
 * has ended, or the gate was killed, and the agent sees the end of the control socket. The pool
 * outlives the agent, as gates do, and ends when it has neither an agent nor a gate. If it is
 * killed, its spare goes on in its place (spare.c).
 *
 * The agent can give the pool a file to keep for the next agent: its socket for listeners. Then the
 * pool goes on for some time after its last gate: an engine starts containers again.
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
#include "spare.h"

/* The pause after a failed start of a gate's process: other processes may end meanwhile. */
#define GATEPOOL_RETRY_MS 100

/* The capabilities of the pool and its gates: the pool forks into cgroups of other users and takes
 * the user of the program; gates read memory. */
#define GATEPOOL_CAP_DAC_OVERRIDE 1
#define GATEPOOL_CAP_SETGID	  6
#define GATEPOOL_CAP_SETUID	  7
#define GATEPOOL_CAP_SETPCAP	  8
#define GATEPOOL_KEEP                                                                              \
	(1ull << GATEPOOL_CAP_DAC_OVERRIDE | 1ull << GATEPOOL_CAP_SETGID |                         \
	 1ull << GATEPOOL_CAP_SETUID | 1ull << GATEPOOL_CAP_SETPCAP |                              \
	 1ull << PRIVILEGE_CAP_SYS_PTRACE)

static bool gatepool_agent_is_gone;
static bool gatepool_keeps; /* the pool keeps a file for the next agent */

/* The gate of the process that BECOME is called in. */
static struct gate *gatepool_gate;
static void (*gatepool_become)(struct gate_life);

/* Marks an event of the spare process. */
static const char gatepool_spare;

/* Receives a message, and returns whether it is complete. */
static bool gatepool_receive(int from, struct gate_message *m, int flags)
{
	if (!gate_receive(from, m, flags))
		return false;
	if (m->length > 0 && !m->cut)
		return true;
	gate_close_files(m);
	return false;
}

/* The process of a gate has ended. Its message stays in the queue until the socket is closed, so
 * that the spare finds it if we are killed. */
static void gatepool_process_ended(struct pooled_gate *p)
{
	struct gate_message m;
	struct gate_handover handover;
	bool whole;

	idle_ignore_file(p->process);
	if (!gatepool_receive(p->process, &m, MSG_PEEK)) {
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
	memcpy(p->files, m.files, sizeof(p->files));
	p->supervised = handover.supervised != 0;
	idle_set_state(p, POOLED_IDLE);
	idle_close_file(&p->process);
	idle_watch(p);
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

	if (gatepool_receive(POOL_FD_AGENT, &m, 0)) {
		if (m.length != 1)
			return admission_admit(&m);
		gate_close_files(&m);
		gatepool_keeps = false;
		return NULL;
	}
	if (gate_has(POOL_FD_AGENT, POLLHUP)) {
		idle_ignore_file(POOL_FD_AGENT);
		gatepool_agent_is_gone = true;
	}
	return NULL;
}

/* Tries failed starts again. Returns the gate in its process. */
static struct pooled_gate *gatepool_retry(void)
{
	struct pooled_gate *p;

	for (p = idle_next(NULL); p != NULL; p = idle_next(p)) {
		if (p->retry && !idle_settles(p) && fork_restart(p) != NULL)
			return p;
	}
	return NULL;
}

static void gatepool_take_descriptors(void)
{
	struct rlimit limit;

	/* The second file is the one that the pool keeps for the agent, unless the agent says that
	 * there is none. */
	gatepool_keeps = gatepool_gate->keep_ms > 0 && dup2(POOL_FD_AGENT + 1, POOL_FD_KEPT) >= 0;

	/* All received files get higher numbers than a gate's files. */
	for (int i = POOL_FD_FIRST + 1; i < POOL_FD_FREE; i++)
		if (!(gatepool_keeps && i == POOL_FD_KEPT) && dup2(POOL_FD_AGENT, i) < 0)
			privilege_die("reserve descriptors");
	if (syscall(SYS_close_range, POOL_FD_FREE, ~0U, 0) != 0)
		privilege_die("close descriptors");
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (!idle_make_table())
		privilege_die("make table");
}

/* Begins to wait for events from outside. */
static void gatepool_watch(void)
{
	if (!idle_make_events() ||
	    (!gatepool_agent_is_gone && !idle_watch_file(NULL, POOL_FD_AGENT, EPOLLIN)))
		privilege_die("watch agent");
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
	/* A reader of the agent's output must not wait for us: standard input is /dev/null. */
	if (dup2(STDIN_FILENO, STDERR_FILENO) < 0)
		privilege_die("let go of standard error");
}

static int64_t gatepool_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns the milliseconds until the process ends for lack of work; -1 if it has work. */
static int64_t gatepool_until_end(void)
{
	static int64_t empty; /* since when the pool is empty; 0 if it is not */
	int64_t left = 0;

	if (!gatepool_agent_is_gone || idle_next(NULL) != NULL) {
		empty = 0;
		return -1;
	}
	if (empty == 0)
		empty = gatepool_now_ms();
	if (gatepool_keeps)
		left = empty + gatepool_gate->keep_ms - gatepool_now_ms();
	return left > 0 ? left : 0;
}

/* Waits for an event, at most until failed starts are tried again. */
static bool gatepool_wait(struct epoll_event *e)
{
	static int64_t last;
	int64_t left = gatepool_until_end(), now;

	if (idle_retries > 0 || !spare_is_there()) {
		now = gatepool_now_ms();
		left = GATEPOOL_RETRY_MS - (now - last);
		if (left <= 0) {
			last = now;
			return false;
		}
	}
	return epoll_wait(POOL_FD_EVENTS, e, 1, (int)left) == 1;
}

static void gatepool_watch_spare(void)
{
	if (spare_is_there())
		(void)idle_watch_file((void *)&gatepool_spare, POOL_FD_SPARE, EPOLLIN);
}

static void gatepool_take_over(void);

static void gatepool_start_spare(void)
{
	(void)spare_start(gatepool_take_over);
	gatepool_watch_spare();
}

static void gatepool_spare_ended(void)
{
	idle_ignore_file(POOL_FD_SPARE);
	spare_ended();
	gatepool_start_spare();
}

/* Handles one event. In a new process of a gate, returns the gate. */
static struct pooled_gate *gatepool_turn(void)
{
	struct epoll_event e;
	struct pooled_gate *p;

	if (!gatepool_wait(&e)) {
		if (!spare_is_there())
			gatepool_start_spare();
		return idle_retries > 0 ? gatepool_retry() : NULL;
	}
	p = e.data.ptr;
	if (p == NULL)
		return gatepool_read_agent();
	if (e.data.ptr == &gatepool_spare)
		gatepool_spare_ended();
	else if (p->state == POOLED_IDLE)
		return gatepool_wake(p);
	else
		gatepool_process_ended(p);
	return NULL;
}

/* Ends the process if nothing is left to keep. */
static void gatepool_end(void)
{
	if (gatepool_until_end() == 0)
		_exit(0);
}

static _Noreturn void gatepool_serve(void)
{
	struct pooled_gate *p;

	while ((p = gatepool_turn()) == NULL)
		gatepool_end();
	fork_take_files(p, gatepool_gate);
	gatepool_become((struct gate_life){.first = p->errors >= 0, .supervised = p->supervised});
	_exit(1);
}

/* The spare goes on as the pool. It starts the next spare before it does anything else. */
static void gatepool_take_over(void)
{
	gatepool_end();
	(void)prctl(PR_SET_NAME, "tsugiki-pool");
	(void)spare_start(gatepool_take_over);
	gatepool_watch();
	gatepool_watch_spare();
	idle_recover();
	gatepool_serve();
}

_Noreturn void gatepool_run(struct gate *g, void (*become)(struct gate_life))
{
	gatepool_gate = g;
	gatepool_become = become;
	gatepool_start();
	gatepool_watch();
	gatepool_start_spare();
	gatepool_serve();
}
