/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates of the pool, and what the pool does for one that has no process. It reads orders of
 * the supervisor. Of a container it learns only whether there is something to read.
 */
#ifndef TSUGIKI_GATE_IDLE_H
#define TSUGIKI_GATE_IDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "gate.h"
#include "protocol.h"

/* Descriptors of the pool. In the process of a gate, GATE_FILES begin at the first number, and
 * the socket to the pool follows. Received files have higher numbers. */
enum {
	POOL_FD_FIRST = 3,
	POOL_FD_AGENT = POOL_FD_FIRST,
	POOL_FD_EVENTS,
	POOL_FD_POOL = 8,
	POOL_FD_FREE
};

_Static_assert(POOL_FD_FIRST + GATE_FILES == POOL_FD_POOL, "a gate's files have these numbers");

struct pooled_gate {
	struct pooled_gate *next;
	struct gate gate;      /* but for its files, which have other numbers there */
	int files[GATE_FILES]; /* while it has no process */
	int cgroup;
	int errors;  /* where it says why it could not start; -1 once it has */
	int process; /* a socket to its process; -1 while it has none */
	bool supervised;
	bool retry; /* its process could not be started */
};

extern struct pooled_gate *pooled_gates;
extern unsigned int idle_retries; /* gates whose process could not be started */

/* Close a file, or COUNT of them, that are open, and forget them. */
void idle_close_file(int *file);
void idle_close_files(int *files, unsigned int count);

/* Begin and end to wait for EVENTS of a file. P comes with the event. */
bool idle_watch_file(struct pooled_gate *p, int file, uint32_t events);
void idle_ignore_file(int file);

/* Begin and end to wait for whatever the gate would have to do. */
bool idle_watch(struct pooled_gate *p);
void idle_ignore(struct pooled_gate *p);

void idle_set_retry(struct pooled_gate *p, bool retry);

/* Removes a gate. Its descriptors are closed, if the pool has them. */
void idle_remove(struct pooled_gate *p);

/* Does what needs no process: statistics, the end of the supervisor, the end of the container.
 * Returns whether nothing else is to be done. */
bool idle_settles(struct pooled_gate *p);

#endif
