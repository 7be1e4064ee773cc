/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates of the pool, and the pool's work for a gate without a process. The pool reads orders of
 * the supervisor. Of a container it learns only whether there is something to read.
 *
 * The pool can be killed between any two instructions, and its spare goes on with the same memory
 * and descriptors (spare.c). So each entry of the table has a state, which says what its fields
 * mean. The files of a state are open before the state is set, and are closed after another state
 * is set.
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
	POOL_FD_SELF,  /* the process that is the pool (pidfd_open(2)) */
	POOL_FD_SPARE, /* the process that goes on if the pool is killed */
	POOL_FD_KEPT,  /* a file that the pool keeps for the next agent, which takes it (kept.go) */
	POOL_FD_POOL = 8,
	POOL_FD_FREE
};

_Static_assert(POOL_FD_FIRST + GATE_FILES == POOL_FD_POOL, "a gate's files have these numbers");

enum pooled_state {
	POOLED_NOT,	 /* the entry is free; no field counts */
	POOLED_PARTLY,	 /* the gate is being admitted or removed; only the board counts */
	POOLED_IDLE,	 /* the pool has its files */
	POOLED_STARTING, /* the same, and a process may have them by now */
	POOLED_WORKING,	 /* a process has them */
};

struct pooled_gate {
	enum pooled_state state;
	struct gate gate;      /* except its files, which have other numbers there */
	int files[GATE_FILES]; /* unless it is working */
	int cgroup;
	int errors;  /* for the message why it could not start; -1 after the start */
	int process; /* a socket to its process, while it is starting or working */
	int theirs;  /* the other end, while it is starting */
	bool supervised;
	bool retry; /* its process could not be started */
};

extern unsigned int idle_retries; /* gates whose process could not be started */

/* Makes the table. There is room for as many gates as there may be descriptors for. */
bool idle_make_table(void);

/* Returns the gate after P in the table, or the first one if P is NULL; NULL after the last. */
struct pooled_gate *idle_next(struct pooled_gate *p);

/* Returns a free entry, or NULL. */
struct pooled_gate *idle_find_free(void);

void idle_set_state(struct pooled_gate *p, enum pooled_state state);

/* Close a file, or COUNT of them, that are open, and forget them. */
void idle_close_file(int *file);
void idle_close_files(int *files, unsigned int count);

/* Makes the file POOL_FD_EVENTS, by which the pool waits. */
bool idle_make_events(void);

/* Begin and end to wait for EVENTS of a file. P comes with the event. */
bool idle_watch_file(void *p, int file, uint32_t events);
void idle_ignore_file(int file);

/* Begin and end to wait for work for the gate. The epolls of a user can be full (ENOSPC), and a
 * container of root can fill root's. Then the gate counts as one whose process could not be
 * started. */
void idle_watch(struct pooled_gate *p);
void idle_ignore(struct pooled_gate *p);

void idle_set_retry(struct pooled_gate *p, bool retry);

/* Removes a gate. Its descriptors are closed, if the pool has them. */
void idle_remove(struct pooled_gate *p);

/* Does the work that needs no process: statistics, the end of the supervisor, the end of the
 * container. Returns whether no other work is left. */
bool idle_settles(struct pooled_gate *p);

/* Restores the table and the descriptors of a killed pool to a state between two events, and
 * watches the descriptors. An action that the killed pool had begun counts as not begun, unless a
 * gate has a process already. */
void idle_recover(void);

#endif
