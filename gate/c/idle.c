// SPDX-License-Identifier: Apache-2.0
/* What is done for a gate that has no process (see gatepool.c). */
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

struct lodger *porter_lodgers;
unsigned int porter_lates;

void porter_close(int *file)
{
	if (*file >= 0)
		close(*file);
	*file = -1;
}

void porter_close_all(int *files, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		porter_close(&files[i]);
}

bool porter_watch(struct lodger *l, int file, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = l};

	return epoll_ctl(PORTER_EVENTS, EPOLL_CTL_ADD, file, &e) == 0;
}

void porter_ignore(int file)
{
	(void)epoll_ctl(PORTER_EVENTS, EPOLL_CTL_DEL, file, NULL);
}

bool porter_listen(struct lodger *l)
{
	return porter_watch(l, l->files[GATE_FILE_LISTENER], EPOLLIN) &&
	       porter_watch(l, l->files[GATE_FILE_DOOR], EPOLLIN) &&
	       (!l->supervised || porter_watch(l, l->files[GATE_FILE_CONTROL], EPOLLIN));
}

void porter_unlisten(struct lodger *l)
{
	porter_ignore(l->files[GATE_FILE_LISTENER]);
	porter_ignore(l->files[GATE_FILE_DOOR]);
	if (l->supervised)
		porter_ignore(l->files[GATE_FILE_CONTROL]);
}

void porter_set_late(struct lodger *l, bool late)
{
	porter_lates += late;
	porter_lates -= l->late;
	l->late = late;
}

void porter_dismiss(struct lodger *l)
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

bool porter_settles(struct lodger *l)
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
