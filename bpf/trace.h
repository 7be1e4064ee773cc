/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the programs have decided, for who counts and who traces.
 *
 * Theory of operation. Where a container's loopback is on the host, nobody but these programs
 * sees its connects, sends and listens. So they count them. While somebody traces the
 * container, `traced` is in its row, and each decision about a connect goes to a ring
 * buffer. It is the container's own: a container that makes more calls than are read loses its
 * own decisions, which are counted, and no others. Nobody waits for a reader.
 *
 * Of datagrams only those are reported that differ from the one before of the same socket, by
 * their destination or by the verdict. A ring buffer would be full at once with all of them.
 *
 * What is not known here: the number of the descriptor. Who tells the calls of a socket from
 * another's takes its cookie.
 */
#ifndef TSUGIKI_TRACE_H
#define TSUGIKI_TRACE_H

#include "reach.h"

/* The last datagram of a socket that was reported. */
struct reported {
	struct addr asked;
	__u16 port;
	__u16 verdict;
	__u32 traced;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct reported);
} reported_by_socket SEC(".maps");

static __always_inline bool was_reported(struct bpf_sock_addr *ctx, const struct decision *d,
					 int verdict)
{
	struct bpf_sock *sk = ctx->sk;
	struct reported *last;

	if (!sk || d->call != DECIDED_SEND)
		return false;
	if (!d->asked_port)
		return true; /* to the socket's peer, which is known */
	last = bpf_sk_storage_get(&reported_by_socket, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!last)
		return false;
	if (last->traced == container()->traced && last->port == d->asked_port &&
	    last->verdict == verdict && same(&last->asked, &d->asked))
		return true;
	last->asked = d->asked;
	last->port = d->asked_port;
	last->verdict = verdict;
	last->traced = container()->traced;
	return false;
}

/* The errno of a call. Port 0 of TCP is where nobody listens. */
static __always_inline __u32 errno_of(const struct decision *d, int verdict)
{
	int set;

	if (verdict == ALLOW)
		return d->protocol == IPPROTO_TCP && !d->led_port && d->asked_port
			       ? 111 /* ECONNREFUSED */
			       : 0;
	set = bpf_get_retval(); /* since Linux 6.0, see deny_as */
	return set < 0 ? -set : 1 /* EPERM */;
}

/*
 * Reports a decision, of which the hook has filled in the call and both addresses. A function
 * of its own, as special_words is.
 */
__noinline int report(struct bpf_sock_addr *ctx, const struct decision *of, int verdict)
{
	struct decision *d;
	void *ring;

	if (!of || was_reported(ctx, of, verdict))
		return 0;
	ring = table_of(&trace_tables);
	d = ring ? bpf_ringbuf_reserve(ring, sizeof(*d), 0) : NULL;
	if (!d) {
		counts()->unreported++;
		return 0;
	}
	*d = *of;
	d->time = bpf_ktime_get_ns();
	d->socket = bpf_get_socket_cookie(ctx);
	d->endpoint = endpoint_number(ctx->protocol, &d->asked, d->asked_port);
	d->protocol = ctx->protocol;
	d->thread = bpf_get_current_pid_tgid();
	d->errno = errno_of(d, verdict);
	d->traced = container()->traced;
	bpf_ringbuf_submit(d, 0);
	return 0;
}

/* Counts a call about which the programs alone decide. Returns whether it is to be reported. */
static __always_inline bool count_decision(enum decided_call call)
{
	const struct container *c = container();

	if (!c->loopback)
		return false;
	counts()->decided[call]++;
	return c->traced;
}

/* A call to an IPv4 address has been decided about; the context says where it leads now. */
static __always_inline int decided4(struct bpf_sock_addr *ctx, enum decided_call call, __u32 asked,
				    __u32 port, int verdict)
{
	struct decision d = {};

	if (call == DECIDED_CONNECT && ctx->user_family != AF_INET)
		return verdict; /* the kernel will refuse it */
	if (!count_decision(call))
		return verdict;
	d.call = call;
	d.asked = mapped(asked);
	d.asked_port = bpf_ntohs(port);
	d.led = mapped(ctx->user_ip4);
	d.led_port = bpf_ntohs(ctx->user_port);
	report(ctx, &d, verdict);
	return verdict;
}

static __always_inline int decided6(struct bpf_sock_addr *ctx, enum decided_call call,
				    const struct addr *asked, __u32 port, int verdict)
{
	struct decision d = {};

	if (call == DECIDED_CONNECT && ctx->user_family != AF_INET6)
		return verdict;
	if (!count_decision(call))
		return verdict;
	d.call = call;
	d.asked = *asked;
	d.asked_port = bpf_ntohs(port);
	d.led = user6(ctx);
	d.led_port = bpf_ntohs(ctx->user_port);
	report(ctx, &d, verdict);
	return verdict;
}

#endif
