/* SPDX-License-Identifier: Apache-2.0 */
/* The state that a serving thread keeps from one notification to the next. */
#ifndef TSUGIKI_GATE_WORKER_H
#define TSUGIKI_GATE_WORKER_H

#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

#define GATE_THREADS_MAX 64

/* Threads that a serving thread knows at a time. */
#define GATE_CALLERS 16

/* A thread that has called. */
struct gate_caller {
	uint32_t thread; /* its id; 0: there is none */
	/* It refers to that thread for good, so that a reused id fails instead of reaching another
	 * thread. */
	int pidfd;
	/* The file of its memory, or -1. */
	int memory;
	/* The first and the last notification with which this file was asked for. */
	uint64_t first_asked, last_asked;
	/* A connect(2) that the gate has begun, and whose answer the caller did not get. */
	bool lost;
	struct seccomp_data lost_call;
};

/* The process that has answered a notification. */
enum gate_outcome {
	GATE_BY_NOBODY, /* the caller is gone */
	GATE_BY_GATE,
	GATE_BY_GATE_REFUSED,
	GATE_BY_SUPERVISOR, /* or will */
};

/* The state of a serving thread. */
struct gate_worker {
	/* Counts up when a notification is picked up and again when it has been
	 * handled: odd while at work. */
	atomic_uint turn;
	/* Between the watchdog and the thread: */
	atomic_bool given_up; /* another thread has taken over; end after this notification */
	atomic_bool used;     /* this slot belongs to a thread */
	atomic_int id;	      /* of that thread, once it runs */
	atomic_bool waits; /* for room among the pending requests: another thread would wait too */
	unsigned int seen; /* turn at the last tick; the watchdog's own */

	/* The notification that gets sockets, while the thread has descriptors of these sockets
	 * too; else 0. See gate_await_deliveries. */
	_Atomic uint64_t delivers;

	struct seccomp_notif n;
	struct gate_request request; /* to the supervisor, if there is one */
	enum gate_outcome outcome;
	struct gate_caller callers[GATE_CALLERS];
	unsigned int last; /* of these, the one that has called last */
};

extern struct gate_worker gate_workers[GATE_THREADS_MAX];

#endif
