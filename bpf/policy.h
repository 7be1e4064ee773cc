/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What package policy and the programs of policy.bpf.c agree upon.
 *
 * All addresses are in network byte order, 16 bytes, IPv4 as ::ffff:a.b.c.d
 * (RFC 4291, 2.5.5.2), so that one table serves both families. Ports are in
 * host byte order.
 */
#ifndef TSUGIKI_POLICY_H
#define TSUGIKI_POLICY_H

/* Port ranges that one prefix may have, its parents' included. */
#define EGRESS_RANGES_MAX 32
/* Prefixes a container may name, the special ones included. */
#define EGRESS_PREFIXES_MAX 1024
#define ENDPOINTS_MAX	    256
/* Peers of unconnected UDP servers that may be answered, least recently used. */
#define UDP_PEERS_MAX 4096
/* Ports that a container serves through ingress rules at a time. */
#define SERVICES_MAX 4096
/* Host sockets that sent to the container's own loopback, least recently used. */
#define RELAY_SENDERS_MAX 1024

struct addr {
	__u32 word[4];
};

struct endpoint {
	struct addr addr; /* all zero, or ::ffff:0.0.0.0: the host chooses */
	__u64 netns;	  /* cookie of the namespace that its sockets live in */
	__u16 port;	  /* source port to connect from, 0: any */
	__u16 pad[3];
};

struct prefix {
	__u32 bits; /* of addr, 0..128 */
	struct addr addr;
};

struct port_range {
	__u16 first;
	__u16 last;
	__u16 endpoint; /* index into endpoint_by_index */
};

/* The ranges of one prefix in order of preference; none: denied. */
struct egress {
	__u32 count;
	struct port_range range[EGRESS_RANGES_MAX];
};

/*
 * A bind that the supervisor allows this socket to make, and what the program
 * shall be told its name is. The program asked for `view` and got `host`.
 */
struct binding {
	struct addr host;
	struct addr view;
	__u16 host_port;
	__u16 view_port;
	__u8 ingress; /* bound by an ingress rule: may answer whoever asks */
	__u8 relay;   /* the relay's own, see relay.h */
	__u8 pad[2];
};

/* A port that the container serves, as its programs know it. */
struct service {
	__u16 port;
	__u8 protocol; /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 is4;
};

/* Where on the host it is served. */
struct location {
	struct addr addr;
	__u16 port;
	__u16 pad;
};

struct peer {
	__u64 socket; /* cookie */
	struct addr addr;
	__u16 port;
	__u16 pad[3];
};

/* Whom the relay can answer, see relay.h. */
struct sender {
	__u16 port;
	__u8 is4;
	__u8 pad;
};

enum denial { DENIED_CONNECT, DENIED_BIND, DENIED_SENDMSG, DENIED_SETSOCKOPT, DENIALS };

#endif
