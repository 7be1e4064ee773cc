/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a supervisor and its keeper.
 *
 * They share one SOCK_SEQPACKET pair on one machine, so numbers are in the
 * machine's byte order and a message is exactly one struct. The keeper speaks
 * first (KEEPER_HELLO, tag 0), which proves its version and that it has given
 * up its privileges; then every request gets exactly one reply, in order,
 * with the request's op and tag.
 *
 *   op          request                   beside it      reply
 *   SOCKETS     family, type, protocol,   -              count
 *               count
 *   EPOLL_ADD   number, events, data      epoll, socket  -
 *   EPOLL_DEL   number                    epoll, socket  -
 *
 * The descriptors that SOCKETS counts come before the reply, all in one message
 * of one byte; the keeper has closed its own when it replies. No other message
 * has one byte or descriptors.
 *
 * The kernel counts descriptors in such messages against the user, on the whole machine, and a
 * container of the same user may have any number of them (ETOOMANYREFS). Then the keeper lends its
 * sockets: struct keeper_loan comes in the place of that message, the supervisor takes them out of
 * the keeper's table (pidfd_getfd(2)) and adds to the eventfd that it gave the keeper. The keeper
 * waits for that before it closes its own and replies.
 *
 * Fields that an op does not use are zero. Change KEEPER_VERSION with any
 * change here; the Go side is protocol.go of package keeper.
 */
#ifndef TSUGIKI_KEEPER_PROTOCOL_H
#define TSUGIKI_KEEPER_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define KEEPER_VERSION 3
#define KEEPER_BATCH_MAX                                                                           \
	64		 /* descriptors in a message; the kernel allows 253                        \
			  */
#define KEEPER_FDS_MAX 2 /* descriptors beside a request */

enum keeper_op {
	KEEPER_HELLO = 1,
	KEEPER_SOCKETS = 2,
	KEEPER_EPOLL_ADD = 3,
	KEEPER_EPOLL_DEL = 4,
};

enum keeper_status {
	KEEPER_DONE = 0,
	/* The kernel refused the requested call. The program may get the errno, as from its own
	 * call. */
	KEEPER_REFUSED = 1,
	/* The keeper could not make that call. The errno is about the keeper and must not reach the
	 * program. */
	KEEPER_FAULT = 2,
	/* The request broke the rules above. op is 0. */
	KEEPER_MALFORMED = 3,
};

struct keeper_request {
	uint16_t version;
	uint16_t op;
	uint32_t tag;
	int32_t family;
	int32_t type; /* may carry SOCK_NONBLOCK */
	int32_t protocol;
	uint32_t count; /* 1..KEEPER_BATCH_MAX */
	int32_t number; /* the socket's descriptor in the program */
	uint32_t events;
	uint64_t data;
};

struct keeper_reply {
	uint16_t version;
	uint16_t op;
	uint32_t tag;
	uint32_t status;
	int32_t error;
	uint32_t count; /* may be less than asked for: then error says why */
	uint32_t zero;
};

/* Longer than a reply. */
struct keeper_loan {
	uint32_t version;
	uint32_t count;
	int32_t numbers[KEEPER_BATCH_MAX]; /* the rest is zero */
};

_Static_assert(sizeof(struct keeper_loan) == 8 + 4 * KEEPER_BATCH_MAX, "loan has no padding");
_Static_assert(sizeof(struct keeper_request) == 40, "request has no padding");
_Static_assert(sizeof(struct keeper_reply) == 24, "reply has no padding");

/*
 * Copies the request in BYTES to REQUEST and checks it and the number of
 * descriptors that came beside it. Returns 0 or EPROTO; the tag is set in
 * either case, to 0 where there is none. Reads no global state.
 */
int keeper_parse(const void *bytes, size_t length, unsigned int fds,
		 struct keeper_request *request);

#endif
