/* SPDX-License-Identifier: Apache-2.0 */
/* How a process becomes a keeper. */
#ifndef TSUGIKI_KEEPER_START_H
#define TSUGIKI_KEEPER_START_H

#include <stdbool.h>
#include <sys/types.h>

struct keeper {
	int control;
	int returned;	 /* eventfd: the supervisor has taken lent sockets */
	int kill;	 /* -1 if there is none */
	bool change_ids; /* whether uid and gid were given */
	uid_t uid;
	gid_t gid;
};

/* Reads the command line; a usage error ends the process. */
void keeper_arguments(struct keeper *k, int argc, char **argv);

/*
 * Checks what the process was given and gives up everything else: privileges,
 * descriptors, signals. Any failure ends the process.
 */
void keeper_start(const struct keeper *k);

#endif
