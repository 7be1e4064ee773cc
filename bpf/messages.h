/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Datagrams of a protocol whose messages name addresses: SIP (docs/design/translate.md).
 *
 * Theory of operation. translate.bpf.c judges such a datagram as any other, and finds where it
 * would go. Then it writes the datagram to a ring buffer, and drops the packet. The supervisor
 * rewrites the message, and sends it where the packet would have gone, by a raw socket. So neither
 * side sees anything of the supervisor's. Without room in the ring buffer the datagram is lost.
 *
 * A message may say that a host will send media to a port of the program. Then the supervisor
 * expects the host there, and the socket hears it as if it had sent to it before (heard.h).
 */
#ifndef TSUGIKI_MESSAGES_H
#define TSUGIKI_MESSAGES_H

#include "hosts.h"

#include "heardset.h"

/* Ports of a protocol whose datagrams the supervisor rewrites, as programs know them; 0: none. */
volatile const __u16 rewritten_ports[RELAYED_PORTS_MAX];

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, MESSAGES_BYTES);
} messages SEC(".maps");

struct whole_message {
	struct message head;
	__u8 data[MESSAGE_MAX];
};

/* Hosts that the supervisor expects, each until a time, CLOCK_MONOTONIC in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EXPECTED_MAX);
	__type(key, struct expected);
	__type(value, __u64);
} expected_hosts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct heard);
} heard_by_socket SEC(".maps");

/* One is too large for a program's stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct whole_message);
} message_room SEC(".maps");

/* The datagrams for which the ring buffer had no room. */
volatile __u64 messages_lost;

static __always_inline bool is_rewritten(__u16 port)
{
	int i;

	for (i = 0; i < RELAYED_PORTS_MAX; i++)
		if (rewritten_ports[i] && rewritten_ports[i] == port)
			return true;
	return false;
}

/* Whether a datagram is one that the supervisor rewrites. What the kernel would cut into several
 * (UDP_SEGMENT) is none, and neither is an empty one. LENGTH is of its payload. */
static __always_inline bool is_message(struct __sk_buff *skb, const struct flow *f, int length)
{
	return length > 0 && !skb->gso_size &&
	       (is_rewritten(bpf_ntohs(f->host_port)) || is_rewritten(f->known));
}

static __always_inline struct message message(const struct flow *f, __u8 tos, __u8 ttl)
{
	struct message m = {.host = f->host,
			    .here = f->here,
			    .host_port = bpf_ntohs(f->host_port),
			    .here_port = bpf_ntohs(f->here_port),
			    .alias = f->alias,
			    .port = bpf_ntohs(f->port),
			    .tos = tos,
			    .ttl = ttl};

	return m;
}

/* Has the container's socket for a datagram hear its sender, if that is expected. The first
 * datagram is enough. */
static __always_inline void meet_expected(struct __sk_buff *skb, const struct flow *f)
{
	struct expected key = {.host = f->host, .port = bpf_ntohs(f->port)};
	struct addr alias = {{0, 0, bpf_htonl(0xffff), f->alias}};
	__u64 *until = bpf_map_lookup_elem(&expected_hosts, &key);
	struct bpf_sock *sk;
	struct heard *h;

	if (!until)
		return;
	if (*until < bpf_ktime_get_ns()) {
		bpf_map_delete_elem(&expected_hosts, &key);
		return;
	}
	sk = socket_of(skb, f);
	if (!sk)
		return;
	if (is_ours(sk)) {
		h = bpf_sk_storage_get(&heard_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (h && !is_heard(h, &alias, 0))
			note_heard(h, &alias, 0);
		if (h)
			bpf_map_delete_elem(&expected_hosts, &key);
	}
	bpf_sk_release(sk);
}

/* Gives a datagram to the supervisor. Its payload begins at AT, and has LENGTH bytes. */
static __always_inline void hand_over(struct __sk_buff *skb, const struct message *head, __u32 at,
				      __u32 length)
{
	struct whole_message *room;
	__u32 none = 0, part = length;

	room = bpf_map_lookup_elem(&message_room, &none);
	if (!room)
		return;
	room->head = *head;
	room->head.length = length;
	if (part > MESSAGE_MAX)
		part = MESSAGE_MAX;
	/* The compiler must not know that this is the length, which may be larger. */
	__asm__ volatile("" : "+r"(part));
	if (part < 1 || part > MESSAGE_MAX || bpf_skb_load_bytes(skb, at, room->data, part))
		return;
	if (bpf_ringbuf_output(&messages, room, sizeof(room->head) + part, 0))
		__sync_fetch_and_add(&messages_lost, 1);
}

#endif
