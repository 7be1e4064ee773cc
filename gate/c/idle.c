// SPDX-License-Identifier: Apache-2.0
/* The work of the pool for a gate without a process (see gatepool.c). */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <poll.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "messages.h"
#include "stats.h"

unsigned int idle_retries;

static struct pooled_gate *idle_table;
static size_t idle_room; /* entries of the table */
static size_t idle_used; /* entries that were ever used: the others cost no memory */

bool idle_make_table(void)
{
	struct rlimit limit;
	void *memory;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return false;
	idle_room = limit.rlim_cur / GATE_FILES;
	memory = mmap(NULL, idle_room * sizeof(*idle_table), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	idle_table = memory;
	return memory != MAP_FAILED;
}

struct pooled_gate *idle_next(struct pooled_gate *p)
{
	for (p = p == NULL ? idle_table : p + 1; p < idle_table + idle_used; p++)
		if (p->state != POOLED_NOT)
			return p;
	return NULL;
}

struct pooled_gate *idle_find_free(void)
{
	for (size_t i = 0; i < idle_used; i++)
		if (idle_table[i].state == POOLED_NOT)
			return &idle_table[i];
	return idle_used < idle_room ? &idle_table[idle_used++] : NULL;
}

void idle_set_state(struct pooled_gate *p, enum pooled_state state)
{
	atomic_signal_fence(memory_order_seq_cst);
	p->state = state;
	atomic_signal_fence(memory_order_seq_cst);
}

void idle_close_file(int *file)
{
	if (*file >= 0)
		close(*file);
	*file = -1;
}

void idle_close_files(int *files, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		idle_close_file(&files[i]);
}

bool idle_make_events(void)
{
	int file = epoll_create1(EPOLL_CLOEXEC);
	bool made = file >= 0 && dup2(file, POOL_FD_EVENTS) >= 0;

	if (file >= 0)
		close(file);
	return made;
}

bool idle_watch_file(void *p, int file, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = p};

	return epoll_ctl(POOL_FD_EVENTS, EPOLL_CTL_ADD, file, &e) == 0;
}

void idle_ignore_file(int file)
{
	(void)epoll_ctl(POOL_FD_EVENTS, EPOLL_CTL_DEL, file, NULL);
}

static bool idle_watch_files(struct pooled_gate *p)
{
	return idle_watch_file(p, p->files[GATE_FILE_LISTENER], EPOLLIN) &&
	       idle_watch_file(p, p->files[GATE_FILE_ADOPT_SOCKET], EPOLLIN) &&
	       (!p->supervised || idle_watch_file(p, p->files[GATE_FILE_CONTROL], EPOLLIN));
}

void idle_watch(struct pooled_gate *p)
{
	if (idle_watch_files(p))
		return;
	idle_ignore(p);
	idle_set_retry(p, true);
}

void idle_ignore(struct pooled_gate *p)
{
	idle_ignore_file(p->files[GATE_FILE_LISTENER]);
	idle_ignore_file(p->files[GATE_FILE_ADOPT_SOCKET]);
	if (p->supervised)
		idle_ignore_file(p->files[GATE_FILE_CONTROL]);
}

void idle_set_retry(struct pooled_gate *p, bool retry)
{
	idle_retries += retry;
	idle_retries -= p->retry;
	p->retry = retry;
}

/* Frees an entry whose files are closed. */
static void idle_free(struct pooled_gate *p)
{
	if (p->gate.board != NULL)
		munmap(p->gate.board, BOARD_SIZE);
	idle_set_state(p, POOLED_NOT);
}

void idle_remove(struct pooled_gate *p)
{
	idle_set_state(p, POOLED_PARTLY);
	idle_set_retry(p, false);
	idle_close_files(p->files, GATE_FILES);
	idle_close_file(&p->cgroup);
	idle_close_file(&p->errors);
	idle_close_file(&p->process);
	idle_free(p);
}

/* The kind of the first order in a supervisor's queue. */
enum idle_order { IDLE_NOTHING, IDLE_STATS, IDLE_OTHER, IDLE_GONE };

static enum idle_order idle_next_order(int control, struct gate_order *order)
{
	ssize_t got = recv(control, order, sizeof(*order), MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

	if (got < 0 && errno == EAGAIN)
		return IDLE_NOTHING;
	/* The end has an event of its own. Messages before the end may still be there. */
	if (got <= 0)
		return gate_has(control, POLLHUP) ? IDLE_GONE : IDLE_OTHER;
	if (got == sizeof(*order) && order->version == GATE_VERSION &&
	    order->op == GATE_ORDER_STATS)
		return IDLE_STATS;
	return IDLE_OTHER;
}

/* Carries out an order that needs no gate process; false if the order needs one. */
static bool idle_obeys(struct pooled_gate *p)
{
	int control = p->files[GATE_FILE_CONTROL];
	struct gate_order order;

	switch (idle_next_order(control, &order)) {
	case IDLE_STATS:
		if (!gate_say_stats(p->gate.board, control, order.tag, MSG_DONTWAIT))
			return false; /* a gate process can wait until there is room */
		(void)recv(control, &order, sizeof(order), MSG_DONTWAIT);
		return true;
	case IDLE_GONE:
		idle_ignore_file(control);
		p->supervised = false;
		atomic_store(&p->gate.board->traced, 0); /* nobody receives reports */
		atomic_store(&p->gate.board->names_peers, 0);
		return true;
	default:
		return false;
	}
}

bool idle_settles(struct pooled_gate *p)
{
	if (!gate_has(p->files[GATE_FILE_LISTENER], POLLHUP))
		return p->supervised && idle_obeys(p);
	if (p->supervised &&
	    !gate_say_bye(p->gate.board, p->files[GATE_FILE_CONTROL], MSG_DONTWAIT) &&
	    (errno == EAGAIN || errno == ENOBUFS))
		return false;
	idle_ignore(p);
	idle_remove(p);
	return true;
}

/* Forgets the files that do not count in the entry's state, because they may be closed. */
static void idle_recover_files(struct pooled_gate *p)
{
	p->theirs = -1;
	if (p->state == POOLED_IDLE)
		p->process = -1;
	if (p->state == POOLED_WORKING)
		p->errors = -1;
	for (int i = 0; p->state == POOLED_WORKING && i < GATE_FILES; i++)
		p->files[i] = -1;
	idle_retries += p->retry;
	/* The killed pool may have been about to start a process. */
	(void)madvise(p->gate.board, BOARD_SIZE, MADV_DONTFORK);
}

/* Lowers LEAST to FILE, if that is at least FROM. */
static void idle_lower(int *least, int file, int from)
{
	if (file >= from && file < *least)
		*least = file;
}

/* Returns the lowest descriptor of all gates that is not below FROM; INT_MAX if there is none. */
static int idle_least_file(int from)
{
	int least = INT_MAX;

	for (struct pooled_gate *p = idle_next(NULL); p != NULL; p = idle_next(p)) {
		idle_lower(&least, p->cgroup, from);
		idle_lower(&least, p->errors, from);
		idle_lower(&least, p->process, from);
		for (int i = 0; i < GATE_FILES; i++)
			idle_lower(&least, p->files[i], from);
	}
	return least;
}

/* Closes the files that no gate has. */
static void idle_close_others(void)
{
	int from = POOL_FD_FREE, least;

	while ((least = idle_least_file(from)) != INT_MAX) {
		if (least > from)
			(void)syscall(SYS_close_range, from, least - 1, 0);
		from = least + 1;
	}
	(void)syscall(SYS_close_range, from, ~0U, 0);
}

/* Finds out whether a gate that was being started has a process, or has had one. */
static void idle_recover_start(struct pooled_gate *p)
{
	char byte;

	if (!gate_has(p->process, POLLHUP) ||
	    recv(p->process, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0) {
		idle_set_state(p, POOLED_WORKING);
		idle_close_files(p->files, GATE_FILES);
		idle_close_file(&p->errors);
	} else {
		idle_set_state(p, POOLED_IDLE);
		idle_close_file(&p->process);
	}
}

void idle_recover(void)
{
	idle_retries = 0;
	for (struct pooled_gate *p = idle_next(NULL); p != NULL; p = idle_next(p))
		if (p->state == POOLED_PARTLY)
			idle_free(p);
		else
			idle_recover_files(p);
	idle_close_others();
	for (struct pooled_gate *p = idle_next(NULL); p != NULL; p = idle_next(p)) {
		if (p->state == POOLED_STARTING)
			idle_recover_start(p);
		/* The agent sends a new gate that has not greeted again. */
		if (p->state == POOLED_WORKING ? !idle_watch_file(p, p->process, 0)
					       : p->errors >= 0)
			idle_remove(p);
		else if (p->state == POOLED_IDLE)
			idle_watch(p);
	}
}
