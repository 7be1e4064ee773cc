/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board: one file in memory per container, on which its gate writes what others
 * have to know at every call, much of it by order of the supervisor, and that all of
 * its programs may read (the shim does). It is sealed against further writers before
 * anybody else gets it.
 *
 * The rules on it change while it is read: the gate counts `sequence` up
 * before it changes them and again after. A reader that has seen another sequence
 * afterwards, or an odd one, has read nothing and asks the supervisor.
 */
#ifndef TSUGIKI_BOARD_H
#define TSUGIKI_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAGIC   0x6f627374u /* "tsbo" */
#define BOARD_VERSION 3
/*
 * Of the file: the header; what the gate counts, which is here because it outlives the gate's
 * process, and most boards are one page; and the largest image of rules that there can be.
 */
#define BOARD_SIZE     0x4a000
#define BOARD_COUNTERS 64
#define BOARD_RULES    3328 /* where the image begins */

struct board {
	uint32_t magic;
	uint32_t version;
	uint64_t own; /* SO_NETNS_COOKIE of the container's own namespace */
	_Atomic uint32_t sequence;
	/* Set before the first socket is moved to the container's own namespace:
	 * until then, sockets that were made on the host first are there. */
	_Atomic uint32_t own_sockets;
	/* Set before the container serves its first port on the host: from then
	 * on, its own loopback may lead there. */
	_Atomic uint32_t services;
	/* Set before a program makes or enters another network namespace. */
	_Atomic uint32_t nested;
	/* Set before the first AF_GRAFT socket is made: from then on, a socket's
	 * own endpoint may count for more than the rules. */
	_Atomic uint32_t afgraft_sockets;
	/* Set while somebody wants to be told of every decision. */
	_Atomic uint32_t traced;
	/* Whether each datagram with an address is to be decided about. */
	uint32_t datagrams;
	/* Set before a client's socket is bound on the host whose source may have
	 * to be another once it is known where it connects to. */
	_Atomic uint32_t bound_clients;
	uint32_t host_first; /* BOARD_HOST_FIRST_ */
	uint32_t untrapped;  /* BOARD_UNTRAPPED_ */
	uint64_t host;	     /* SO_NETNS_COOKIE of the host's namespace */
};

/* The families whose sockets are made on the host first: at socket(2). */
#define BOARD_HOST_FIRST_4 1
#define BOARD_HOST_FIRST_6 2

/* What the kernel programs decide about alone: connect, sends and listen, which the filter does
 * not trap; and, besides, a bind to port 0 of a wildcard or a loopback address. */
#define BOARD_UNTRAPPED_DESTINATIONS 1
#define BOARD_UNTRAPPED_PORT_0	     2
/* But not about a connect to an IPv4 address that is no loopback address: IPv4 is translated. Nor
 * do they know the IPv4 names of sockets and of their peers. */
#define BOARD_TRANSLATED 4

_Static_assert(sizeof(struct board) <= BOARD_COUNTERS, "the counters have their place");

/*
 * Where an address that a program passed lies. BOARD_NO_IP is one of another
 * family, or too short: the kernel's to refuse, or not for an IP socket.
 */
enum board_where { BOARD_NO_IP, BOARD_OWN, BOARD_HOST, BOARD_OTHER, BOARD_BUSY };

struct board_address {
	enum board_where where;
	bool is4;	/* by its own family: a mapped address is not */
	bool loopback;	/* or the wildcard, which the kernel takes for that */
	uint64_t netns; /* SO_NETNS_COOKIE, of BOARD_HOST */
};

/* The longest sockaddr that is looked at; a longer one names nothing more. */
#define BOARD_ADDRESS_MAX 28

/* Looks up LENGTH bytes of a sockaddr on a board of SIZE bytes. */
struct board_address board_look_up(const struct board *b, size_t size, const uint8_t *bytes,
				   size_t length);

/*
 * Whether an IP socket is where a destination lies, as far as the board can tell.
 * BOARD_LOOK: it is if its namespace is `netns` and, where it has to be `unbound`, it
 * has no port. BOARD_ASK: only the supervisor knows.
 */
enum board_verdict { BOARD_ASK, BOARD_IN_PLACE, BOARD_LOOK };

struct board_place {
	enum board_verdict verdict;
	bool unbound;
	uint64_t netns;
};

struct board_place board_place_for(const struct board *b, const struct board_address *to);

/* Whether nobody but the kernel programs is to be asked about a bind to LENGTH bytes of a sockaddr.
 */
bool board_bind_is_free(const struct board *b, const uint8_t *bytes, size_t length);

#endif
