/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The packets of a container's host sockets: a second wall behind the hooks of the
 * socket calls.
 *
 * Theory of operation. The hooks see what a program says: a destination, a name, an
 * option. They do not see what it says in control messages (a source route, a routing
 * header, which some kernels let everybody send), nor what the kernel does by itself. So
 * each packet is looked at as it leaves, after routing:
 *
 *	TCP	a SYN must go where connect could go now; who answers one must have been
 *		bound by a rule or by name; all other segments belong to a connection that
 *		began so, and pass
 *	UDP	to the peer that the socket is connected to, or where sendmsg could send
 *	both	no IP options, no IPv6 extension header, and the endpoint's source
 *
 * and a connection goes on when the rule that let it begin is gone.
 *
 * A datagram that waits for its rest (MSG_MORE) is asked about when it is begun. While it
 * waits, connect(2) overwrites where it goes to, also if it then fails, as it does with a
 * broadcast (__ip4_datagram_connect writes inet->cork.fl). So a datagram of a socket that
 * is not connected does not leave to where the socket has tried to connect to, unless one
 * was begun for there since. Who has another thread begin one at the same moment, which
 * the kernel refuses as the socket has one that waits, could still have it leave.
 *
 * A UDP socket that no ingress rule has bound has a port on the host all the same. Other
 * than a NAT it would hear everybody. So what comes for it passes only from its peer, if
 * it is connected, or from hosts that it has lately sent to: heard_by_socket has up to
 * HEARD_MAX of them, those of one set replaced in turn.
 *
 * A listener that no rule has bound, where the loopback is on the host, takes a SYN of that
 * loopback only: see loopback.h. A socket that connects there hears no other either.
 *
 * The kernel gives the programs a packet that begins with the IP header, before it is cut
 * into fragments or segments. Without a full socket (a SYN cookie, TIME_WAIT) it does not
 * ask them; such packets carry nothing that a program wrote.
 */
#ifndef TSUGIKI_PACKETS_H
#define TSUGIKI_PACKETS_H

#include "heard.h"
#include "loopback.h"
#include "relay.h"
#include "sources.h"
#include "udp.h"

#define TCP_SYN	     0x02
#define TCP_SYN_SENT 2
#define TCP_LISTEN   10

struct packet {
	struct addr from, to;
	__u16 from_port, to_port;
	__u8 protocol;
};

/*
 * What a packet is, or false if it is none that a program may send: one with IP
 * options or extension headers, or neither TCP nor UDP.
 */
static __always_inline bool parse(struct __sk_buff *skb, struct packet *p)
{
	__u8 *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *ports;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (ip + 28 > end || ip[0] != 0x45)
			return false;
		p->protocol = ip[9];
		p->from = mapped(*(__u32 *)(ip + 12));
		p->to = mapped(*(__u32 *)(ip + 16));
		ports = ip + 20;
	} else {
		if (ip + 48 > end || ip[0] >> 4 != 6)
			return false;
		p->protocol = ip[6];
		__builtin_memcpy(&p->from, ip + 8, sizeof(p->from));
		__builtin_memcpy(&p->to, ip + 24, sizeof(p->to));
		ports = ip + 40;
	}
	p->from_port = bpf_ntohs(*(__u16 *)ports);
	p->to_port = bpf_ntohs(*(__u16 *)(ports + 2));
	return p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP;
}

/*
 * Whether a packet is of a TCP connection that has begun. Those are most, and so they
 * are told from the others by four bytes. A segment of more than 64 KiB has a
 * hop-by-hop header of 8 bytes that the kernel writes (RFC 2675). A program with CAP_NET_RAW
 * writes one before a SYN, too.
 */
static __always_inline bool goes_on(struct __sk_buff *skb)
{
	__u8 *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return ip + 34 <= end && ip[0] == 0x45 && ip[9] == IPPROTO_TCP &&
		       !(ip[33] & TCP_SYN);
	if (ip + 54 > end || ip[0] >> 4 != 6)
		return false;
	if (ip[6] == 0)
		return skb->len > 65535 && ip + 62 <= end && ip[40] == IPPROTO_TCP && !ip[41] &&
		       !(ip[61] & TCP_SYN);
	return ip[6] == IPPROTO_TCP && !(ip[53] & TCP_SYN);
}

static __always_inline struct addr peer_of(struct bpf_sock *sk)
{
	/* Of an AF_INET6 socket that is connected to a mapped address, ::ffff:a.b.c.d. */
	struct addr peer = {{sk->dst_ip6[0], sk->dst_ip6[1], sk->dst_ip6[2], sk->dst_ip6[3]}};
	/* Volatile, or the compiler computes a pointer into the socket, which may not be. */
	__u32 ip4 = *(volatile __u32 *)&sk->dst_ip4;

	return sk->family == AF_INET ? mapped(ip4) : peer;
}

static __always_inline bool is_peer(struct bpf_sock *sk, const struct packet *p)
{
	struct addr peer = peer_of(sk);

	return sk->dst_port == bpf_htons(p->to_port) && same(&peer, &p->to);
}

/* Whether a source is what an endpoint wants, or what a rule or a name let the socket bind. */
static __always_inline bool right_source(const struct endpoint *ep, const struct binding *b,
					 const struct addr *from, const struct addr *to)
{
	return fits(&ep->addr, from, to) || (b && b->ingress && fits(&b->host, from, to));
}

/* Whether a datagram to the peer of its socket has the source that a rule wants, or wanted when
 * there was one. Most are known to have it from connect on. */
static __always_inline bool has_right_source(struct bpf_sock *sk, const struct packet *p)
{
	__u8 *right = bpf_sk_storage_get(&kept_by_socket, sk, 0, 0);
	struct binding *b;
	struct endpoint *ep;

	if (!right)
		return true;
	b = binding_of(sk);
	ep = endpoint_for(p->protocol, &p->to, p->to_port);
	if (ep)
		*right = right_source(ep, b, &p->from, &p->to);
	return *right || (!ep && b && b->ingress && fits(&b->host, &p->from, &p->to));
}

/* Whether a datagram is on its way to the relay, or from it: see relay.h. */
static __always_inline bool by_relay(struct __sk_buff *skb, struct bpf_sock *sk,
				     const struct packet *p)
{
	const struct container *c = container();

	if (skb->ifindex != LOOPBACK_IFINDEX || p->protocol != IPPROTO_UDP)
		return false;
	if (is_mapped(&p->to))
		return (p->to_port == c->relay_port4 && p->from.word[3] == c->relay_from4) ||
		       is_relay(sk, c->relay_port4);
	return (p->to_port == c->relay_port6 && p->from.word[0] == c->relay_from6.word[0] &&
		p->from.word[2] == c->relay_from6.word[2]) ||
	       is_relay(sk, c->relay_port6);
}

/* Whether a rule, an endpoint's name or the container's own servers lead a packet to
 * where it goes. Those that are asked most come first. */
static __always_inline bool may_leave(struct __sk_buff *skb, struct bpf_sock *sk,
				      const struct packet *p)
{
	struct binding *b = binding_of(sk);
	struct endpoint *ep;

	if (sk->bound_dev_if && skb->ifindex != LOOPBACK_IFINDEX)
		return false;
	if (p->protocol == IPPROTO_UDP && tried(sk, &p->to))
		return false;
	ep = endpoint_for(p->protocol, &p->to, p->to_port);
	if (ep && right_source(ep, b, &p->from, &p->to))
		return true;
	if (b && named_reaches(b, &p->to, &p->from))
		return true;
	if (p->protocol == IPPROTO_UDP && b && b->ingress && fits(&b->host, &p->from, &p->to) &&
	    known_peer(skb, &p->to, p->to_port))
		return true;
	if (by_relay(skb, sk, p))
		return true;
	/* Port 0 is where own_server leads to when the server has gone. */
	return skb->ifindex == LOOPBACK_IFINDEX &&
	       (!p->to_port || ours(skb, p->protocol, &p->to, p->to_port));
}

/* Whose socket a packet on the loopback goes to, and the port it is known by. Of TCP it is a
 * listener: what has a connection already, another began. */
static __always_inline enum owner receiver(struct __sk_buff *skb, const struct packet *p,
					   __u16 *known)
{
	__u16 from_port = p->protocol == IPPROTO_TCP ? 0 : p->from_port;
	struct bpf_sock *sk = socket_for(skb, p->protocol, &p->from, from_port, &p->to, p->to_port);
	enum owner owner = SOMEBODY;

	if (!sk)
		return NOBODY;
	/* One that has never sent on the loopback is known by its cgroup. */
	if (is_of_loopback(sk) || bpf_sk_cgroup_id(sk) == bpf_skb_cgroup_id(skb))
		owner = LOOPBACK;
	*known = known_port(sk);
	bpf_sk_release(sk);
	return owner;
}

/* Whether a datagram may go where the one before was led. If the receiver is not known by the port
 * that the program has named, the next one is not led there. */
static __always_inline bool led_right(struct bpf_sock *sk, const struct packet *p, enum owner owner,
				      __u16 known)
{
	struct member *m;
	__u16 named, host;
	__u64 led;

	if (p->protocol != IPPROTO_UDP || sk->dst_port)
		return true;
	m = member(sk);
	if (!m)
		return true;
	led = *(volatile __u64 *)&m->led;
	host = led;
	named = led >> 16;
	if (host != p->to_port || (owner == LOOPBACK && named == known))
		return true;
	m->led = 0;
	return owner != LOOPBACK || named == host;
}

/*
 * A packet of a container whose loopback is on the host, where the host delivers it itself. A
 * port of nobody's is left to the kernel, which says so. From a host's socket that no rule
 * leads to, a datagram gets no answer, as on a loopback where it was lost.
 */
static __always_inline int leave_loopback(struct __sk_buff *skb, struct bpf_sock *sk,
					  const struct packet *p)
{
	enum owner owner;
	__u16 known = 0;

	if (sk->state == TCP_LISTEN) /* it was let hear the SYN */
		return ALLOW;
	if (p->protocol == IPPROTO_UDP && is_alias(&p->to))
		return may_leave_for(skb, sk, &p->to, p->to_port) && somebody_translates(skb)
			       ? ALLOW
			       : deny(DENIED_LEAVE);
	if (!loopback(&p->from) && !loopback(&p->to)) {
		/* The peer may have gone, and its port be another's by now. */
		if (p->protocol == IPPROTO_UDP && is_peer(sk, p) && has_right_source(sk, p) &&
		    (!was_led_to_host(sk) || receiver(skb, p, &known) != SOMEBODY))
			return ALLOW;
	} else {
		owner = receiver(skb, p, &known);
		if (!led_right(sk, p, owner, known))
			return DROP;
		if (owner != SOMEBODY)
			return ALLOW;
	}
	if (may_leave(skb, sk, p))
		return ALLOW;
	deny(DENIED_LEAVE);
	return p->protocol == IPPROTO_UDP && loopback(&p->to) ? DROP : DENY;
}

SEC("cgroup_skb/egress")
int leave(struct __sk_buff *skb)
{
	struct packet p;
	struct bpf_sock *sk;

	if (goes_on(skb))
		return ALLOW;
	sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	if (!sk || !parse(skb, &p))
		return deny(DENIED_LEAVE);
	/* Whoever may choose the priority (SO_PRIORITY) could choose another's. */
	if (skb->ifindex == LOOPBACK_IFINDEX)
		skb->priority = container()->mark;
	if (container()->loopback && skb->ifindex == LOOPBACK_IFINDEX)
		return leave_loopback(skb, sk, &p);
	if (p.protocol == IPPROTO_UDP && is_peer(sk, &p))
		return has_right_source(sk, &p) ? ALLOW : deny(DENIED_LEAVE);
	if (sk->state == TCP_LISTEN) /* it answers a SYN */
		return serves(sk) ? ALLOW : deny(DENIED_LEAVE);
	return may_leave(skb, sk, &p) ? ALLOW : deny(DENIED_LEAVE);
}

/* Whether a datagram is the relay's, for a socket that has sent by it: see relay.h. */
static __always_inline bool from_relay(struct __sk_buff *skb, struct bpf_sock *sk,
				       const struct packet *p)
{
	const struct container *c = container();

	if (skb->ifindex != LOOPBACK_IFINDEX || !bpf_sk_storage_get(&relayed_sockets, sk, 0, 0))
		return false;
	if (is_mapped(&p->from))
		return p->from_port == c->relay_port4 && loopback(&p->from);
	return p->from_port == c->relay_port6 && p->from.word[0] == c->relay_from6.word[0] &&
	       p->from.word[2] == c->relay_from6.word[2];
}

/* Whether a packet was sent on the container's loopback, by a socket of that. */
static __always_inline bool is_own(struct __sk_buff *skb)
{
	__u32 id = container()->loopback;

	return id && skb->priority == id && skb->ifindex == LOOPBACK_IFINDEX;
}

/* Whether a packet comes from a loopback address, or for one. */
static __always_inline void sides(struct __sk_buff *skb, bool *from, bool *to)
{
	__u8 *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct addr a, b;

	*from = *to = true;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (ip + 20 > end)
			return;
		a = mapped(*(__u32 *)(ip + 12));
		b = mapped(*(__u32 *)(ip + 16));
	} else {
		if (ip + 40 > end)
			return;
		__builtin_memcpy(&a, ip + 8, sizeof(a));
		__builtin_memcpy(&b, ip + 24, sizeof(b));
	}
	*from = loopback(&a);
	*to = loopback(&b);
}

/*
 * Whether somebody who is not on the container's loopback may reach a socket that a rule has
 * bound: not as one of that. Where the rule has bound an address of the host's loopback, all
 * of the host come from there, and nobody by a link (net.ipv4.conf.*.route_localnet).
 */
static __always_inline bool hears_others(struct __sk_buff *skb, struct bpf_sock *sk)
{
	bool from, to;

	if (!serves_here(sk))
		return false;
	sides(skb, &from, &to);
	return skb->ifindex == LOOPBACK_IFINDEX ? !from || to : !from && !to;
}

/* The same of a UDP socket that no rule has bound: it hears on a loopback address whom a
 * rule lets it send to there. */
static __always_inline bool may_hear_at(struct __sk_buff *skb, const struct packet *p)
{
	if (!loopback(&p->from) && !loopback(&p->to))
		return true;
	return skb->ifindex == LOOPBACK_IFINDEX && loopback(&p->from) &&
	       endpoint_for(p->protocol, &p->from, p->from_port);
}

/* Whether a listener may hear a SYN that is not of its loopback. Its answer is judged too, unless
 * that is a SYN cookie. A container that has ended serves nobody. */
static __always_inline bool hears_syn(struct __sk_buff *skb, struct bpf_sock *sk)
{
	return (container()->loopback ? hears_others(skb, sk) : serves(sk)) && admits(skb, sk);
}

/*
 * Whether a socket that connects may hear a SYN, or the answer to its own. On a loopback address
 * that is one of whom a rule lets it connect to there, or of a socket of the loopback: a
 * stranger's SYN would make a connection too (simultaneous open, RFC 9293 section 3.5). A SYN
 * cookie has no socket that leave could know it by, but its listener is there.
 */
static __always_inline bool may_answer(struct __sk_buff *skb)
{
	struct bpf_sock *other;
	struct packet p;
	bool from, to, own;

	sides(skb, &from, &to);
	if (!from && !to)
		return true;
	if (skb->ifindex != LOOPBACK_IFINDEX || !parse(skb, &p))
		return false;
	if (may_hear_at(skb, &p))
		return true;
	other = socket_for(skb, p.protocol, &p.to, p.to_port, &p.from, p.from_port);
	if (!other)
		return false;
	own = is_of_loopback(other);
	bpf_sk_release(other);
	return own;
}

/* Whether a client's UDP socket may hear who has sent a datagram. */
static __always_inline bool may_hear(struct __sk_buff *skb, struct bpf_sock *sk)
{
	bool shares = container()->loopback;
	struct binding *b = binding_of(sk);
	struct packet p;
	struct heard *h;

	if (container()->pool && is_own(skb) && parse(skb, &p) && is_alias(&p.from))
		return hears_host(sk, &p.from, p.from_port);
	if (b && b->ingress && !sk->dst_port && !admits(skb, sk))
		return false;
	if (is_own(skb) || (shares && hears_others(skb, sk)))
		return true;
	if (!shares && ((b && (b->ingress || b->relay)) || sk->dst_port))
		return true;
	if (!parse(skb, &p))
		return false;
	if (shares && (serves(sk) || !may_hear_at(skb, &p)))
		return false;
	if (sk->dst_port)
		return true;
	if (from_relay(skb, sk, &p))
		return true;
	h = bpf_sk_storage_get(&heard_by_socket, sk, 0, 0);
	if (!h)
		return false;
	if (is_heard(h, &p.from, 0))
		return endpoint_for(p.protocol, &p.from, p.from_port) != NULL;
	return is_heard(h, &p.from, p.from_port);
}

SEC("cgroup_skb/ingress")
int enter(struct __sk_buff *skb)
{
	struct bpf_sock *sk;

	if (goes_on(skb))
		return ALLOW;
	sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	if (!sk)
		return ALLOW;
	if (sk->protocol == IPPROTO_UDP)
		return may_hear(skb, sk) ? ALLOW : deny(DENIED_ENTER);
	if (is_own(skb))
		return ALLOW;
	if (sk->state == TCP_LISTEN)
		return hears_syn(skb, sk) ? ALLOW : deny(DENIED_ENTER);
	if (!container()->loopback || sk->state != TCP_SYN_SENT)
		return ALLOW;
	return may_answer(skb) ? ALLOW : deny(DENIED_ENTER);
}

#endif
