/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Habits: where the TCP sockets of programs are connected to.
 *
 * Where sockets are made on the host first, one that is connected to the container's own namespace,
 * as to another container of its pod, has to be exchanged, which takes ten times as long as to make
 * one. So after some such connections in succession, the next sockets are made in the container's
 * own namespace. If one of them is connected to the host's side, it is exchanged too, and many more
 * are needed the next time: a program that goes both ways pays for few wrong guesses.
 *
 * A guess is no decision: all sockets are checked when they are connected.
 */
#ifndef TSUGIKI_HABIT_H
#define TSUGIKI_HABIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Of one process: what one program does changes no other's sockets. All zero at first. Threads may
 * share one: a change that is lost changes a guess. */
struct habit {
	_Atomic uint32_t run;	/* connections to the container's own namespace, in succession */
	_Atomic uint32_t wrong; /* guesses */
};

/* Whether the next socket is likely to be connected to the container's own namespace. */
bool habit_is_own(const struct habit *h);

/* Whether habit_note has to be told of a connection, by a socket that is IN_PLACE or not, to the
 * container's OWN namespace or to the host's side. */
bool habit_is_told(const struct habit *h, bool own, bool in_place);
void habit_note(struct habit *h, bool own, bool in_place);

#endif
