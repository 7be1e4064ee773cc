/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between gates, supervisors and the gate pool. They go over sockets that keep message
 * boundaries, on one machine: numbers are in the machine's byte order. The Go side is protocol.go
 * of package gate, whose test compares both.
 */
#ifndef TSUGIKI_GATE_PROTOCOL_H
#define TSUGIKI_GATE_PROTOCOL_H

#include <stdint.h>

#include "../../policy/c/board.h"

#define GATE_VERSION 6

enum gate_call {
	GATE_HELLO, /* the first message: the gate is ready; see gate_greet_next */
	GATE_SOCKET,
	GATE_CONNECT,
	GATE_BIND,
	GATE_LISTEN,
	GATE_SEND,
	GATE_SETSOCKOPT, /* of sockets that are or may be AF_GRAFT ones */
	GATE_GETSOCKOPT,
	GATE_GETSOCKNAME, /* and the names of peers: see enum gate_name */
	GATE_IOCTL,	  /* about the interfaces of a socket's namespace */
	GATE_OTHER,	  /* only counted: calls that do not concern the gate */
	GATE_CALLS,
	/* Messages that are no calls: */
	GATE_DONE = GATE_CALLS, /* the order `id` is carried out; `number` is an errno */
	GATE_STATS,		/* struct gate_stats; also comes right before GATE_BYE */
	GATE_BYE,		/* the last message: the container's last process has gone */
	GATE_TAKEN,		/* to a process that connects: there is a supervisor already */
	GATE_REFUSED,		/* to a process that connects: it may not supervise */
};

/* Whose name a GATE_GETSOCKNAME asks for. */
enum gate_name {
	GATE_NAME_OWN,
	GATE_NAME_PEER,	  /* getpeername(2) */
	GATE_NAME_ACCEPT, /* accept(2), accept4(2) */
	/* The same calls, where the gate has accepted a connection from `address`, and has no name
	 * for it: it waits for GATE_ORDER_NAME, and then answers. Or, if `number` is not -1, the
	 * program has the connection as that descriptor, and the supervisor answers. */
	GATE_NAME_ACCEPTED,
	/* The same calls, which the gate answers: the supervisor only looks for signals meanwhile.
	 */
	GATE_NAME_WAITS,
};

#define GATE_ARGUMENTS 6

/*
 * A call that the supervisor has to answer, or, if `answered` is set, one that the gate has
 * answered and reports, because the supervisor traces. With `again`, a former supervisor may have
 * begun to answer it.
 */
struct gate_request {
	uint32_t version;
	uint32_t call;
	uint64_t id; /* of the notification */
	uint32_t thread;
	int32_t number; /* the descriptor; the family of a socket */
	int32_t backlog;
	uint8_t answered;
	uint8_t again;
	uint8_t narrow;	      /* the caller's ABI has words of 32 bits */
	uint8_t name;	      /* enum gate_name */
	uint16_t length;      /* of the address */
	uint8_t wants_memory; /* the gate wants GATE_ORDER_MEMORY for the caller */
	uint8_t waits;	      /* accept(2) has waited for a connection, or would */
	uint8_t address[BOARD_ADDRESS_MAX];
	uint64_t args[GATE_ARGUMENTS]; /* as the program passed them */
};

_Static_assert(sizeof(struct gate_request) == 112, "request has no padding");

/* The orders of a supervisor. The gate answers each with GATE_DONE or GATE_STATS. */
enum gate_order_op {
	GATE_ORDER_SET = 1, /* `word` of the board to `value` */
	GATE_ORDER_RULES,   /* `value` bytes of rules, in the file that comes with it */
	GATE_ORDER_STATS,
	GATE_ORDER_END, /* the process ends at once, and says nothing */
	/* The file that comes with it is the memory of thread `word`, the caller of request `tag`.
	 * The gate does not answer. */
	GATE_ORDER_MEMORY,
	/* The peer of the request `tag` is called `value`, an IPv4 address in network order. The
	 * gate does not answer. */
	GATE_ORDER_NAME,
};

/* Those words of the board that a supervisor sets. */
enum gate_word {
	GATE_WORD_OWN_SOCKETS,
	GATE_WORD_SERVICES,
	GATE_WORD_AFGRAFT_SOCKETS,
	GATE_WORD_BOUND_CLIENTS,
	GATE_WORD_EXPECTS,
	GATE_WORD_TRACED,
	GATE_WORD_SERVED, /* adds the bits of `value` */
	GATE_WORD_NAMES_PEERS,
};

struct gate_order {
	uint32_t version;
	uint32_t op;
	uint64_t tag; /* comes back with the answer */
	uint32_t word;
	uint32_t value;
};

_Static_assert(sizeof(struct gate_order) == 24, "order has no padding");

/* Classes of times: below 2^N nanoseconds for N = 0, 1, ...; the last is for all longer times. */
#define GATE_TIMES 32

struct gate_call_stats {
	uint64_t answered; /* by the gate, including refused ones */
	uint64_t passed;   /* on to the supervisor */
	uint64_t refused;  /* with an errno of the gate */
	uint64_t time[GATE_TIMES];
};

struct gate_counters {
	struct gate_call_stats calls[GATE_CALLS];
	uint64_t batches; /* batches that shims have ordered and received */
	uint64_t batch_sockets;
	uint64_t single;     /* sockets that were made one at a time */
	uint64_t misses;     /* of these, sockets of which a shim had none left */
	uint64_t again;	     /* requests to a former supervisor that were sent again */
	uint64_t full;	     /* calls that had to wait for room in the table */
	uint64_t unreported; /* calls that a supervisor was too slow to receive */
};

_Static_assert(sizeof(struct gate_counters) <= BOARD_RULES - BOARD_COUNTERS, "they have room");

struct gate_stats {
	uint32_t version;
	uint32_t call; /* GATE_STATS */
	uint64_t tag;
	struct gate_counters counters;
};

/* The descriptors of a gate that the pool holds while the gate is idle. */
enum gate_file {
	GATE_FILE_CONTROL, /* socket to the supervisor, whose end may be closed */
	GATE_FILE_LISTENER,
	GATE_FILE_ADOPT_SOCKET,
	GATE_FILE_NETNS,
	GATE_FILE_BOARD,
	GATE_FILES,
};

/* The message of an idle gate that exits. It comes with the files of enum gate_file. */
struct gate_handover {
	uint32_t version;
	uint32_t supervised;
};

/* An agent's order to the pool to keep a gate. Its files are the one for error messages,
 * then GATE_FILE_CONTROL to GATE_FILE_NETNS, then the cgroup's directory. */
struct gate_admission {
	uint32_t version;
	uint32_t uid;
	uint32_t gid;
	uint32_t host_first;
	uint64_t own;
	uint64_t cookie;
	uint32_t datagrams;
	uint32_t untrapped;
	uint32_t virtual_pool;
	uint32_t zero;
};

#define GATE_ADMISSION_FILES 6

_Static_assert(sizeof(struct gate_admission) == 48, "admission has no padding");

#endif
