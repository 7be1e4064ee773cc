/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the policy programs keep, and how they find what is of their container. */
#ifndef TSUGIKI_TABLES_H
#define TSUGIKI_TABLES_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "options.h"
#include "policy.h"
#include "steered.h"
#include "virtual.h"

#define AF_UNSPEC 0
#define AF_INET	  2
#define AF_INET6  10

#define DENY  0
#define ALLOW 1
#define DROP  2 /* a packet that leaves: without an error */

/*
 * What belongs to one container. The programs are loaded once for many, and find
 * theirs by the cgroup that they were called for: its storage ends with the cgroup
 * and its last socket, as their being attached does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct container);
} container_by_cgroup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct counts);
} counts_by_cgroup SEC(".maps");

#define TRIE(entries, from, to)                                                                    \
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);                                                       \
	__uint(map_flags, BPF_F_NO_PREALLOC);                                                      \
	__uint(max_entries, entries);                                                              \
	__type(key, struct from);                                                                  \
	__type(value, struct to)

/*
 * What the supervisors write is in tables that all containers share: a table of its own
 * for each took 20 KiB, most of it for rows to come. A row's key begins with the number of
 * its container, which is always looked up whole: so a container finds its own rows and no
 * others, whatever the rest of the key is. How many rows each may have, package enforcer sees
 * to; there is room for all of them.
 *
 * They are tries for one more reason. What a running program has found stays what it was
 * until the program ends: the kernel waits a grace period before the memory of a trie's row
 * becomes another row, which it does not for a hash table's. That other row may be another
 * container's.
 */
#define ALL(each) (CONTAINERS_MAX * (each))
#define SHARED(name, entries, from, to)                                                            \
	struct {                                                                                   \
		TRIE(entries, from, to);                                                           \
	} name SEC(".maps")

/* Twice, for those of two tables while one takes the other's place. */
SHARED(egress_by_prefix, ALL(2 * EGRESS_PREFIXES_MAX), prefix, egress);
SHARED(endpoint_by_number, ALL(ENDPOINTS_MAX), number, endpoint);
SHARED(name_by_number, ALL(NAMED_MAX), number, endpoint_name);
/* Twice likewise. */
SHARED(verdict_by_source, ALL(2 * SOURCES_MAX), source, source_verdict);
SHARED(location_by_service, ALL(SERVICES_MAX), service, location);
/* The same for loopbacks on the host. Sets of programs share this table and the next, so
 * that containers of one loopback may be of several sets. */
SHARED(location_by_loopback, ALL(SERVICES_MAX), service, location);
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct member);
} loopback_by_socket SEC(".maps");

/* Of types that only tables in tables have, the compiler writes down no more than the
 * names, unless a variable has them too. */
const union {
	struct sender sender;
	struct peer peer;
	struct decision decision;
	struct virtual_addr virtual_addr;
	struct virtual_host virtual_host;
} types = {};

/*
 * What the programs write themselves is in tables of each container, by its id: none can
 * fill another's.
 */
#define TABLES(name, table)                                                                        \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                          \
		__uint(max_entries, CONTAINERS_MAX);                                               \
		__type(key, __u32);                                                                \
		__array(values, struct table);                                                     \
	} name SEC(".maps")

struct address_by_sender {
	TRIE(RELAY_SENDERS_MAX, sender, addr);
};

/* Only of containers that have had a UDP server. */
struct udp_peers {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UDP_PEERS_MAX);
	__type(key, struct peer);
	__type(value, __u8);
};

/* Only of containers whose UDP is translated. */
struct host_by_virtual {
	TRIE(VIRTUAL_HOSTS, virtual_addr, virtual_host);
};

/* Likewise. Values are in network order. */
struct virtual_by_host {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIRTUAL_HOSTS);
	__type(key, struct addr);
	__type(value, __u32);
};

/* Only of containers that are traced. */
struct decisions {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TRACE_BYTES);
};

TABLES(sender_tables, address_by_sender);
TABLES(peer_tables, udp_peers);
TABLES(trace_tables, decisions);
TABLES(host_tables, host_by_virtual);
TABLES(virtual_tables, virtual_by_host);

/* Inherited by accepted sockets, whose getsockname needs it too. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct binding);
} binding_by_socket SEC(".maps");

/* Inherited likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct second);
} second_by_socket SEC(".maps");

/* Not inherited: what is accepted is an ordinary socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct graft_socket);
} graft_by_socket SEC(".maps");

/* Only for those that have had an option delayed. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct graft_queue);
} queue_by_socket SEC(".maps");

static __always_inline struct container *container(void)
{
	return bpf_get_local_storage(&container_by_cgroup, 0);
}

/* The container's own table of a kind, or NULL. */
static __always_inline void *table_of(void *tables)
{
	__u32 place = container()->id % CONTAINERS_MAX;

	return bpf_map_lookup_elem(tables, &place);
}

static __always_inline void *find(void *tables, const void *key)
{
	void *table = table_of(tables);

	return table ? bpf_map_lookup_elem(table, key) : NULL;
}

/* What the supervisor of this container has noted about a socket, or NULL. */
static __always_inline struct binding *binding_of(struct bpf_sock *sk)
{
	struct binding *b = bpf_sk_storage_get(&binding_by_socket, sk, 0, 0);

	return b && b->container == container()->id ? b : NULL;
}

static __always_inline bool serves(struct bpf_sock *sk)
{
	struct binding *b = binding_of(sk);

	return b && b->ingress;
}

/* Whether a socket has a port that its binding is for: of either address. */
static __always_inline bool has_port_of(struct bpf_sock *sk, const struct binding *b)
{
	struct second *second;

	if (b->host_port == sk->src_port)
		return true;
	second = bpf_sk_storage_get(&second_by_socket, sk, 0, 0);
	return second && second->container == b->container && second->port == sk->src_port;
}

/* Whether a listener still has the port that a rule has bound: what was accepted inherits the
 * note, and may lose the port and listen itself. */
static __always_inline bool serves_here(struct bpf_sock *sk)
{
	struct binding *b = binding_of(sk);

	return b && b->ingress && b->host_port == sk->src_port;
}

static __always_inline struct counts *counts(void)
{
	return bpf_get_local_storage(&counts_by_cgroup, 0);
}

static __always_inline int deny(enum denial what)
{
	counts()->denials[what]++;
	return DENY;
}

/*
 * Has a call fail with an errno of its own, where the kernel can: before Linux 6.0 the loader
 * takes the helper out, and it is EPERM.
 */
static __always_inline int deny_as(enum denial what, int errno)
{
	bpf_set_retval(-errno);
	return deny(what);
}

#endif
