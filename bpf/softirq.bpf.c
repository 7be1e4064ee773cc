/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * For whom the kernel receives packets.
 *
 * Theory of operation. Receiving runs in the NET_RX softirq, on top of whatever
 * task the CPU was running, to which the kernel bills it. The time of a softirq
 * is cut into segments: one begins with a packet on a device and lasts to the
 * next packet of somebody else, or to the softirq's end. It is the time of the
 * owner of
 *   - the socket that the packet reaches, if its cgroup is known, else
 *   - the device on which the packet came, else
 *   - the device to which it was handed on (a veth's other end).
 * A packet that passes several devices makes several segments, one after the
 * other: nothing is counted twice.
 *
 * The time is also the biller's: whose task was current. Kernel threads and idle
 * CPUs bill nobody.
 *
 * Packets that a task feeds in outside of the softirq (tun), and threads that
 * poll devices (threaded NAPI), bill their own task and are left alone. Between
 * the softirq's begin and its first packet is the driver's time, which is left
 * alone too. A kernel with PREEMPT_RT preempts softirqs, and the time of who
 * preempts is counted with it.
 *
 * Oldest kernel: 5.15.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "task.h"

#define DEVICES_MAX 16384
#define GROUPS_MAX  16384
#define SLOTS_MAX   2048
#define DEPTH_MAX   8 /* of a task's group below its container's */

#define NET_RX_SOFTIRQ 3

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
};

#pragma clang attribute pop

enum receive_slot {
	RECEIVE_NOBODY,
	RECEIVE_FIRST,
};

struct receive_device {
	__u32 netns;
	__u32 ifindex;
};

/* ns */
struct receive_work {
	__u64 received; /* for this owner */
	__u64 own;	/* of which the kernel billed to this owner */
	__u64 others;	/* billed to this owner, but received for others */
};

struct segment {
	__u64 since;
	enum receive_slot owner;
	enum receive_slot biller;
	bool open;    /* a softirq is running */
	bool begun;   /* and has received something */
	bool guessed; /* the device's owner is nobody: owner comes of what happened later */
};

/* Set before loading: whether the kernel bills softirqs to tasks. */
const volatile bool billed;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct segment);
} segment_of_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, DEVICES_MAX);
	__type(key, struct receive_device);
	__type(value, __u32);
} slot_by_device SEC(".maps");

/* By the inode of a group of the cpu controller. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GROUPS_MAX);
	__type(key, __u64);
	__type(value, __u32);
} slot_by_cpu_group SEC(".maps");

/* Of the cgroup to which receive_socket is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, __u32);
} slot_of_group SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS_MAX);
	__type(key, __u32);
	__type(value, struct receive_work);
} work_by_slot SEC(".maps");

static __always_inline struct segment *segment(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&segment_of_cpu, &zero);
}

/* Whose task this CPU was running. */
static __always_inline __u32 biller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cgroup_subsys_state *css = NULL;
	struct css_set *groups;
	__u64 id, cpu;
	__u32 *slot;

	if (!billed || task->pid == 0 || task->flags & PF_KTHREAD)
		return RECEIVE_NOBODY;
	groups = task->cgroups;
	cpu = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	bpf_probe_read_kernel(&css, sizeof(css), (void *)&groups->subsys + cpu * sizeof(css));
	for (int i = 0; css && i < DEPTH_MAX; i++) {
		id = BPF_CORE_READ(css, cgroup, kn, id);
		slot = bpf_map_lookup_elem(&slot_by_cpu_group, &id);
		if (slot)
			return *slot;
		css = BPF_CORE_READ(css, parent);
	}
	return RECEIVE_NOBODY;
}

static __always_inline __u32 device_owner(struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct receive_device key = {.netns = dev->nd_net.net->ns.inum, .ifindex = dev->ifindex};
	__u32 *slot = bpf_map_lookup_elem(&slot_by_device, &key);

	return slot ? *slot : RECEIVE_NOBODY;
}

/* Accounts the segment up to now, when a segment of the owner begins. */
static __always_inline void turn(struct segment *s, __u32 owner)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 ns = now - s->since;
	struct receive_work *to, *by;

	s->since = now;
	to = bpf_map_lookup_elem(&work_by_slot, &s->owner);
	by = bpf_map_lookup_elem(&work_by_slot, &s->biller);
	if (to && by && s->owner != RECEIVE_NOBODY) {
		__sync_fetch_and_add(&to->received, ns);
		__sync_fetch_and_add(s->biller == s->owner ? &by->own : &by->others, ns);
	}
	s->owner = owner;
}

/* Whose the packet at hand is has turned out. */
static __always_inline void assign(struct segment *s, __u32 owner)
{
	if (s->owner == RECEIVE_NOBODY)
		s->owner = owner;
	else if (s->owner != owner)
		turn(s, owner);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(receive_begin, unsigned int vec)
{
	struct segment *s;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	s = segment();
	if (s)
		s->open = true;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(receive_packet, struct sk_buff *skb)
{
	struct segment *s = segment();
	__u32 owner;

	if (!s || !s->open)
		return 0;
	owner = device_owner(skb);
	if (!s->begun) {
		s->begun = true;
		s->since = bpf_ktime_get_ns();
		s->biller = biller();
		s->owner = owner;
	} else if (owner == RECEIVE_NOBODY || owner != s->owner) {
		turn(s, owner);
	}
	s->guessed = owner == RECEIVE_NOBODY;
	return 0;
}

SEC("tp_btf/netif_rx")
int BPF_PROG(receive_handed, struct sk_buff *skb)
{
	struct segment *s = segment();
	__u32 owner;

	if (!s || !s->begun || !s->guessed)
		return 0;
	owner = device_owner(skb);
	if (owner != RECEIVE_NOBODY)
		assign(s, owner);
	return 0;
}

SEC("cgroup_skb/ingress")
int receive_socket(struct __sk_buff *skb)
{
	__u32 *slot = bpf_get_local_storage(&slot_of_group, 0);
	struct segment *s = segment();

	if (s && s->begun && *slot != RECEIVE_NOBODY)
		assign(s, *slot);
	return 1;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(receive_end, unsigned int vec)
{
	struct segment *s;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	s = segment();
	if (!s)
		return 0;
	if (s->begun)
		turn(s, RECEIVE_NOBODY);
	s->open = false;
	s->begun = false;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
