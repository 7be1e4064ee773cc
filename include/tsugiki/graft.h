/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AF_GRAFT: sockets that a program binds to an endpoint by the endpoint's name.
 *
 * An endpoint is a name that the administrator has given to an address of the host
 * ("NAME type ipv4|ipv6 addr ADDR port PORT|dynamic nameable", "NAME type unix path PATH
 *nameable"). A socket of the family AF_GRAFT has no address family of its own until it is bound:
 *then it becomes a socket of the host's network, of the endpoint's family and at its address.
 *
 *	struct sockaddr_gr gr = {.sgr_family = AF_GRAFT};
 *	int s = socket(AF_GRAFT, SOCK_STREAM, 0);
 *
 *	strncpy(gr.sgr_epname, "web", sizeof(gr.sgr_epname));
 *	bind(s, (struct sockaddr *)&gr, sizeof(gr));
 *	listen(s, SOMAXCONN);
 *
 * The interface is that of Nakamura et al., "Grafting Sockets for Fast Container
 * Networking" (ANCS 2018). It needs no kernel module, but a program that runs
 * in a container of tsugiki: elsewhere socket() fails with EAFNOSUPPORT.
 *
 * socket(AF_GRAFT, TYPE, 0)
 *	TYPE is SOCK_STREAM or SOCK_DGRAM, with SOCK_NONBLOCK and SOCK_CLOEXEC as
 *	for any socket.
 *	ESOCKTNOSUPPORT  another type.
 *	EPROTONOSUPPORT  a protocol that is neither 0 nor that of the type.
 *
 * bind(), with struct sockaddr_gr
 *	ENOENT		 there is no endpoint of that name, or this container was
 *			 not given it.
 *	EINVAL		 the address is shorter than struct sockaddr_gr, or the
 *			 socket is bound already.
 *	EAFNOSUPPORT	 the address is not of AF_GRAFT.
 *	Others are those of the endpoint's family, such as EADDRINUSE.
 *
 * connect() and the sends take addresses of the endpoint's family, and leave from
 * the endpoint's address. If the socket is not bound, it is bound to the endpoint
 * named GRAFT_DEFAULT_SOURCE first: ENOENT, if there is none. (A container that has
 * no endpoint of this name is not asked about datagrams: those of a socket that
 * is not bound stay in the container.) EPERM says that the destination is one that
 * only rules open: loopback, link-local, multicast, broadcast and unspecified.
 *
 * listen() fails with EADDRNOTAVAIL before bind(). Sockets from accept() are
 * ordinary ones of the endpoint's family. recv(), poll(), epoll, dup(), fork() and
 * so on are as ever; but a process that was forked before bind() has to bind its
 * own.
 *
 * getsockname() gives a struct sockaddr_gr; its name is empty before bind(). See
 * GRAFT_NAME_TRANSPARENT.
 */
#ifndef TSUGIKI_GRAFT_H
#define TSUGIKI_GRAFT_H

#include <sys/socket.h>
#include <sys/un.h>

/* The number of IPX, which Linux no longer has. */
#define AF_GRAFT 4
#define PF_GRAFT AF_GRAFT

/* Bytes of an endpoint's name, with the zero that ends a shorter one. */
#define AF_GRAFT_EPNAME_MAX 16

#define GRAFT_DEFAULT_SOURCE "default-source"

struct sockaddr_gr {
	sa_family_t sgr_family;		      /* AF_GRAFT */
	char sgr_epname[AF_GRAFT_EPNAME_MAX]; /* the endpoint's name */
};

/* The level of the options below, in setsockopt() and getsockopt(). */
#define IPPROTO_GRAFT 254

/*
 * Options that the program sets with other levels before bind() are carried over to
 * the host socket. Where the order matters, or the result, they can be delayed:
 *
 * GRAFT_SO_DELAYED (int, get and set; 0)
 *	While it is above 0, options of other levels than SOL_SOCKET, and those of
 *	GRAFT_SO_TRANSPARENT, are not set but queued; setsockopt() returns 0. bind()
 *	sets them, before it binds. The queue holds 16 options of up to 128 bytes:
 *	ENOBUFS. A container whose endpoints are all named by its rules does not
 *	expect such programs: there only GRAFT_SO_TRANSPARENT is queued.
 *
 * GRAFT_SO_DELAYED_EXECUTE (set; the value does not matter, and may be NULL)
 *	Sets what is queued now. What became of each is in the results.
 *	EADDRNOTAVAIL	 the socket is not bound.
 *
 * GRAFT_SO_DELAYED_RESULT (array of struct graft_sso_result, get)
 *	What became of the queued options that have been set, in the order in which
 *	they were queued. The length becomes the number of bytes written. A result
 *	that was read is forgotten.
 *	ENOBUFS		 there are more than there was room for: read again.
 *
 * GRAFT_SO_TRANSPARENT (struct graft_sso_trans, set)
 *	Sets an option of the host socket, at any level. It is set by tsugiki, on the
 *	program's behalf and without privileges.
 *	EADDRNOTAVAIL	 the socket is not bound, and options are not delayed.
 *	EINVAL		 the lengths do not fit together, or are too long.
 *	EPERM		 the option would lead the socket around its endpoint or the
 *			 host's routing (SO_MARK, SO_BINDTODEVICE, ...), or does not
 *			 hold its value in itself (SO_ATTACH_FILTER, ...).
 *
 * GRAFT_NAME_TRANSPARENT (int, get and set; 0)
 *	While it is above 0, getsockname() gives the host socket's own name. There is
 *	none before bind(): the length becomes 0.
 *
 * An int is read and written whole: its buffer needs 4 bytes. EINVAL says that an
 * option's value cannot be read, ENOPROTOOPT that it cannot be set, or got.
 */
#define GRAFT_SO_DELAYED	 1
#define GRAFT_SO_DELAYED_EXECUTE 2
#define GRAFT_SO_DELAYED_RESULT	 3
#define GRAFT_SO_TRANSPARENT	 4
#define GRAFT_NAME_TRANSPARENT	 5

struct graft_sso_result {
	int level;
	int optname;
	int ret; /* 0, or an errno as a negative number */
} __attribute__((__packed__));

struct graft_sso_trans {
	int level;
	int optname;
	unsigned int optlen; /* bytes of optval */
	char optval[];
} __attribute__((__packed__));

/* Bytes of a struct graft_sso_trans, with its optval, at most. */
#define GRAFT_SSO_TRANS_SIZE 128

#endif
