/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the agent whose CPU time this is. */
#ifndef LOGGER_ANNOUNCE_H
#define LOGGER_ANNOUNCE_H

#include <sys/types.h>
#include <time.h>

#include "options.h"

struct announce {
	const struct options *options;
	int fd;	     /* of a request that is not answered; -1: none */
	time_t next; /* when to look again */
	int tries;   /* since the agent is there */
	/* The agent's socket where it was heard: its number, 0 for none, and its age. */
	ino_t known_to;
	struct timespec known_since;
};

void announce_begin(struct announce *a, const struct options *o);

/* Called when there is something to log: asks, or asks again, where it is time to. It
 * never waits. */
void announce_try(struct announce *a);

/* Called when a->fd is readable. */
void announce_answer(struct announce *a);

#endif
