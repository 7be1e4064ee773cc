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
#include "porter.h"

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
#include "calls.h"
#include "messages.h"
#include "orders.h"
#include "stats.h"

/* Descriptors of the porter; in a gate's process, of GATE_FILES and the line from the first
 * one on. Files that come have higher numbers. */
enum { PORTER_FIRST = 3, PORTER_AGENT = PORTER_FIRST, PORTER_EVENTS, PORTER_LINE = 8, PORTER_FREE };

_Static_assert(PORTER_FIRST + GATE_FILES == PORTER_LINE, "a gate's files have these numbers");

/* After how long a gate is tried again that could not be started: processes may end. */
#define PORTER_AGAIN_MS 100

/* Descriptors for what comes in a message, and what else is open for a moment. */
#define PORTER_SPARE 32

/* Of those that may knock at once; one is let in. */
#define PORTER_BACKLOG 8

/* What the porter's processes need: to enter cgroups of others, to be whom the program is, and
 * what gates do. */
#define PORTER_CAP_DAC_OVERRIDE 1
#define PORTER_CAP_SETGID	6
#define PORTER_CAP_SETUID	7
#define PORTER_CAP_SETPCAP	8
#define PORTER_KEEP                                                                                \
	(1ull << PORTER_CAP_DAC_OVERRIDE | 1ull << PORTER_CAP_SETGID | 1ull << PORTER_CAP_SETUID | \
	 1ull << PORTER_CAP_SETPCAP | 1ull << PRIVILEGE_CAP_SYS_PTRACE)

struct lodger {
	struct lodger *next;
	struct gate gate;      /* but for its files, which have other numbers there */
	int files[GATE_FILES]; /* while it rests */
	int cgroup;
	int errors; /* where it says why it could not start; -1 once it has */
	int line;   /* to its process; -1 while it rests */
	bool supervised;
	bool late; /* it could not be woken */
};

static struct lodger *porter_lodgers;
static bool porter_alone;	  /* the agent is gone */
static unsigned int porter_lates; /* lodgers that are late */

static void porter_close(int *file)
{
	if (*file >= 0)
		close(*file);
	*file = -1;
}

static void porter_close_all(int *files, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		porter_close(&files[i]);
}

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

static bool porter_watch(struct lodger *l, int file, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = l};

	return epoll_ctl(PORTER_EVENTS, EPOLL_CTL_ADD, file, &e) == 0;
}

static void porter_ignore(int file)
{
	(void)epoll_ctl(PORTER_EVENTS, EPOLL_CTL_DEL, file, NULL);
}

/* Waits for whatever the gate would have to do. */
static bool porter_listen(struct lodger *l)
{
	return porter_watch(l, l->files[GATE_FILE_LISTENER], EPOLLIN) &&
	       porter_watch(l, l->files[GATE_FILE_DOOR], EPOLLIN) &&
	       (!l->supervised || porter_watch(l, l->files[GATE_FILE_CONTROL], EPOLLIN));
}

static void porter_unlisten(struct lodger *l)
{
	porter_ignore(l->files[GATE_FILE_LISTENER]);
	porter_ignore(l->files[GATE_FILE_DOOR]);
	if (l->supervised)
		porter_ignore(l->files[GATE_FILE_CONTROL]);
}

static void porter_set_late(struct lodger *l, bool late)
{
	porter_lates += late;
	porter_lates -= l->late;
	l->late = late;
}

/* Lets go of a gate. What it held is closed, if it was the porter that held it. */
static void porter_dismiss(struct lodger *l)
{
	struct lodger **at = &porter_lodgers;

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	porter_lates -= l->late;
	if (l->gate.board != NULL)
		munmap(l->gate.board, BOARD_SIZE);
	porter_close_all(l->files, GATE_FILES);
	porter_close(&l->cgroup);
	porter_close(&l->errors);
	porter_close(&l->line);
	free(l);
}

/* The files of a gate that begins or goes on, as in struct gate. */
static void porter_move_in(struct lodger *l, struct gate *g)
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

/* Starts the gate's process, and returns the gate in that one. If it cannot be started, it is
 * late. */
static struct lodger *porter_wake(struct lodger *l)
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

/* What is first in the queue of a supervisor's orders. */
enum porter_order { PORTER_NONE, PORTER_STATS, PORTER_OTHER, PORTER_GONE };

static enum porter_order porter_look(int control, struct gate_order *order)
{
	ssize_t got = recv(control, order, sizeof(*order), MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

	if (got < 0 && errno == EAGAIN)
		return PORTER_NONE;
	/* An end has an event of its own; what is left to read may come before it. */
	if (got <= 0)
		return gate_has(control, POLLHUP) ? PORTER_GONE : PORTER_OTHER;
	if (got == sizeof(*order) && order->version == GATE_VERSION &&
	    order->op == GATE_ORDER_STATS)
		return PORTER_STATS;
	return PORTER_OTHER;
}

/* What needs no gate of what the supervisor wants; false if it needs one. */
static bool porter_obeys(struct lodger *l)
{
	int control = l->files[GATE_FILE_CONTROL];
	struct gate_order order;

	switch (porter_look(control, &order)) {
	case PORTER_STATS:
		if (!gate_say_stats(l->gate.board, control, order.tag, MSG_DONTWAIT))
			return false; /* a gate waits until there is room */
		(void)recv(control, &order, sizeof(order), MSG_DONTWAIT);
		return true;
	case PORTER_GONE:
		porter_ignore(control);
		l->supervised = false;
		atomic_store(&l->gate.board->traced, 0); /* there is nobody to be told */
		return true;
	default:
		return false;
	}
}

/* Does what needs no gate: the end of the container, what the supervisor asks for and its end. */
static bool porter_settles(struct lodger *l)
{
	if (!gate_has(l->files[GATE_FILE_LISTENER], POLLHUP))
		return l->supervised && porter_obeys(l);
	if (l->supervised &&
	    !gate_say_bye(l->gate.board, l->files[GATE_FILE_CONTROL], MSG_DONTWAIT) &&
	    (errno == EAGAIN || errno == ENOBUFS))
		return false;
	porter_unlisten(l);
	porter_dismiss(l);
	return true;
}

/* The same for a gate that has been there: where its cgroup is gone, nobody is left. */
static struct lodger *porter_wake_kept(struct lodger *l)
{
	if (porter_wake(l) != NULL)
		return l;
	if (l->late && errno == ENODEV)
		porter_dismiss(l);
	return NULL;
}

/* Something has come for a gate that rests. */
static struct lodger *porter_called(struct lodger *l)
{
	if (porter_settles(l))
		return NULL;
	porter_unlisten(l);
	return porter_wake_kept(l);
}

/* Why a container that has just come has no gate. */
static void porter_refuse(struct lodger *l, const char *operation)
{
	if (l->errors >= 0)
		dprintf(l->errors, "%s: %s\n", operation, strerror(errno));
	porter_dismiss(l);
}

/* The files of an admission are in the order of GATE_FILES, between two others. */
static struct lodger *porter_register(const struct gate_admission *a, const int *files)
{
	struct lodger *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->errors = files[0];
	memcpy(l->files, &files[1], (GATE_FILES - 1) * sizeof(int));
	l->files[GATE_FILE_BOARD] = -1;
	l->cgroup = files[GATE_ADMISSION_FILES - 1];
	l->line = -1;
	l->supervised = true;
	l->gate = (struct gate){
		.own = a->own,
		.cookie = a->cookie,
		.born = a->born,
		.datagrams = a->datagrams,
		.uid = a->uid,
		.gid = a->gid,
	};
	l->next = porter_lodgers;
	porter_lodgers = l;
	return l;
}

/* Whether all gates that there are may rest at once, with files to spare: one that hands over what
 * there is no room for is lost. */
static bool porter_has_room(void)
{
	struct rlimit limit;
	rlim_t need = PORTER_SPARE;

	for (struct lodger *l = porter_lodgers; l != NULL; l = l->next)
		need += GATE_FILES + 2; /* the cgroup and the line */
	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && need <= limit.rlim_cur;
}

/* Makes what a gate keeps as long as there is its container. */
static bool porter_furnish(struct lodger *l)
{
	bool made;

	if (!porter_has_room()) {
		errno = EMFILE;
		return false;
	}
	made = gate_make_board(&l->gate);

	l->files[GATE_FILE_BOARD] = l->gate.board_file;
	return made && madvise(l->gate.board, BOARD_SIZE, MADV_DONTFORK) == 0 &&
	       listen(l->files[GATE_FILE_DOOR], PORTER_BACKLOG) == 0;
}

/* A container comes. */
static struct lodger *porter_admit(struct gate_message *m)
{
	struct gate_admission a;
	int error = gate_admission_parse(m->bytes, m->length, m->count, &a);
	struct lodger *l = error == 0 ? porter_register(&a, m->files) : NULL;

	if (l == NULL) {
		gate_close_files(m);
		return NULL;
	}
	if (!porter_furnish(l)) {
		porter_refuse(l, "keep gate");
		return NULL;
	}
	if (porter_wake(l) != NULL)
		return l;
	if (l->late)
		porter_refuse(l, "start gate");
	return NULL;
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
