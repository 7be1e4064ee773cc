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

/* Whether the caller still waits: else what was got by its id was another's. */
bool gate_valid(const struct seccomp_notif *n);

/* Reads the caller's memory; returns how many bytes there were before the first that
 * is not mapped. */
size_t gate_read(const struct seccomp_notif *n, uint64_t from, void *to, size_t size);

/* The namespace of a descriptor of the caller; 0 if it is no socket. BOUND, unless
 * it is NULL, is set to whether it has a port. */
uint64_t gate_netns_of(struct gate_worker *w, int number, bool *bound);

/* A duplicate of a descriptor of the caller, or -1. */
int gate_file_of(struct gate_worker *w, int number);

/* Makes a socket. Fails as socket(2), and with EXDEV if the kernel programs do not
 * police it: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Answers an order of sockets with how many were sent; 0 if there are none. */
unsigned int gate_batch(struct gate_worker *w);

/* Starts to serve, and to look after the supervisor. */
void gate_start_threads(void);

/* Looks after the threads for ever. */
_Noreturn void gate_watch(void);

#endif
