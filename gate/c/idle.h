/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates that a porter has, and what is done for one that has no process. It reads orders of
 * the supervisor, and no more of a container than whether there is something to read.
 */
#ifndef TSUGIKI_GATE_IDLE_H
#define TSUGIKI_GATE_IDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "gate.h"
#include "protocol.h"

/* Descriptors of the porter; in a gate's process, of GATE_FILES and the line from the first
 * one on. Files that come have higher numbers. */
enum { PORTER_FIRST = 3, PORTER_AGENT = PORTER_FIRST, PORTER_EVENTS, PORTER_LINE = 8, PORTER_FREE };

_Static_assert(PORTER_FIRST + GATE_FILES == PORTER_LINE, "a gate's files have these numbers");

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

extern struct lodger *porter_lodgers;
extern unsigned int porter_lates; /* lodgers that are late */

/* Close a file, or COUNT of them, that are open, and forget them. */
void porter_close(int *file);
void porter_close_all(int *files, unsigned int count);

/* Have the porter woken by EVENTS of a file, or no more. L comes with the event. */
bool porter_watch(struct lodger *l, int file, uint32_t events);
void porter_ignore(int file);

/* Waits for whatever the gate would have to do. */
bool porter_listen(struct lodger *l);
void porter_unlisten(struct lodger *l);

void porter_set_late(struct lodger *l, bool late);

/* Lets go of a gate. What it held is closed, if it was the porter that held it. */
void porter_dismiss(struct lodger *l);

/* Does what needs no gate: the end of the container, what the supervisor asks for and its end.
 * Returns whether nothing else is to be done. */
bool porter_settles(struct lodger *l);

#endif
