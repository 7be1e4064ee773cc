/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait in the gate for a connection of a listener, or for the name of its peer. */
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
	bool accepted;	 /* it has a connection, and waits for the name of the peer */
	bool named;	 /* which has come: */
	uint32_t name;	 /* an IPv4 address, in network order */
	int file;	 /* the listener, or the connection */
	uint64_t cookie; /* of the listener; 0: it waits for a name */
	uint64_t turn;	 /* in which the calls came */
	uint64_t came;
	uint64_t end; /* of its time; 0: it has no limit */
};

/* Calls that may wait at a time, each on a listener of its own. The supervisor keeps further ones.
 */
#define GATE_WAITING_MAX 256

/* The listeners that have connections, by their cookies, and whether a name has come. */
struct gate_ready {
	bool named;
	unsigned int count;
	uint64_t cookies[GATE_WAITING_MAX];
};

/* Keeps the call in W, and a listener, until the listener has a connection. Returns false if there
 * is no room. */
bool gate_wait_on(struct gate_worker *w, int listener);

/* Keeps the call in W, and its connection, until the peer has a name. Returns false if there is no
 * room, or if nobody tells names. */
bool gate_wait_for_name(struct gate_worker *w, int connection);

/* The name for the request with this id has come. */
void gate_name_came(uint64_t id, uint32_t name);

/* Takes a call with a name out, with the connection. W is to answer it. Returns false if there is
 * none. */
bool gate_waiting_take_named(struct gate_worker *w, struct gate_waiting *call);

/* Before all others, once. */
void gate_waiting_start(void);

/* Whether any call waits. */
bool gate_waits(void);

/*
 * Waits for a notification, for connections, or for names, but no longer than until the calls that
 * wait have to be looked after, which it does. Returns whether there may be a notification.
 */
bool gate_waiting_poll(struct gate_worker *w, struct gate_ready *ready);

/* Takes the first call of a listener out, with the listener. W is to answer it. Returns false if
 * none waits. */
bool gate_waiting_take(struct gate_worker *w, uint64_t cookie, struct gate_waiting *call);

/* Puts it back, in its turn. Returns false if there is no room. */
bool gate_waiting_keep(const struct gate_waiting *call);

/* Forgets calls whose callers do not wait any more, with their listeners and connections. */
void gate_waiting_forget(void);

#endif
