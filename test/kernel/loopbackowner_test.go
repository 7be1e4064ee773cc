// Relied upon: what a cgroup_skb/egress program writes into skb->priority is what the
// cgroup_skb/ingress program of the receiver reads, if the packet goes by the loopback device.
// Without CAP_NET_ADMIN a program can give its socket priorities up to 6 only (socket(7)).
//
// An egress program finds the socket that a packet on the loopback goes to, by
// bpf_sk_lookup_tcp() and bpf_sk_lookup_udp(); bpf_sk_cgroup_id() says in which cgroup that was
// made. So an ingress program finds the sender's, also in SYN_SENT and where it was bound to
// the wildcard, but not where the sender has closed it meanwhile.
//
// An egress program that returns 2 drops a datagram without an error for the sender (without
// IP_RECVERR); 0 is EPERM.
//
// Since: Linux 5.8 (bpf_sk_cgroup_id in cgroup_skb), 5.2 (lookups), 4.20 (writing priority),
// 5.0 (verdict 2).
// By: bpf (who may reach a private port).

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Who sent a packet, in words of a record: the state of the socket and its cgroup.
const (
	wordState = 1
	wordGroup = 2
)

// senderOf notes who sent the first packet since the record was cleared, or zeros.
func senderOf(r record, typ, domain int) asm.Instructions {
	const tuple = -40
	family := struct{ address, at, ports, size int32 }{4, 12, 20, 12}
	if domain == unix.AF_INET6 {
		family = struct{ address, at, ports, size int32 }{16, 8, 40, 36}
	}
	load := func(from, to, size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, from),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, tuple+to),
			asm.Mov.Imm(asm.R4, size), asm.FnSkbLoadBytes.Call(),
		}
	}
	find, a := asm.FnSkcLookupTcp, family.address
	if typ == unix.SOCK_DGRAM {
		find = asm.FnSkLookupUdp
	}
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, 0)}
	for at := int16(tuple); at < 0; at += 8 {
		insns = append(insns, asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	insns = append(insns, load(family.at, a, a)...)   // its source is where the socket is
	insns = append(insns, load(family.at+a, 0, a)...) // its destination is the socket's peer
	insns = append(insns, load(family.ports, 2*a+2, 2)...)
	insns = append(insns, load(family.ports+2, 2*a, 2)...)
	insns = append(insns,
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, tuple),
		asm.Mov.Imm(asm.R3, family.size), asm.Mov.Imm(asm.R4, -1), asm.Mov.Imm(asm.R5, 0), find.Call(),
		asm.JEq.Imm(asm.R0, 0, "nobody"),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R7, asm.R9, sockState, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R9), asm.FnSkCgroupId.Call(), asm.Mov.Reg(asm.R8, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R9), asm.FnSkRelease.Call(),
		asm.LoadMapValue(asm.R1, r.m.FD(), 0).WithSymbol("nobody"),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.JNE.Imm(asm.R2, 0, "not the first"),
		asm.StoreImm(asm.R1, 0, 1, asm.Word),
		asm.StoreMem(asm.R1, 4*wordState, asm.R7, asm.Word),
		asm.StoreMem(asm.R1, 4*wordGroup, asm.R8, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("not the first"))
	return program(1, insns)
}

// idOf is the number of a cgroup, of which the record keeps the low half.
func idOf(t *testing.T, cg *cgroup) uint32 {
	t.Helper()
	var st unix.Stat_t
	try(t, "stat cgroup", unix.Fstat(cg.fd, &st))
	return uint32(st.Ino)
}

func TestIngressProgramFindsSender(t *testing.T) {
	const synSent, closed = 2, 7
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			testkit.AddToLoopback(t, "198.51.100.1/32")
			testkit.AddToLoopback(t, "2001:db8::1/128")
			own, other := newCgroup(t), newCgroup(t)
			any, here, host := "0.0.0.0", "127.0.0.1", "198.51.100.1"
			if l.domain == unix.AF_INET6 {
				any, here, host = "[::]", "[::1]", "[2001:db8::1]"
			}
			for _, k := range []struct {
				name  string
				typ   int
				state uint32
			}{{"TCP", unix.SOCK_STREAM, synSent}, {"UDP", unix.SOCK_DGRAM, closed}} {
				subtest(t, k.name, func(t *testing.T) {
					cg := newCgroup(t)
					r := newRecord(t)
					attach(t, cg, ebpf.AttachCGroupInetIngress, senderOf(r, k.typ, l.domain))
					var server int
					cg.run(t, func() { server = listenerAt(t, k.typ, l.address) })
					for _, c := range []struct {
						name, bind string
						of         *cgroup
					}{
						{"unbound", "", own},
						{"bound to the wildcard", any + ":1080", own},
						{"bound to the loopback", here + ":1081", own},
						{"another's", "", other},
						{"another's, bound to the loopback", here + ":1082", other},
						{"another's, of a host address", host + ":0", other},
					} {
						fd := c.of.socket(t, l.domain, k.typ, 0)
						if c.bind != "" {
							try(t, c.name+": bind", unix.Bind(fd, sockaddr(c.bind)))
						}
						r.runs(t)
						if k.typ == unix.SOCK_STREAM {
							try(t, c.name+": connect", unix.Connect(fd, sockaddr(l.address)))
							accept(t, server)
						} else {
							sendmsg(t, fd, nil, l.address)
							datagram(t, server)
						}
						want(t, c.name+": cgroup", r.word(t, wordGroup), idOf(t, c.of))
						want(t, c.name+": state", r.word(t, wordState), k.state)
					}
				})
			}
		})
	}
}

// priorities attaches a program that gives packets that leave a priority, and one that notes the
// priority of those that arrive in word 1.
func priorities(t *testing.T, sender, receiver *cgroup, priority int32) record {
	t.Helper()

	attach(t, sender, ebpf.AttachCGroupInetEgress, program(1, asm.Instructions{
		asm.Mov.Imm(asm.R2, priority), asm.StoreMem(asm.R6, skbPriority, asm.R2, asm.Word),
	}))
	return watch(t, receiver, ebpf.AttachCGroupInetIngress, skbPriority)
}

func TestPriorityArrivesByLoopback(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			own, other := newCgroup(t), newCgroup(t)
			r := priorities(t, own, other, -7)
			var server, udp int
			other.run(t, func() {
				server, udp = listenerAt(t, unix.SOCK_STREAM, l.address), listenerAt(t, unix.SOCK_DGRAM, l.address)
			})
			try(t, "connect", unix.Connect(own.socket(t, l.domain, unix.SOCK_STREAM, 0), sockaddr(l.address)))
			accept(t, server)
			want(t, "TCP", int32(r.word(t, 1)), -7)
			r.runs(t)
			sendmsg(t, own.socket(t, l.domain, unix.SOCK_DGRAM, 0), nil, l.address)
			datagram(t, udp)
			want(t, "UDP", int32(r.word(t, 1)), -7)
			sendmsg(t, socket(t, l.domain, unix.SOCK_DGRAM, 0), nil, l.address)
			datagram(t, udp)
			want(t, "somebody else's", int32(r.word(t, 1)), 0)
		})
	}
}

// TestEgressVerdictDropsInSilence: the datagram is lost and its sender sees no error.
func TestEgressVerdictDropsInSilence(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			server := listenerAt(t, unix.SOCK_DGRAM, l.address)
			fd := cg.socket(t, l.domain, unix.SOCK_DGRAM, 0)
			attach(t, cg, ebpf.AttachCGroupInetEgress, program(2))
			try(t, "sendto", unix.Sendto(fd, []byte("lost"), 0, sockaddr(l.address)))
			sendmsg(t, socket(t, l.domain, unix.SOCK_DGRAM, 0), nil, l.address)
			want(t, "length of the first that arrives", datagram(t, server), 1)
		})
	}
}
