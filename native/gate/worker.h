/* SPDX-License-Identifier: Apache-2.0 */
/* What the gate's threads and what they do for a notification share. */
#ifndef TSUGIKI_GATE_WORKER_H
#define TSUGIKI_GATE_WORKER_H

#include <linux/seccomp.h>
#include <stdatomic.h>

#include "gate.h"

/* What a thread keeps from one notification to the next. */
struct gate_worker {
	/* Counts up when a notification is picked up and again when it has been
	 * handled: odd while at work. */
	atomic_uint turn;
	/* Between the watchdog and the thread: */
	atomic_bool given_up; /* another has taken over; end after this one */
	atomic_bool free;     /* nobody uses this slot */
	unsigned int seen;    /* turn at the last tick; the watchdog's own */

	struct seccomp_notif n;
	/* The last caller's pidfd: it refers to that thread for good, so that a
	 * reused id fails instead of reaching somebody else. */
	uint32_t thread;
	int pidfd;
};

extern struct gate gate;

/* Answers the notification in W, or asks the supervisor to. */
void gate_handle(struct gate_worker *w);

/* Starts to serve, and to look after the supervisor. */
void gate_start_threads(void);

/* Looks after the threads for ever. */
_Noreturn void gate_watch(void);

#endif
