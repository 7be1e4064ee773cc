/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board: one file in memory per container, with the data that others need at every call. The
 * container's gate writes the board, mostly by order of the supervisor. All programs of the
 * container may read it (the shim does). The gate seals it against further writers before anybody
 * else gets it.
 *
 * The rules on the board change while others read them: the gate counts `sequence` up before it
 * changes the rules and again after. A reader that sees an odd sequence, or another sequence
 * afterwards, discards what it has read and asks the supervisor.
 */
#ifndef TSUGIKI_BOARD_H
#define TSUGIKI_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAGIC   0x6f627374u /* "tsbo" */
#define BOARD_VERSION 4
/*
 * Size of the file: the header; the gate's counters, which are here because they outlive the gate's
 * process, and most boards take one page; and the largest possible image of rules.
 */
#define BOARD_SIZE     0x4a000
#define BOARD_COUNTERS 128
#define BOARD_RULES    3328 /* where the image begins */

struct board {
	uint32_t magic;
	uint32_t version;
	uint64_t own; /* SO_NETNS_COOKIE of the container's own namespace */
	_Atomic uint32_t sequence;
	/* Set before the first socket is moved to the container's own namespace: until then, all
	 * sockets that were made on the host first are still there. */
	_Atomic uint32_t own_sockets;
	/* Set before the container serves its first port on the host: from then on, destinations on
	 * its own loopback may lead there. */
	_Atomic uint32_t services;
	/* Set before a program makes or enters another network namespace. */
	_Atomic uint32_t nested;
	/* Set before the first AF_GRAFT socket is made: from then on, a socket's
	 * own endpoint may count for more than the rules. */
	_Atomic uint32_t afgraft_sockets;
	/* Set while a supervisor wants a report of every decision. */
	_Atomic uint32_t traced;
	/* Whether each datagram with an address needs a decision. */
	uint32_t datagrams;
	/* Set before a client's socket is bound on the host, if the socket may need another source
	 * address once its destination is known. */
	_Atomic uint32_t bound_clients;
	uint32_t host_first; /* BOARD_HOST_FIRST_ */
	uint32_t untrapped;  /* BOARD_UNTRAPPED_ */
	uint64_t host;	     /* SO_NETNS_COOKIE of the host's namespace */
	/* The first of the 2^17 virtual IPv4 addresses, in host order; 0: IPv4 is not translated.
	 */
	uint32_t virtual_pool;
	/* Set before a listener on the container's loopback may get a connection that the
	 * supervisor exchanges for another (graft/expect.go). */
	_Atomic uint32_t expects;
	/* BOARD_SERVED of the ports of `services`, set before that. 0: they are not known, as until
	 * a new supervisor has told them. */
	_Atomic uint32_t served;
	/* Set while there is a supervisor that tells the names of accepted connections' peers.
	 * Those of older versions do not. */
	_Atomic uint32_t names_peers;
};

/* Ports share the bits: one that is set is of the port, or of another. */
#define BOARD_SERVED(port) (1u << ((port) % 32))

/* The families whose sockets socket(2) makes on the host first. */
#define BOARD_HOST_FIRST_4 1
#define BOARD_HOST_FIRST_6 2

/* The calls about which the kernel programs decide alone. The first bit: connect, sends and listen,
 * which the filter does not trap. The second bit, in addition: a bind to port 0 of a wildcard or a
 * loopback address. */
#define BOARD_UNTRAPPED_DESTINATIONS 1
#define BOARD_UNTRAPPED_PORT_0	     2
/* IPv4 is translated. Then the kernel programs do not decide about a connect to an IPv4 address
 * that is no loopback address, and do not know the IPv4 names of sockets and of their peers. */
#define BOARD_TRANSLATED 4
/* Connections that the container accepts are relayed: all calls of accept(2) are trapped. */
#define BOARD_RELAYED 8

_Static_assert(sizeof(struct board) <= BOARD_COUNTERS, "the counters have their place");

/*
 * Where an address that a program passed lies. BOARD_NO_IP is an address of another family, or one
 * that is too short: the kernel refuses it, or it is not for an IP socket.
 */
enum board_where { BOARD_NO_IP, BOARD_OWN, BOARD_HOST, BOARD_OTHER, BOARD_BUSY };

struct board_address {
	enum board_where where;
	bool is4;      /* by the sockaddr's family: false for a mapped address */
	bool loopback; /* or the wildcard, which the kernel takes for it */
	uint16_t port;
	uint64_t netns; /* SO_NETNS_COOKIE, of BOARD_HOST */
};

/* The longest part of a sockaddr that is read. The bytes after it do not count. */
#define BOARD_ADDRESS_MAX 28

/* Looks up LENGTH bytes of a sockaddr on a board of SIZE bytes. */
struct board_address board_look_up(const struct board *b, size_t size, const uint8_t *bytes,
				   size_t length);

/*
 * Whether an IP socket is where a destination lies, as far as the board can tell. BOARD_LOOK: the
 * socket is there if its namespace is `netns` and, if it has to be `unbound`, it has no port.
 * BOARD_ASK: only the supervisor knows.
 */
enum board_verdict { BOARD_ASK, BOARD_IN_PLACE, BOARD_LOOK };

struct board_place {
	enum board_verdict verdict;
	bool unbound;
	uint64_t netns;
};

struct board_place board_place_for(const struct board *b, const struct board_address *to);

/* Whether the kernel programs decide alone about a bind to LENGTH bytes of a sockaddr.
 */
bool board_bind_is_free(const struct board *b, const uint8_t *bytes, size_t length);

#endif
