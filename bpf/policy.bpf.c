/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The security boundary of a grafted container.
 *
 * Theory of operation. A container's host sockets are made by its keeper, in
 * the keeper's cgroup, and these programs are attached to that cgroup. The
 * kernel runs them on the cgroup in which a socket was *created*, so they see
 * every use of it, whoever holds it by then: after dup, fork, SCM_RIGHTS or
 * connect(AF_UNSPEC), by raw system calls or io_uring, and with a sockaddr that
 * another thread has changed since the supervisor looked at it.
 *
 * A container's own loopback is on the host, where its namespace has nothing else:
 * see loopback.h. Others have it in their own namespace, where their servers are not
 * that an ingress rule has brought here. A destination there that such a server
 * has is rewritten to where the server is, if the socket that listens there is
 * this container's indeed. Datagrams to the other servers there, from a socket
 * that has not been moved, go by the relay: see relay.h.
 *
 * connect, sendmsg: the longest matching prefix of the destination must name an
 *   endpoint of this container that lives in the socket's own namespace; the
 *   endpoint's address becomes the source.
 *   A socket that was bound to an endpoint by its name (AF_GRAFT) reaches what no
 *   rule speaks of through that one, but for special destinations.
 * bind: only what the supervisor wrote into binding_by_socket beforehand.
 * recvmsg: remembers the peers of unconnected UDP servers, for whom there is no
 *   egress rule, so that they can be answered.
 * getsockname: tells the program the name that it bound.
 * setsockopt: refuses what would lead a socket around the other hooks.
 * connect, sendmsg to a DNS port: where IPv4 is translated, to the DNS proxy: see resolver.h.
 * listen: a socket that was never bound listens on any address and a port that
 *   the kernel picks, past every bind hook. Where the loopback is on the host, only
 *   that reaches it. Else the supervisor never lets that happen; should a program get
 *   there by a race, nobody can reach it.
 *
 * connect, sendmsg and listen count what they decide where nobody else sees the calls, and
 * report it to who traces the container: see trace.h.
 *
 * A sockaddr of a family that the kernel will refuse anyway is passed on, so that
 * the program gets the kernel's errno for it.
 *
 * Oldest kernel: 5.15. What is denied is EPERM for the program, or what deny_as says.
 */
#include "held.h"
#include "listen.h"
#include "mapped.h"
#include "names.h"
#include "packets.h"
#include "relay.h"
#include "resolver.h"
#include "send.h"
#include "source.h"
#include "standin.h"
#include "trace.h"
#include "udp.h"

static __always_inline int decide_connect4(struct bpf_sock_addr *ctx)
{
	struct sockaddr_in from = {.sin_family = AF_INET};
	struct addr at, to = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct endpoint *ep;
	int verdict;

	if (leads_to_host(ctx, &to, port, true, &verdict)) {
		ctx->user_ip4 = to.word[3];
		return verdict == ALLOW ? ALLOW : unreachable(&to);
	}
	if (meets_stand_in(ctx->sk, &to, port))
		return ALLOW;
	if (answers(ctx, &to, port))
		return tries(ctx, &to);
	ep = egress(ctx, &to, port);
	if (!ep && by_name4(ctx, &to))
		return tries(ctx, &to);
	if (!ep && on_loopback(&to))
		return connect_loopback4(ctx, &to, port);
	if (!ep) {
		if (!connects_to_own(ctx, &to, &port))
			return unreachable(&to);
		ctx->user_ip4 = to.word[3];
		ctx->user_port = bpf_htons(port);
		return ALLOW;
	}
	at = mapped(ctx->sk ? ctx->sk->src_ip4 : 0);
	if (has_source(ctx->sk, ep, &at, &to) || keeps_name(ctx->sk, &at))
		return tries(ctx, &to);
	from.sin_addr.s_addr = ep->addr.word[3];
	from.sin_port = bpf_htons(ep->port);
	if (bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from)))
		return deny(DENIED_CONNECT);
	lend(ctx->sk, ep);
	return tries(ctx, &to);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	__u32 asked = ctx->user_ip4;
	__u32 port = ctx->user_port;

	if (ctx->user_family != AF_INET)
		return ALLOW; /* the kernel refuses it */
	ask_resolver4(ctx);
	return decided4(ctx, DECIDED_CONNECT, asked, port, decide_connect4(ctx));
}

static __always_inline int decide_connect6(struct bpf_sock_addr *ctx)
{
	struct sockaddr_in6 from = {.sin6_family = AF_INET6};
	struct addr to = user6(ctx);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	struct endpoint *ep;
	struct addr at;

	if (ctx->user_family != AF_INET6)
		return ALLOW;
	if (answers(ctx, &to, port))
		return tries(ctx, &to);
	ep = egress(ctx, &to, port);
	if (!ep && by_name6(ctx, &to))
		return tries(ctx, &to);
	if (!ep && on_loopback(&to))
		return connect_loopback6(ctx, &to, port);
	if (!ep) {
		if (!connects_to_own(ctx, &to, &port))
			return unreachable(&to);
		redirect6(ctx, &to, port);
		return ALLOW;
	}
	at = sk ? source6(sk) : (struct addr){};
	if (has_source(sk, ep, &at, &to) || keeps_name(sk, &at))
		return tries(ctx, &to);
	__builtin_memcpy(&from.sin6_addr, &ep->addr, sizeof(from.sin6_addr));
	from.sin6_port = bpf_htons(ep->port);
	if (bpf_bind(ctx, (struct sockaddr *)&from, sizeof(from)))
		return deny(DENIED_CONNECT);
	lend(sk, ep);
	return tries(ctx, &to);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct addr asked = user6(ctx);
	__u32 port = ctx->user_port;

	ask_resolver6(ctx);
	if (!leads_to_ip6(ctx))
		return DENY;
	return decided6(ctx, DECIDED_CONNECT, &asked, port, decide_connect6(ctx));
}

static __always_inline int may_bind(struct bpf_sock_addr *ctx, const struct addr *to, __u16 port)
{
	struct bpf_sock *sk = ctx->sk;
	struct binding *b;

	if (!sk)
		return deny(DENIED_BIND);
	b = binding_of(sk);
	if ((!b || b->host_port != port || !same(&b->host, to)) && (port || !on_loopback(to)))
		return deny(DENIED_BIND);
	join_loopback(sk, false);
	return ALLOW;
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	struct addr to = mapped(ctx->user_ip4);

	/* AF_UNSPEC passes for AF_INET where the address is the wildcard. */
	if (ctx->user_family != AF_INET && (ctx->user_family != AF_UNSPEC || ctx->user_ip4))
		return ALLOW;
	return may_bind(ctx, &to, bpf_ntohs(ctx->user_port));
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	struct addr to = user6(ctx);

	if (ctx->user_family != AF_INET6)
		return ALLOW;
	return may_bind(ctx, &to, bpf_ntohs(ctx->user_port));
}

static __always_inline int decide_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct addr at, to = mapped(ctx->user_ip4);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	__u32 bound, rules;
	struct endpoint *ep;
	int verdict;
	__u16 led;
	bool own;

	if (!sk)
		return deny(DENIED_SENDMSG);
	if (leads_to_host(ctx, &to, port, false, &verdict)) {
		ctx->user_ip4 = to.word[3];
		return verdict == ALLOW ? ALLOW : deny_as(DENIED_SENDMSG, 101 /* ENETUNREACH */);
	}
	led = was_led(sk, &to, port);
	if (led)
		return send_as_before4(ctx, led);
	rules = container()->rules;
	begins(sk, &to);
	if (is_relay(sk, container()->relay_port4))
		return relay_answer4(ctx);
	/*
	 * An AF_INET6 socket that sends to a mapped address comes here too; its
	 * src_ip4 is the address of which its src_ip6 is the mapped form.
	 */
	bound = sk->src_ip4;
	if (!to_connected_peer(ctx, sk)) {
		ep = egress(ctx, &to, port);
		if (!ep && !known_peer(ctx, &to, port) && !by_name4(ctx, &to)) {
			if (on_loopback(&to))
				return send_loopback4(ctx, &to, port, rules);
			if (!own_server(ctx, &to, &port))
				return relay4(ctx, sk, &to, port) ? ALLOW : deny(DENIED_SENDMSG);
			hear(sk, &to, port);
			ctx->user_ip4 = to.word[3];
			ctx->user_port = bpf_htons(port);
			return ALLOW;
		}
		at = mapped(bound);
		if (ep && !leaves_by(sk, ep, &at, &to, &own))
			return deny(DENIED_SENDMSG);
		hear(sk, &to, 0);
		if (ep && !own) {
			bound = ep->addr.word[3];
			if (!wildcard(&at) && !bound)
				ctx->msg_src_ip4 = 0;
		}
	}
	if (bound)
		ctx->msg_src_ip4 = bound;
	return ALLOW;
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	__u32 asked = ctx->user_ip4;
	__u32 port = ctx->user_port;

	ask_resolver4(ctx);
	return decided4(ctx, DECIDED_SEND, asked, port, decide_sendmsg4(ctx));
}

static __always_inline int decide_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr to = user6(ctx);
	__u16 port = bpf_ntohs(ctx->user_port);
	struct bpf_sock *sk = ctx->sk;
	struct endpoint *ep;
	bool own, stale = false;
	struct addr bound;
	__u32 rules;
	__u16 led;

	if (!sk)
		return deny(DENIED_SENDMSG);
	led = was_led(sk, &to, port);
	if (led)
		return send_as_before6(ctx, led);
	rules = container()->rules;
	if (is_relay(sk, container()->relay_port6))
		return relay_answer6(ctx);
	bound = source6(sk);
	if (!to_connected_peer(ctx, sk)) {
		ep = egress(ctx, &to, port);
		if (!ep && !known_peer(ctx, &to, port) && !by_name6(ctx, &to)) {
			if (on_loopback(&to))
				return send_loopback6(ctx, &to, port, rules);
			if (!own_server(ctx, &to, &port))
				return relay6(ctx, sk, &to, port) ? ALLOW : deny(DENIED_SENDMSG);
			hear(sk, &to, port);
			redirect6(ctx, &to, port);
			return ALLOW;
		}
		if (ep && !leaves_by(sk, ep, &bound, &to, &own))
			return deny(DENIED_SENDMSG);
		hear(sk, &to, 0);
		if (ep && !own) {
			stale = !wildcard(&bound);
			bound = ep->addr;
		}
	}
	if (stale || !wildcard(&bound))
		send_from6(ctx, &bound);
	return ALLOW;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr asked = user6(ctx);
	__u32 port = ctx->user_port;

	ask_resolver6(ctx);
	return decided6(ctx, DECIDED_SEND, &asked, port, decide_sendmsg6(ctx));
}

/* Whether a socket would get back the datagrams that it has sent. */
static __always_inline bool sends_back(struct bpf_sockopt *ctx)
{
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	__u32 flags;

	if (!ctx->sk || ctx->sk->protocol != IPPROTO_UDP || value + 4 > end)
		return false;
	flags = *(__u32 *)value;
	return flags & OPTIONS_TIMESTAMPING_SENT && !(flags & OPTIONS_TIMESTAMPING_NO_DATA);
}

/* Whether an option would leave out UDP's checksum, which IPv6 needs (RFC 8200 section 8.1). Then
 * the kernel computes it all the same. */
static __always_inline bool keeps_checksum(struct bpf_sockopt *ctx)
{
	__u8 *value, *end;

	/* As in set_translated. */
	__asm__ volatile("" : "+r"(ctx));
	value = ctx->optval;
	end = ctx->optval_end;
	if (!container()->pool || ctx->level != 1 /* SOL_SOCKET */ ||
	    ctx->optname != 11 /* SO_NO_CHECK */ || value + 4 > end)
		return false;
	*(__u32 *)value = 0;
	return true;
}

/* Whether an option has the kernel encrypt (kTLS): TCP_ULP with no other name than "tls". */
static __always_inline bool encrypts(struct bpf_sockopt *ctx)
{
	__u8 *value, *end;

	/* As in set_translated. */
	__asm__ volatile("" : "+r"(ctx));
	value = ctx->optval;
	end = ctx->optval_end;
	if (ctx->level != 6 || ctx->optname != OPTIONS_ULP || ctx->optlen < 3 || value + 3 > end)
		return false;
	if (value[0] != 't' || value[1] != 'l' || value[2] != 's')
		return false;
	return ctx->optlen == 3 || (value + 4 <= end && !value[3]);
}

SEC("cgroup/setsockopt")
int setsockopt(struct bpf_sockopt *ctx)
{
	__u32 bit;

	/* The kernel need not see more of a value than the program passed. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	if (ctx->level == 0 && ctx->optname == OPTIONS_PROOF)
		return DENY;
	if (set_translated(ctx) || becomes_translated(ctx) || keeps_checksum(ctx))
		return ALLOW;
	bit = held_bit(ctx->level, ctx->optname);
	if (bit)
		return hold(ctx, bit);
	if (options_timestamping(ctx->level, ctx->optname) && sends_back(ctx))
		return deny(DENIED_SETSOCKOPT);
	if (!options_refused(ctx->level, ctx->optname) || encrypts(ctx))
		return ALLOW;
	if (ctx->level == 1 && ctx->sk && is_relay(ctx->sk, container()->relay_port4))
		return ALLOW; /* it has to be bound to the loopback device */
	return deny(DENIED_SETSOCKOPT);
}

char LICENSE[] SEC("license") = "GPL";
