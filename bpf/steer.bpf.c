/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * One listener for an address of each family.
 *
 * Theory of operation. A program listens on the wildcard of both families, and its rules give it
 * an address of the host's for each. A socket has one address. So the program's is bound to the
 * address of IPv4, in the mapped form, which leaves it a socket of both families; and this
 * program, which the kernel asks for the listener of a SYN before it looks for one itself
 * (sk_lookup), names it for the address of IPv6 too. Peers, accepted sockets and their names are
 * then what the kernel makes of any listener of both families.
 *
 * guard_listen puts listeners into the table, for addresses that the supervisor has noted. The
 * supervisor holds a socket that is bound to such an address, and does not listen: so the port is
 * nobody else's.
 *
 * It is attached to the network namespace of the address. Oldest kernel: 5.9.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "steered.h"

#define AF_INET6 10

/* The cookie of the namespace that the program is attached to. */
volatile const __u64 netns;

SEC("sk_lookup")
int steer(struct bpf_sk_lookup *ctx)
{
	struct steered key = {};
	struct bpf_sock *sk;
	__u32 slot;
	long refused;

	if (ctx->family != AF_INET6 || ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	key.netns = netns;
	key.addr.word[0] = ctx->local_ip6[0];
	key.addr.word[1] = ctx->local_ip6[1];
	key.addr.word[2] = ctx->local_ip6[2];
	key.addr.word[3] = ctx->local_ip6[3];
	key.port = ctx->local_port;
	for (slot = 0; slot < STEER_SLOTS; slot++) {
		key.slot = slot;
		sk = bpf_map_lookup_elem(&steered_listeners, &key);
		if (!sk)
			continue;
		refused = bpf_sk_assign(ctx, sk, 0);
		bpf_sk_release(sk);
		if (!refused)
			break;
	}
	return SK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
