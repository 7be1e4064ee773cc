/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait in the gate for a connection of a listener. */
#ifndef TSUGIKI_GATE_WAITING_H
#define TSUGIKI_GATE_WAITING_H

#include <stdbool.h>
#include <stdint.h>

#include "worker.h"

/* A call that waits. */
struct gate_waiting {
	bool used;
	bool watched; /* the supervisor looks for signals */
	struct seccomp_notif n;
	struct gate_request request;
	int listener;
	uint64_t cookie; /* of the listener */
	uint64_t turn;	 /* in which the calls came */
	uint64_t came;
	uint64_t end; /* of its time; 0: it has no limit */
};

/* Calls that may wait at a time, each on a listener of its own. The supervisor keeps further ones.
 */
#define GATE_WAITING_MAX 256

/* The listeners that have connections, by their cookies. */
struct gate_ready {
	unsigned int count;
	uint64_t cookies[GATE_WAITING_MAX];
};

/* Keeps the call in W, and a listener, until the listener has a connection. Returns false if there
 * is no room. */
bool gate_wait_on(struct gate_worker *w, int listener);

/* Whether any call waits. */
bool gate_waits(void);

/*
 * Waits for a notification, or for connections, but no longer than until the calls that wait have
 * to be looked after, which it does. Returns whether there may be a notification.
 */
bool gate_waiting_poll(struct gate_worker *w, struct gate_ready *ready);

/* Takes the first call of a listener out, with the listener. W is to answer it. Returns false if
 * none waits. */
bool gate_waiting_take(struct gate_worker *w, uint64_t cookie, struct gate_waiting *call);

/* Puts it back, in its turn. Returns false if there is no room. */
bool gate_waiting_keep(const struct gate_waiting *call);

/* Forgets calls whose callers do not wait any more, with their listeners. */
void gate_waiting_forget(void);

#endif
