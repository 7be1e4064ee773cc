/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What package policy/enforcer and the programs of policy.bpf.c agree upon.
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
/* Of those, the first are with the container: most have no more. */
#define ENDPOINTS_AT_HAND 4
/* Endpoints that programs have bound by their names, and that are still there. */
#define NAMED_MAX 1024
/* Ports at which a container's connections are relayed. */
#define RELAYED_PORTS_MAX 8
/* Containers that one set of programs serves, one after the other or together. */
#define CONTAINERS_MAX 1024
/* Peers of unconnected UDP servers that may be answered, least recently used. */
#define UDP_PEERS_MAX 4096
/* Hosts whose answers an unconnected UDP client hears at a time, in sets of so many. */
#define HEARD_MAX  64
#define HEARD_WAYS 4
/* Ports that a container serves through ingress rules at a time. */
#define SERVICES_MAX 4096
/* Host sockets that sent to the container's own loopback. */
#define RELAY_SENDERS_MAX 4096
/* Decisions that wait to be read by who traces a container: a power of 2, and of pages of
 * each size. */
#define TRACE_BYTES 65536
/* The payload of a datagram that the supervisor rewrites, in bytes: the rest is cut off. And room
 * for datagrams that wait for it, as of TRACE_BYTES. */
#define MESSAGE_MAX    8192
#define MESSAGES_BYTES 262144
/* Sources that a container's ingress rules may have together, see sources.h. */
#define SOURCES_MAX 8192
/* Hosts that may send to a port of a program first. */
#define EXPECTED_MAX 1024

struct addr {
	__u32 word[4];
};

struct endpoint {
	struct addr addr; /* all zero, or ::ffff:0.0.0.0: the host chooses */
	__u64 netns;	  /* cookie of the namespace that its sockets live in */
	__u16 port;	  /* source port to connect from, 0: any */
	__u16 pad[3];
};

/* The NAT64 of the network, see nat64.h. */
struct nat64 {
	struct addr prefix;
	struct addr source; /* from which the container sends there */
	__u32 device;	    /* by which it is reached; 0: it is not */
	__u16 bits;	    /* of the prefix: 32, 40, 48, 56, 64 or 96; 0: there is none */
	__u16 internet;	    /* it is for addresses of the Internet alone (RFC 6052 section 3.1) */
};

/*
 * What the programs know of the container whose socket they were called for. All
 * zero until the supervisor has written it: then nothing is allowed.
 */
struct container {
	/* In the keys of its rows; one that is used only once. By its remainder, less than
	 * CONTAINERS_MAX, its set of programs finds its tables. */
	__u32 id;
	/* The relay, see relay.h. All zero without one, and for a family that has
	 * none. */
	__u16 relay_port4;
	__u16 relay_port6;
	__u64 relay_netns;
	struct addr relay_from6; /* with P = 0 */
	__u32 relay_from4;	 /* network order */
	/* The loopback that it has on the host, see loopback.h; 0: its namespace's own. */
	__u32 loopback;
	/* A number of the trace that its supervisor wants, see trace.h; 0: none. */
	__u32 traced;
	__u32 resolves; /* a DNS proxy answers at port 53 of its loopback, see resolver.h */
	__u32 pool;	/* its UDP is translated to this pool, see virtual.h; 0: it is not */
	/* Another number after each change of the rules. */
	__u32 rules;
	/* The priority of its packets on a loopback device, by which receivers know whose they are,
	 * see sources.h; 0: it has no programs yet. */
	__u32 mark;
	__u32 sourced; /* sources of ingress rules are looked up: see sources.h */
	/* Ports at which the supervisor relays connections, see standin.h; 0: none. */
	__u16 relayed[RELAYED_PORTS_MAX];
	struct nat64 nat64;
	struct endpoint endpoint[ENDPOINTS_AT_HAND]; /* by number */
};

/*
 * Tables are tries, whatever their keys are: those have no buckets. All bits of a key
 * count.
 */
#define KEY_BITS(key) (8 * (sizeof(key) - sizeof(__u32)))

/* Before the rest of a key: the container whose row it is. */
#define OWNER_BITS 32

struct number {
	__u32 bits;
	__u32 container;
	__u32 number;
};

struct prefix {
	__u32 bits; /* OWNER_BITS, and those of addr, 0..128 */
	__u32 container;
	struct addr addr;
};

struct port_range {
	__u16 first;
	__u16 last;
	__u8 endpoint; /* its number, see endpoint_of */
	__u8 protocol; /* IPPROTO_TCP or IPPROTO_UDP; 0: both */
};

/* The ranges of one prefix in order of preference; none: denied. */
struct egress {
	__u16 count;
	__u8 special; /* covers special destinations: a rule has named them */
	__u8 pad;
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
	__u8 ingress;	 /* bound by an ingress rule: may answer whoever asks */
	__u8 relay;	 /* the relay's own, see relay.h */
	__u8 private;	 /* bound to a private port, see loopback.h */
	__u8 published;	 /* at an IPv6 address, see udp.h */
	__u32 named;	 /* number in name_by_number: may connect through that one; or 0 */
	__u32 container; /* whose binding it is: sockets are passed around */
	__u64 netns;	 /* cookie of that endpoint's namespace, if named */
	__u64 call;	 /* that was answered by binding it; for the supervisor's own use */
	__u32 rule;	 /* number of the ingress rule, see sources.h; 0: by none */
	__u32 pad;
};

/* A source of an ingress rule, see sources.h. */
struct source {
	__u32 bits;
	__u32 container;
	__u32 rule; /* its number, with SOURCE_IS_MARK or without */
	struct addr addr;
};

struct source_verdict {
	__u32 admitted;
};

/* ADDR is a mark: zeros, and its lower bits. */
#define SOURCE_IS_MARK 0x80000000
/* The bits of a mark that say whose it is, and those that only marks have: without
 * CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17, no program can set such a priority
 * (SO_PRIORITY). */
#define MARK_OWNER 0x3fffffff
#define MARK_BITS  0xc0000000

/*
 * What belongs to an AF_GRAFT socket. The programs here do not read it: it is in
 * the kernel so that it lives as long as the socket does, whoever holds it.
 */
#define GRAFT_NAME_MAX	  16
#define GRAFT_OPTIONS_MAX 16
#define GRAFT_VALUE_MAX	  128

struct graft_socket {
	__u8 name[GRAFT_NAME_MAX]; /* of its endpoint; empty: not bound yet */
	__u8 delayed;		   /* GRAFT_SO_DELAYED */
	__u8 name_transparent;	   /* GRAFT_NAME_TRANSPARENT */
	__u8 pad[2];
	__u32 container;
};

/* An option to be set later, or the result of one that was. */
struct graft_option {
	__s32 level;
	__s32 name;
	__s32 result; /* 0 or a negative errno, once done */
	__u8 done;
	__u8 length; /* of value */
	__u8 pad[2];
	__u8 value[GRAFT_VALUE_MAX];
};

struct graft_queue {
	__u32 container;
	__u32 count;
	struct graft_option option[GRAFT_OPTIONS_MAX];
};

/*
 * SERVED6, SERVED4: a port that the container serves by a rule, as its programs know it,
 * and where that is on the host. SERVED_AS is the way back: from the host's port, and the
 * address that is in the row, to the programs' port.
 *
 * PRIVATE: a port of a loopback on the host, as its programs know it, and the host's port
 * that has its place. PRIVATE_AS is the way back.
 */
enum service_kind { SERVED6, SERVED4, SERVED6_AS, SERVED4_AS, PRIVATE, PRIVATE_AS };

struct service {
	__u32 bits;
	__u32 owner; /* a container, or a loopback; see tables.h */
	__u16 port;
	__u8 protocol; /* IPPROTO_TCP or IPPROTO_UDP */
	__u8 kind;
};

struct location {
	struct addr addr;
	__u16 port;
	__u16 pad;
	__u32 pad2;
	__u64 netns; /* cookie; for the supervisor's own use */
};

/* The value of name_by_number, for the supervisor's own use. */
struct endpoint_name {
	__u8 text[GRAFT_NAME_MAX];
};

/*
 * The address of IPv6 where connections are led to a listener that is bound to one of IPv4,
 * see steer.bpf.c. It counts for the container that it was noted for.
 */
struct second {
	__u64 netns; /* of the address: a cookie */
	struct addr addr;
	__u16 port;
	__u16 rule; /* as in struct binding */
	__u32 container;
};

/* Listeners that share their port have a slot each; the kernel chooses among those that share. */
#define STEER_SLOTS 4
/* For all containers: a slot of each listener. */
#define STEERED_MAX 4096

struct steered {
	__u64 netns; /* a cookie: the kernel would take a listener of another namespace, too */
	struct addr addr;
	__u16 port;
	__u16 slot;
	__u32 pad;
};

struct peer {
	__u64 socket; /* cookie */
	struct addr addr;
	__u16 port;
	__u16 pad[3];
};

/* A virtual IPv4 address, see virtual.h. */
struct virtual_addr {
	__u32 bits;
	__u32 addr; /* network order */
};

/* The IPv6 host behind one. */
struct virtual_host {
	struct addr addr;
	struct addr
		source;	  /* from which the container sends to it, where no rule has published it */
	struct addr next; /* the next hop; all zero: the host's routes say it */
	__u32 device;	  /* by which it is reached; 0: it is not */
	__u32 peer;	  /* 1: only servers that it has asked send to it */
	__u64 heard; /* CLOCK_MONOTONIC in ns: its last datagram, if the programs chose the address
		      */
};

/* A datagram that the supervisor rewrites, see messages.h. Its payload follows. Ports are in host
 * order. */
struct message {
	struct addr host, here; /* the remote, and the address of this host */
	__u16 host_port, here_port;
	__u32 alias; /* the host's, network order */
	__u16 port;  /* the socket's, on the loopback */
	__u8 outwards;
	__u8 fragment; /* it is the first part of a datagram that came in fragments */
	__u8 tos;
	__u8 ttl;
	__u16 length; /* of the whole payload */
};

/* A host that may send to a port of a program first, see messages.h. */
struct expected {
	struct addr host;
	__u32 port; /* the socket's, on the loopback */
};

/* Where a UDP server is published. */
struct published {
	struct addr addr;
	__u32 port;
};

/* Whether a socket has asked a server that a rule has bound to an address of the host's, or answers
 * from one who has. */
enum asking { ASKS_NOT, ASKS, ANSWERS };

/* A socket of a loopback on the host. */
struct member {
	__u32 loopback;
	__u32 asks;  /* enum asking */
	__u64 led;   /* where its last datagram led, see loopback.h; 0: unknown */
	__u32 rules; /* of struct container, by which that was decided */
	__u32 pad;
	__u64 reached; /* a host that its last datagram could reach, see udp.h; 0: unknown */
};

/* Who may send to a client's UDP socket, see packets.h. */
struct heard_peer {
	struct addr addr;
	__u16 port; /* 0: those of which a rule lets it send to */
	__u16 pad;
};

struct heard {
	__u32 next; /* which of a set is replaced */
	struct heard_peer peer[HEARD_MAX];
};

/* The options of held.h that a program has set, a bit each. */
struct held {
	__u32 known;
	__u32 on;
	__u32 any_port;	  /* in its own namespace, the kernel chose its port; for the supervisor */
	__u32 container;  /* whose supervisor says so */
	__u32 translated; /* an IPv6 socket in the place of a program's IPv4 one */
	__u16 option[4];  /* of such a socket, see translated.h: its value and 1; 0: not set */
	__u32 spoke_ip4;  /* such a socket has connected to an IPv4 address */
};

/* What the supervisor has noted of a connection that it relays, see standin.h. */
struct stand_in {
	__u32 own; /* the program's name, network order */
	__u32 peer;
	__u16 own_port; /* 0: the socket's own */
	__u16 peer_port;
	__u16 port; /* of 127.0.0.1, where the stand-in is */
	__u16 pad;
	__u32 container;
};

/* Whom the relay can answer, see relay.h. */
struct sender {
	__u32 bits;
	__u16 port;
	__u8 is4;
	__u8 pad;
};

enum denial {
	DENIED_CONNECT,
	DENIED_BIND,
	DENIED_SENDMSG,
	DENIED_SETSOCKOPT,
	DENIED_LEAVE, /* packets that were about to leave */
	DENIED_ENTER, /* datagrams that came for a client, and what no source of a rule has sent */
	DENIALS
};

/* TCP connections of host sockets that were established, by who began. */
enum connection { CONNECTION_OUT, CONNECTION_IN, CONNECTIONS };

/* Calls about which the programs alone decide, where the loopback is on the host. */
enum decided_call { DECIDED_CONNECT, DECIDED_SEND, DECIDED_LISTEN, DECIDED_CALLS };

/* Of one container, on one CPU. */
struct counts {
	__u64 denials[DENIALS];
	__u64 connections[CONNECTIONS];
	__u64 decided[DECIDED_CALLS];
	__u64 unreported; /* decisions for which a trace had no room */
};

/* A connect(2) or a send(2) that was decided about, see trace.h. */
struct decision {
	__u64 time;   /* CLOCK_MONOTONIC, in ns */
	__u64 socket; /* cookie */
	struct addr asked;
	struct addr led; /* where the call leads */
	__u16 asked_port;
	__u16 led_port;
	__u16 endpoint; /* the number of the one that a rule leads to; ENDPOINTS_MAX: none */
	__u8 call;	/* enum decided_call */
	__u8 protocol;	/* IPPROTO_TCP or IPPROTO_UDP */
	__u32 thread;	/* in the host's pid namespace */
	__u32 errno;	/* with which the call is refused, or 0 */
	__u32 traced;	/* of struct container */
	__u32 pad;
};

#endif
