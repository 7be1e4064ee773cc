/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Translates the datagrams of one container between IPv4 and IPv6 (RFC 7915).
 *
 * Theory of operation. udp.h has datagrams for virtual addresses go to their aliases, by the host's
 * loopback device. These programs are attached to the links of the host's namespace (tcx):
 *
 *	to_ipv6		where packets leave to the loopback device: of what a socket of the
 *container sends to an alias it makes IPv6, and hands it to the link of that host to_ipv4
 *where packets arrive by any other link, and also where the host's own leave to its loopback: what
 *is for a socket of the container it makes IPv4, from the sender's alias, and hands it to the
 *loopback device
 *
 * The ports are the host's, which the kernel gives to one socket at a time: IPv4 has no other than
 * IPv6. A published server has a private port (loopback.h) in the place of its own.
 *
 * For whom a datagram is, to_ipv4 asks the kernel: there must be a socket of the container that
 *hears it, and unless a rule has published it no IPv6 socket of anybody's, to whom it would belong.
 * Then skb->priority says that it is of the container's loopback, which enter (packets.h) asks for.
 *
 * Who asks a published server has no virtual address, mostly. These programs choose one of
 * 198.19.0.0/16. It is that host's until PEER_NS after its last datagram, and longer if nobody
 * needs it.
 *
 * ICMPv6 errors about a datagram become ICMP errors (RFC 7915 section 5.2), for the same socket.
 *
 * A packet that is neither is left as it is: TCX_NEXT. Oldest kernel: 6.6.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "virtual.h"

#define ETH_P_IP   0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_LENGTH 14
#define AF_INET	   2
#define LOOPBACK   1 /* the device's number in each namespace */

#define ICMP_UNREACHABLE 3
#define ICMPV6		 58
#define UNREACHABLE6	 1
#define TOO_BIG6	 2

#define TCX_NEXT (-1)
#define TCX_DROP 2

#define CHECKSUM_FLAGS (BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | BPF_F_MARK_ENFORCE)

/* The first of the virtual addresses that are chosen here, 198.19.0.0. */
#define PEERS	    0xc6130000
#define PEER_CHOICE 8			  /* tries */
#define PEER_NS	    (300ULL * 1000000000) /* 5 min, as of a NAT (RFC 4787, REQ-5) */

/* The container's loopback, see loopback.h. */
volatile const __u32 loopback_id;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIRTUAL_HOSTS);
	__type(key, struct virtual_addr);
	__type(value, struct virtual_host);
} host_by_virtual SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, VIRTUAL_HOSTS);
	__type(key, struct addr);
	__type(value, __u32); /* network order */
} virtual_by_host SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* a private port */
	__type(value, struct published);
} published_by_private SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct published);
	__type(value, __u32);
} private_by_published SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct member);
} loopback_by_socket SEC(".maps");

struct header4 {
	__u8 version; /* and the header's length */
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 from, to;
};

struct header6 {
	__u32 first; /* version, traffic class, flow label */
	__u16 length;
	__u8 next;
	__u8 hops;
	struct addr from, to;
};

struct ports {
	__u16 from, to;
	__u16 length, check;
};

/* Who speaks with whom, of one datagram. */
struct flow {
	struct addr host, here; /* the remote, and the address of this host */
	__u16 host_port, here_port;
	__u32 alias;
	__u16 port; /* of the container's socket */
};

static __always_inline bool same(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/* Whether a source is no single host's that could be answered: ::/32, which has the loopback and
 * mapped addresses, link-local and multicast addresses. */
static __always_inline bool special(const struct addr *a)
{
	return !a->word[0] || (a->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (a->word[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

static __always_inline bool is_ours(struct bpf_sock *sk)
{
	struct member *m = bpf_sk_storage_get(&loopback_by_socket, sk, 0, 0);

	return m && m->loopback == loopback_id;
}

static __always_inline struct virtual_host *host_of(__u32 ip4)
{
	struct virtual_addr key = {.bits = 32, .addr = in_net(ip4, VIRTUAL_NET)};

	return bpf_map_lookup_elem(&host_by_virtual, &key);
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline struct header4 header4_for(__u16 length, __u8 protocol, __u32 from)
{
	struct header4 ip = {.version = 0x45,
			     .length = bpf_htons(length),
			     .fragment = bpf_htons(0x4000),
			     .ttl = 64,
			     .protocol = protocol,
			     .from = from,
			     .to = bpf_htonl(0x7f000001)};

	return ip;
}

static __always_inline void sum_header(struct header4 *ip)
{
	ip->check = 0;
	ip->check = folded(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
}

static __always_inline int set_protocol(struct __sk_buff *skb, __u16 protocol)
{
	protocol = bpf_htons(protocol);
	return bpf_skb_store_bytes(skb, ETH_LENGTH - 2, &protocol, sizeof(protocol), 0);
}

SEC("tcx/egress")
int to_ipv6(struct __sk_buff *skb)
{
	struct published *published;
	struct virtual_host *host;
	struct header6 ip6 = {};
	struct bpf_sock *sk;
	struct ports udp;
	struct header4 ip;
	__u32 from_port;
	__u16 port;
	__s64 diff;

	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ETH_LENGTH, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP ||
	    !in_pool(ip.to, ALIAS_NET))
		return TCX_NEXT;
	sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	if (!sk || !is_ours(sk))
		return TCX_NEXT;
	host = host_of(ip.to);
	if (!host || !host->device || ip.version != 0x45 || ip.fragment & bpf_htons(0x3fff) ||
	    bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(ip), &udp, sizeof(udp)))
		return TCX_DROP;
	if (host->heard)
		host->heard = bpf_ktime_get_ns();
	from_port = bpf_ntohs(udp.from);
	port = udp.from;
	ip6.from = host->source;
	published = bpf_map_lookup_elem(&published_by_private, &from_port);
	if (published) {
		ip6.from = published->addr;
		port = bpf_htons(published->port);
	}
	ip6.first = bpf_htonl(6 << 28 | ip.tos << 20);
	ip6.length = bpf_htons(bpf_ntohs(ip.length) - sizeof(ip));
	ip6.next = IPPROTO_UDP;
	ip6.hops = ip.ttl;
	ip6.to = host->addr;
	diff = bpf_csum_diff((__be32 *)&ip.from, 8, (__be32 *)&ip6.from, 32, 0);
	if (diff < 0 || bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0) ||
	    set_protocol(skb, ETH_P_IPV6) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &ip6, sizeof(ip6), 0) ||
	    bpf_l4_csum_replace(skb, ETH_LENGTH + sizeof(ip6) + offsetof(struct ports, check), 0,
				diff, CHECKSUM_FLAGS))
		return TCX_DROP;
	if (port != udp.from &&
	    (bpf_l4_csum_replace(skb, ETH_LENGTH + sizeof(ip6) + offsetof(struct ports, check),
				 udp.from, port, BPF_F_MARK_MANGLED_0 | 2) ||
	     bpf_skb_store_bytes(skb, ETH_LENGTH + sizeof(ip6), &port, sizeof(port), 0)))
		return TCX_DROP;
	return bpf_redirect_neigh(host->device, NULL, 0, 0);
}

/* Chooses a virtual address for a host that has none. It is 0 where all that were tried are in use.
 */
static __always_inline __u32 choose(const struct flow *f, __u32 device, __u64 now)
{
	struct virtual_host row = {.addr = f->host, .source = f->here, .device = device};
	struct virtual_addr key = {.bits = 32};
	struct virtual_host *there;
	struct addr gone;
	__u32 *other;
	int i;

	row.heard = now;
	row.peer = device == LOOPBACK;
	for (i = 0; i < PEER_CHOICE; i++) {
		__u32 n = bpf_get_prandom_u32() & 0xffff;

		key.addr = bpf_htonl(PEERS | n);
		there = bpf_map_lookup_elem(&host_by_virtual, &key);
		if (n == 0 || n == 0xffff || (there && now - there->heard < PEER_NS))
			continue;
		if (there) {
			gone = there->addr;
			bpf_map_delete_elem(&virtual_by_host, &gone);
		}
		if (bpf_map_update_elem(&host_by_virtual, &key, &row, BPF_ANY))
			return 0;
		if (!bpf_map_update_elem(&virtual_by_host, &row.addr, &key.addr, BPF_NOEXIST))
			return key.addr;
		/* Another CPU has chosen one for this host; or there is no room. */
		other = bpf_map_lookup_elem(&virtual_by_host, &row.addr);
		return other ? *other : 0;
	}
	return 0;
}

/* Whether a socket of the container hears a datagram. */
static __always_inline bool hears(struct __sk_buff *skb, const struct flow *f)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	bool ours;

	tuple.ipv4.saddr = f->alias;
	tuple.ipv4.sport = f->host_port;
	tuple.ipv4.daddr = bpf_htonl(0x7f000001);
	tuple.ipv4.dport = f->port;
	sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	ours = sk->family == AF_INET && is_ours(sk);
	bpf_sk_release(sk);
	return ours;
}

/* Whether an IPv6 socket hears a datagram. */
static __always_inline bool is_anothers(struct __sk_buff *skb, const struct flow *f)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;

	__builtin_memcpy(tuple.ipv6.saddr, &f->host, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &f->here, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = f->host_port;
	tuple.ipv6.dport = f->here_port;
	sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* Finds the container's socket for a datagram, and the sender's alias. DEVICE is the one by which
 * the datagram came; 0: it is known that the container has sent there. */
static __always_inline bool find_socket(struct __sk_buff *skb, struct flow *f, __u32 device)
{
	struct published key = {.addr = f->here, .port = bpf_ntohs(f->here_port)};
	__u32 *private = bpf_map_lookup_elem(&private_by_published, &key);
	__u32 *known = bpf_map_lookup_elem(&virtual_by_host, &f->host);
	__u64 now = bpf_ktime_get_ns();
	struct virtual_host *host;
	__u32 chosen = 0;

	f->port = private ? bpf_htons(*private) : f->here_port;
	if (known)
		chosen = *known;
	else if (private && device && !special(&f->host))
		chosen = choose(f, device, now);
	if (!chosen)
		return false;
	f->alias = in_net(chosen, ALIAS_NET);
	host = host_of(chosen);
	if (!host || (!private && (!same(&host->source, &f->here) || is_anothers(skb, f))))
		return false;
	if (host->heard) {
		host->heard = now;
		host->device = device ? device : host->device;
		host->peer |= device == LOOPBACK;
	}
	return hears(skb, f);
}

static __always_inline int datagram(struct __sk_buff *skb, const struct header6 *ip6, __u32 device)
{
	struct flow f = {.host = ip6->from, .here = ip6->to};
	struct header4 ip;
	struct ports udp;
	__s64 diff;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(*ip6), &udp, sizeof(udp)))
		return TCX_NEXT;
	f.host_port = udp.from;
	f.here_port = udp.to;
	if (!find_socket(skb, &f, device))
		return TCX_NEXT;
	ip = header4_for(bpf_ntohs(ip6->length) + sizeof(ip), IPPROTO_UDP, f.alias);
	ip.tos = bpf_ntohl(ip6->first) >> 20;
	ip.ttl = ip6->hops;
	sum_header(&ip);
	diff = bpf_csum_diff((__be32 *)&ip6->from, 32, (__be32 *)&ip.from, 8, 0);
	if (diff < 0 || bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0) ||
	    set_protocol(skb, ETH_P_IP) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &ip, sizeof(ip), 0) ||
	    bpf_l4_csum_replace(skb, ETH_LENGTH + sizeof(ip) + offsetof(struct ports, check), 0,
				diff, CHECKSUM_FLAGS))
		return TCX_DROP;
	if (f.port != udp.to &&
	    (bpf_l4_csum_replace(skb, ETH_LENGTH + sizeof(ip) + offsetof(struct ports, check),
				 udp.to, f.port, BPF_F_MARK_MANGLED_0 | 2) ||
	     bpf_skb_store_bytes(skb, ETH_LENGTH + sizeof(ip) + offsetof(struct ports, to), &f.port,
				 sizeof(f.port), 0)))
		return TCX_DROP;
	skb->priority = loopback_id;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/* An ICMP error about a datagram: the error, and the beginning of what it is about. */
struct error4 {
	__u8 type, code;
	__u16 check;
	__u16 unused, mtu;
	struct header4 ip;
	struct ports udp;
};

struct error6 {
	__u8 type, code;
	__u16 check;
	__u32 mtu; /* or unused */
	struct header6 ip;
	struct ports udp;
};

/* The code of ICMP's "unreachable" that is an ICMPv6 error, or -1. */
static __always_inline int code_of(const struct error6 *e)
{
	if (e->type == TOO_BIG6)
		return 4; /* fragmentation needed */
	if (e->type != UNREACHABLE6)
		return -1;
	if (e->code == 1)
		return 10; /* prohibited */
	return e->code == 4 ? 3 /* port */ : 1 /* host */;
}

static __always_inline int error(struct __sk_buff *skb, const struct header6 *ip6)
{
	struct error4 to = {.type = ICMP_UNREACHABLE};
	struct error6 e;
	struct flow f = {};
	struct header4 ip;
	int code;

	if (bpf_skb_load_bytes(skb, ETH_LENGTH + sizeof(*ip6), &e, sizeof(e)) ||
	    e.ip.next != IPPROTO_UDP)
		return TCX_NEXT;
	code = code_of(&e);
	f.host = e.ip.to;
	f.here = e.ip.from;
	f.host_port = e.udp.to;
	f.here_port = e.udp.from;
	if (code < 0 || !same(&ip6->to, &f.here) || !find_socket(skb, &f, 0))
		return TCX_NEXT;
	to.code = code;
	if (e.type == TOO_BIG6)
		to.mtu = bpf_htons(bpf_ntohl(e.mtu) > 65535 ? 65535 : bpf_ntohl(e.mtu) - 20);
	to.ip = header4_for(bpf_ntohs(e.ip.length) + sizeof(ip), IPPROTO_UDP,
			    bpf_htonl(0x7f000001));
	to.ip.to = f.alias;
	sum_header(&to.ip);
	to.udp = e.udp;
	to.udp.from = f.port;
	to.check = folded(bpf_csum_diff(0, 0, (__be32 *)&to, sizeof(to), 0));
	ip = header4_for(sizeof(ip) + sizeof(to), 1 /* ICMP */, f.alias);
	sum_header(&ip);
	if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0) || set_protocol(skb, ETH_P_IP) ||
	    bpf_skb_change_tail(skb, ETH_LENGTH + sizeof(ip) + sizeof(to), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH, &ip, sizeof(ip), 0) ||
	    bpf_skb_store_bytes(skb, ETH_LENGTH + sizeof(ip), &to, sizeof(to),
				BPF_F_RECOMPUTE_CSUM))
		return TCX_DROP;
	skb->priority = loopback_id;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

static __always_inline int arrives(struct __sk_buff *skb, __u32 device)
{
	struct header6 ip6;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, ETH_LENGTH, &ip6, sizeof(ip6)))
		return TCX_NEXT;
	if (ip6.next == IPPROTO_UDP)
		return datagram(skb, &ip6, device);
	return ip6.next == ICMPV6 ? error(skb, &ip6) : TCX_NEXT;
}

SEC("tcx/ingress")
int to_ipv4(struct __sk_buff *skb)
{
	return arrives(skb, skb->ifindex);
}

SEC("tcx/egress")
int to_ipv4_on_host(struct __sk_buff *skb)
{
	return arrives(skb, LOOPBACK);
}

char LICENSE[] SEC("license") = "GPL";
