/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Connections that go by a relay of the supervisor's, on the container's loopback: the control
 * connections of FTP where IPv4 is translated (docs/design/translate.md). The relay's socket stands
 * in for the program's peer, and the program sees the names that it would see without the relay.
 */
#ifndef TSUGIKI_STANDIN_H
#define TSUGIKI_STANDIN_H

#include "addr.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stand_in);
} stand_in_by_socket SEC(".maps");

static __always_inline struct stand_in *stand_in(struct bpf_sock *sk)
{
	struct stand_in *s = sk ? bpf_sk_storage_get(&stand_in_by_socket, sk, 0, 0) : NULL;

	return s && s->container == container()->id ? s : NULL;
}

/* Whether a socket connects to where the supervisor has let it. */
static __always_inline bool meets_stand_in(struct bpf_sock *sk, const struct addr *to, __u16 port)
{
	struct stand_in *s = stand_in(sk);

	return s && s->port == port && is_mapped(to) && to->word[3] == bpf_htonl(0x7f000001);
}

/* What a socket's names are instead, while it is connected to a stand-in; or NULL. */
static __always_inline struct stand_in *stood_in(struct bpf_sock *sk)
{
	struct stand_in *s = stand_in(sk);

	if (!s || bpf_ntohs(sk->dst_port) != s->port ||
	    *(volatile __u32 *)&sk->dst_ip4 != bpf_htonl(0x7f000001))
		return NULL;
	return s;
}

#endif
