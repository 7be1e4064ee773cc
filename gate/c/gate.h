/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one process of a gate. */
#ifndef TSUGIKI_GATE_GATE_H
#define TSUGIKI_GATE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../policy/c/board.h"

/* Linux 5.14; a C library may not have it. */
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

struct gate {
	int control;
	int listener;
	int kill;	  /* cgroup.kill of the container, or -1 */
	int adopt_socket; /* listens for the next supervisor, or -1 */
	int netns;	  /* the program's network namespace, for the next supervisor; or -1 */
	int board_file;	  /* for programs that ask for it */
	int pool;	  /* a socket to the gate pool, or -1 */
	struct board *board;
	uint64_t own; /* inode of the program's namespace in nsfs */
	uint64_t cookie;
	uint32_t host_first; /* BOARD_HOST_FIRST_ */
	bool datagrams;
	uint32_t untrapped;    /* BOARD_UNTRAPPED_ */
	uint32_t virtual_pool; /* of the board */
	uint32_t uid;	       /* of the program, for the owner of sockets */
	uint32_t gid;
	uint32_t idle_ms; /* how long a gate of the pool is idle before it exits */
	uint32_t keep_ms; /* how long the pool keeps its file without an agent and gates; 0: it has
			     none */
	bool stops;	  /* for tests: the gate stops before it hands over (SIGSTOP) */
};

/* The gate of this process. */
extern struct gate gate;

/* Makes the board. Only processes that have the board mapped by then can ever write to it. */
bool gate_make_board(struct gate *g);

#endif
