// SPDX-License-Identifier: Apache-2.0
/*
 * The driver of the property test: a program that makes random socket calls.
 *
 * Theory of operation. "driver ID SEED CALLS PAUSES WORD..." makes CALLS calls. SEED decides what
 * is called and with which arguments; but that it answers what it hears, no result changes that.
 * The words name the world:
 *
 *	to=ADDR port=PORT	a destination
 *	favor=ADDR		one that is taken more often
 *	at=ADDR bind=PORT	what is bound
 *	serve=ADDR,PORT		likewise, more often
 *	name=ENDPOINT		a name for AF_GRAFT
 *	link=INDEX		an interface
 *	channel=PATH		where descriptors arrive
 *	peer=PATH		where they are sent
 *
 * The driver says "ready" and waits for a line. One with an odd ID then serves what it may.
 * PAUSES times in between and once at the end, it says "pause", waits for a line, receives all
 * datagrams that have arrived, and says "drained".
 *
 * Each datagram begins with "@ID.ACTOR.NUMBER;", so that whoever sees it knows the call. Each call
 * is printed as "ACTOR.NUMBER CALL: RESULT", each datagram as "heard PAYLOAD".
 *
 * No call of the driver may wait: all sockets are non-blocking.
 */
#ifndef DRIVER_H
#define DRIVER_H

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 10, LIST_MAX = 64, PAYLOAD_MAX = 64, GRAFT_FAMILY = 4, GRAFT_NAME_MAX = 16 };

/* A thread of calls: the main one, a thread of a race, or a child. */
struct actor {
	uint64_t rng;
	char name[24];
	unsigned long number; /* of its last call */
	int slot;	      /* which it last used: most calls follow one another on a socket */
	int depth;	      /* of threads and children within each other */
};

struct driver_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct {
			sa_family_t family;
			char name[GRAFT_NAME_MAX];
		} gr;
	};
	socklen_t len;
};

struct list {
	const char *text[LIST_MAX];
	int count;
};

/* The world, as the words say. */
extern struct list world_to, world_favors, world_serves, world_ports, world_at, world_binds,
	world_names, world_links, world_peers;
extern int world_channel;

/* The descriptors that all actors of a process share. */
extern _Atomic int driver_fds[SLOTS];

/* What is random. */
uint32_t driver_pick(struct actor *a, uint32_t below);
const char *driver_of(struct actor *a, const struct list *l); /* "" of an empty one */
void driver_seed(struct actor *a, const struct actor *from, const char *kind);

/* The slot of the next call, and what is in it. */
int driver_fd(struct actor *a);
void driver_put(struct actor *a, int fd);

/* Addresses; sometimes of another family, or of a wrong length. */
struct driver_addr driver_destination(struct actor *a);
struct driver_addr driver_own(struct actor *a);
struct driver_addr driver_unspec(void);

/* The payload of the actor's next call. */
int driver_payload(struct actor *a, char text[PAYLOAD_MAX]);

/* Prints a call and its result. Counts it. */
void driver_say(struct actor *a, long result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void driver_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *driver_text(const struct driver_addr *addr); /* in memory of the thread's own */

/* One call. */
void driver_step(struct actor *a);
void driver_hear(struct actor *a, int fd); /* and answers who was heard last */
void driver_drain(struct actor *a);

/* The calls of the other files. */
void call_socket(struct actor *a);
void call_bind(struct actor *a);
void call_connect(struct actor *a);
void call_disconnect(struct actor *a);
void call_listen(struct actor *a);
void call_accept(struct actor *a);
void call_send(struct actor *a);
void call_sendto(struct actor *a);
void call_receive(struct actor *a);
void call_names(struct actor *a);
void call_close(struct actor *a);
void call_sendmsg(struct actor *a);
void call_sendmmsg(struct actor *a);
void call_setsockopt(struct actor *a);
void call_getsockopt(struct actor *a);
void call_dup(struct actor *a);
void call_pass(struct actor *a);
void call_take(struct actor *a);
void call_fork(struct actor *a);
void call_threads(struct actor *a);
void call_race(struct actor *a);
void call_i386(struct actor *a);
void call_flip(struct actor *a);

#endif
