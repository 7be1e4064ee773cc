// SPDX-License-Identifier: Apache-2.0
/* What the pool does for a gate that has no process (see gatepool.c). */
#define _GNU_SOURCE
#include "idle.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "messages.h"
#include "stats.h"

struct pooled_gate *pooled_gates;
unsigned int idle_retries;

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

bool idle_watch_file(struct pooled_gate *p, int file, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = p};

	return epoll_ctl(POOL_FD_EVENTS, EPOLL_CTL_ADD, file, &e) == 0;
}

void idle_ignore_file(int file)
{
	(void)epoll_ctl(POOL_FD_EVENTS, EPOLL_CTL_DEL, file, NULL);
}

bool idle_watch(struct pooled_gate *p)
{
	return idle_watch_file(p, p->files[GATE_FILE_LISTENER], EPOLLIN) &&
	       idle_watch_file(p, p->files[GATE_FILE_ADOPT_SOCKET], EPOLLIN) &&
	       (!p->supervised || idle_watch_file(p, p->files[GATE_FILE_CONTROL], EPOLLIN));
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

void idle_remove(struct pooled_gate *p)
{
	struct pooled_gate **at = &pooled_gates;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	idle_retries -= p->retry;
	if (p->gate.board != NULL)
		munmap(p->gate.board, BOARD_SIZE);
	idle_close_files(p->files, GATE_FILES);
	idle_close_file(&p->cgroup);
	idle_close_file(&p->errors);
	idle_close_file(&p->process);
	free(p);
}

/* What is first in the queue of a supervisor's orders. */
enum idle_order { IDLE_NOTHING, IDLE_STATS, IDLE_OTHER, IDLE_GONE };

static enum idle_order idle_next_order(int control, struct gate_order *order)
{
	ssize_t got = recv(control, order, sizeof(*order), MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

	if (got < 0 && errno == EAGAIN)
		return IDLE_NOTHING;
	/* An end has an event of its own; what is left to read may come before it. */
	if (got <= 0)
		return gate_has(control, POLLHUP) ? IDLE_GONE : IDLE_OTHER;
	if (got == sizeof(*order) && order->version == GATE_VERSION &&
	    order->op == GATE_ORDER_STATS)
		return IDLE_STATS;
	return IDLE_OTHER;
}

/* What needs no gate of what the supervisor wants; false if it needs one. */
static bool idle_obeys(struct pooled_gate *p)
{
	int control = p->files[GATE_FILE_CONTROL];
	struct gate_order order;

	switch (idle_next_order(control, &order)) {
	case IDLE_STATS:
		if (!gate_say_stats(p->gate.board, control, order.tag, MSG_DONTWAIT))
			return false; /* a gate waits until there is room */
		(void)recv(control, &order, sizeof(order), MSG_DONTWAIT);
		return true;
	case IDLE_GONE:
		idle_ignore_file(control);
		p->supervised = false;
		atomic_store(&p->gate.board->traced, 0); /* there is nobody to be told */
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
