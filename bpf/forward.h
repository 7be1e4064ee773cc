/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the forward programs know: pods, pairs of pods, flows and counts. */
#ifndef TSUGIKI_FORWARD_H
#define TSUGIKI_FORWARD_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define POD_ADDRS_MAX 4
#define PODS_MAX      4096
#define PAIRS_MAX     65536
#define FLOWS_MAX     2048 /* of one pod; its table is larger, by the number of processors */

#define MAC_LENGTH 6

/* An IPv4 address is mapped, ::ffff:a.b.c.d. In network byte order. */
struct pod_addr {
	__u32 word[4];
};

enum pod_flag {
	POD_DIRECT = 1,	   /* its packets may go straight to another pod, and others' to it */
	POD_CHECKED = 2,   /* frames with another sender's addresses are dropped */
	POD_ROUTED = 4,	   /* the host routes to it: its packets go to the host's MAC address */
	POD_ALL_PAIRS = 8, /* a pair without a verdict is direct, if both pods have this flag */
	POD_TRACED = 16,   /* somebody is told of each packet that it sends */
};

/* A pod, by the index of its link in the host's network namespace. */
struct pod {
	__u32 device;  /* the key once more: a row that is removed can become another's */
	__u32 network; /* pods of different networks do not see each other */
	__u32 wire;    /* the link to a switch in user space; 0: the packet goes on as it came */
	enum pod_flag flags;
	struct pod_addr addrs[POD_ADDRS_MAX]; /* those that are not used are zero */
	__u8 mac[MAC_LENGTH];
	__u8 gateway[MAC_LENGTH]; /* POD_ROUTED: the MAC address of the host's end */
	__u8 pad[4];
};

struct mac_key {
	__u32 network;
	__u8 mac[MAC_LENGTH];
	__u8 pad[2];
};

struct addr_key {
	__u32 network;
	struct pod_addr addr;
};

/* The lower index is first: a pair is direct in both directions, or in none. */
struct pair {
	__u32 low, high;
};

enum verdict {
	PAIR_DIRECT = 1,
	PAIR_SLOW = 2,
};

/* The same for both directions: the lower end is first. Ports of an echo are its id. */
struct flow {
	struct pod_addr low, high;
	__u16 low_port, high_port;
	__u8 protocol;
	__u8 pad[3];
};

/* What became of a packet that a pod has sent. */
enum why {
	WHY_DIRECT,
	/* To the bridge, the switch or the host: */
	WHY_OFF,       /* one of the two pods is switched off */
	WHY_GROUP,     /* broadcast or multicast */
	WHY_NOT_LOCAL, /* no pod of this network has the destination's addresses */
	WHY_PROTOCOL,  /* neither TCP, UDP nor an ICMP echo; IP options, extension headers */
	WHY_FRAGMENT,
	WHY_PAIR, /* the verdict about the pair */
	WHY_FLOW, /* the flow has come through the switch: it may be translated */
	WHY_SIZE, /* larger than the destination's MTU */
	WHY_TTL,  /* a router must answer */
	/* Dropped: */
	WHY_BAD_MAC,
	WHY_BAD_ADDR,
	WHY_BAD_FRAME,	  /* a tag, another protocol than IP and ARP, or cut off */
	WHY_BAD_NEIGHBOR, /* what a router says, or a neighbor that it is not */
	WHY_COUNT,
};

struct counts {
	__u64 packets[WHY_COUNT];
	__u64 direct_bytes;
};

/* What is told of a packet that a traced pod has sent. */
struct told {
	__u64 time; /* ns, CLOCK_MONOTONIC */
	struct pod_addr from, to;
	__u32 length;
	__u16 ethertype; /* behind a tag that the kernel has taken off */
	__u16 from_port, to_port;
	__u8 upper; /* as in struct packet; 0: no ports */
	__u8 why;
	__u8 to_mac[MAC_LENGTH], from_mac[MAC_LENGTH];
};

#define TABLE(name, entries, from, to)                                                             \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                                   \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                              \
		__uint(max_entries, entries);                                                      \
		__type(key, from);                                                                 \
		__type(value, to);                                                                 \
	} name SEC(".maps")

TABLE(pod_by_device, PODS_MAX, __u32, struct pod);
TABLE(device_by_mac, PODS_MAX, struct mac_key, __u32);
TABLE(device_by_addr, PODS_MAX *POD_ADDRS_MAX, struct addr_key, __u32);
TABLE(device_by_wire, PODS_MAX, __u32, __u32);
TABLE(verdict_by_pair, PAIRS_MAX, struct pair, enum verdict);

/*
 * The flows that came through the switch, by the pod that sent the packet. Each pod has a
 * table of its own, so that a pod that opens many flows forgets its own ones only.
 */
struct flow_table {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS_MAX);
	__uint(key_size, sizeof(struct flow)); /* clang 14 leaves out an inner key's type */
	__uint(value_size, sizeof(__u32));
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, PODS_MAX);
	__type(key, __u32);
	__array(values, struct flow_table);
} flows_by_device SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PODS_MAX);
	__type(key, __u32);
	__type(value, struct counts);
} counts_by_device SEC(".maps");

#define TOLD_BYTES (1 << 18)

struct told_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TOLD_BYTES);
};

/* Who traces a pod makes its ring, and the count of packets for which that had no room. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, PODS_MAX);
	__type(key, __u32);
	__array(values, struct told_ring);
} told_by_device SEC(".maps");

TABLE(untold_by_device, PODS_MAX, __u32, __u64);

#endif
