/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gate, its start and its readers of memory share, and what it says to
 * its supervisor. The Go side is package gate.
 */
#ifndef TSUGIKI_GATE_H
#define TSUGIKI_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../rules/board.h"

#define GATE_VERSION 2

/* 5.14; a C library may not know it. */
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

enum gate_call {
	GATE_HELLO, /* the first message: the gate is ready */
	GATE_SOCKET,
	GATE_CONNECT,
	GATE_BIND,
	GATE_LISTEN,
	GATE_SEND,
	GATE_SETSOCKOPT, /* of AF_GRAFT sockets, or what may be one */
	GATE_GETSOCKOPT,
	GATE_GETSOCKNAME,
};

/* The family of the sockets that programs bind to endpoints by name. */
#define GATE_AF_GRAFT  4
#define GATE_ARGUMENTS 6

/*
 * A call that the supervisor has to answer, or, if `answered` is set, one that
 * the gate has answered and tells of because it was asked to.
 */
struct gate_ask {
	uint32_t version;
	uint32_t call;
	uint64_t id; /* of the notification */
	uint32_t thread;
	int32_t number; /* the descriptor; the family of a socket */
	int32_t backlog;
	uint32_t answered;
	uint32_t length; /* of the address */
	uint8_t address[BOARD_ADDRESS_MAX];
	uint64_t args[GATE_ARGUMENTS]; /* as the program passed them */
};

_Static_assert(sizeof(struct gate_ask) == 112, "ask has no padding");

struct gate {
	int control;
	int listener;
	int kill;	/* cgroup.kill of the container */
	int board_file; /* for programs that ask for it */
	struct board *board;
	uint64_t own; /* inode of the program's namespace in nsfs */
	bool report;
	uint32_t uid; /* of the program, for the files' owner */
	uint32_t gid;
};

/* Reads the command line; a usage error ends the process. */
void gate_arguments(struct gate *g, int argc, char **argv);

/*
 * Takes what the process was given and gives up everything else. Any failure
 * ends the process.
 */
void gate_start(struct gate *g);

/* What socket(2) is asked for, or false if it is nothing that is born here. */
struct gate_kind {
	int family;
	int type;
	int protocol;
	bool nonblock;
	bool close_on_exec;
};

bool gate_kind_of(unsigned int born, int family, int type, int protocol, struct gate_kind *kind);

#endif
