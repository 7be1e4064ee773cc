// Relied upon: a cgroup_skb/egress program of the socket's cgroup, whoever uses the
// socket and wherever, sees each packet of IPv4 and IPv6 that a socket sends,
// with all that decides where it goes: the IP header with its options or
// extension headers, the interface, the mark. It runs once for a datagram that
// is cut into fragments later. A packet that it refuses does not leave: a
// datagram's sender gets EPERM; a TCP packet is lost, and sent again later.
//
// With a source route the header's destination is the first hop, and the address
// that the sender named is in the option.
//
// Of TCP, skb->sk is a full socket: the connecting one for its SYN, the listener
// for a SYN-ACK. Some packets pass by the program, as they belong to no full
// socket: a SYN-ACK with a SYN cookie, on 6.1 that of IPv6, and the ACK of a
// connection in TIME_WAIT. They carry nothing that a program wrote.
//
// Since: Linux 4.10; ring buffers, for the test, 5.8; checked on 5.10, 6.1, 6.12 and 6.18.
// By: bpf (the second wall, behind connect and sendmsg).

package kernel

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// States of a TCP socket that tests wait for, of net/tcp_states.h.
const (
	stateClosed    = 7
	stateCloseWait = 8
)

// untilState waits until a TCP socket is in a state.
func untilState(t *testing.T, what string, fd int, state uint8) {
	t.Helper()
	testkit.Eventually(t, holds(what, func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
		try(t, "get TCP_INFO", err)
		return info.State == state
	}))
}

// tcpRig is a client and a listener, each in a cgroup whose egress is traced.
type tcpRig struct {
	address        string
	domain         int
	ofClient       *cgroup
	client, server *trace
	listener       int
}

func newTCPRig(t *testing.T, domain int, address string) *tcpRig {
	t.Helper()
	enterNetns(t)
	ofServer := newCgroup(t)
	r := &tcpRig{address: address, domain: domain, ofClient: newCgroup(t)}
	r.client = newTrace(t, r.ofClient, ebpf.AttachCGroupInetEgress)
	r.server = newTrace(t, ofServer, ebpf.AttachCGroupInetEgress)
	ofServer.run(t, func() { r.listener = listenerAt(t, unix.SOCK_STREAM, address) })
	return r
}

func (r *tcpRig) connect(t *testing.T) (fd, conn int) {
	t.Helper()
	fd = r.ofClient.socket(t, r.domain, unix.SOCK_STREAM, 0)
	try(t, "connect", unix.Connect(fd, sockaddr(r.address)))
	conn, _ = accept(t, r.listener)
	return fd, conn
}

// check compares what the programs saw since the last check.
func (r *tcpRig) check(t *testing.T, what, client, server string) {
	t.Helper()
	want(t, what+": of the client", r.client.tcp(t), client)
	want(t, what+": of the server", r.server.tcp(t), server)
}

func TestEgressProgramSeesTCP(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			r := newTCPRig(t, l.domain, l.address)
			fd, conn := r.connect(t)
			if l.domain == unix.AF_INET6 && !linuxIs(t, 6, 12) {
				r.server.take(t) // 6.1 calls no program for the SYN-ACK
				want(t, "connect: of the client", r.client.tcp(t), "SYN/SYN_SENT ACK/ESTABLISHED")
			} else {
				r.check(t, "connect", "SYN/SYN_SENT ACK/ESTABLISHED", "SYN+ACK/LISTEN")
			}
			_, err := unix.Write(fd, []byte("x"))
			try(t, "write", err)
			_, err = unix.Read(conn, make([]byte, 1))
			try(t, "read", err)
			want(t, "data", r.client.tcp(t), "ACK/ESTABLISHED")

			linger := &unix.Linger{Onoff: 1} // close with RST
			try(t, "set SO_LINGER", unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, linger))
			r.server.take(t) // the ACK of the data, if it was not delayed
			try(t, "close", unix.Close(fd))
			untilState(t, "RST", conn, stateClosed)
			r.check(t, "close with RST", "RST+ACK/CLOSE", "")

			cookies := []byte("2") // always
			try(t, "set tcp_syncookies", os.WriteFile("/proc/sys/net/ipv4/tcp_syncookies", cookies, 0))
			r.connect(t)
			r.check(t, "connect with SYN cookie", "SYN/SYN_SENT ACK/ESTABLISHED", "")
		})
	}
}

func TestProgramsDoNotSeeTimeWait(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			r := newTCPRig(t, l.domain, l.address)
			ingress := newTrace(t, r.ofClient, ebpf.AttachCGroupInetIngress)
			fd, conn := r.connect(t)
			try(t, "close", unix.Close(fd))
			untilState(t, "FIN", conn, stateCloseWait)
			r.client.take(t)
			ingress.take(t)
			r.client.refuse(t, true)
			try(t, "shutdown", unix.Shutdown(conn, unix.SHUT_WR))
			// The socket's own ACK would be refused, however often the FIN is sent. One
			// that is sent by the connection in TIME_WAIT arrives.
			untilState(t, "FIN and its ACK", conn, stateClosed)
			// Each FIN that the ingress program saw led to an ACK that was refused: one, or
			// none if the connection was in TIME_WAIT at once.
			fins, acks := strings.Count(ingress.tcp(t), "FIN+ACK"), strings.Count(r.client.tcp(t), "ACK")
			want(t, "FINs that the ingress program saw", fins, acks)
		})
	}
}

func TestEgressProgramRefuses(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			r := newTCPRig(t, l.domain, l.address)
			fd, conn := r.connect(t)
			late := r.ofClient.socket(t, l.domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			r.client.refuse(t, true)
			_, err := unix.Write(fd, []byte("x"))
			try(t, "write what is refused", err)
			want(t, "connect, SYN refused", unix.Connect(late, sockaddr(l.address)), error(unix.EINPROGRESS))
			other := socket(t, l.domain, unix.SOCK_STREAM, 0)
			try(t, "connect outside of the cgroup", unix.Connect(other, sockaddr(l.address)))
			_, peer := accept(t, r.listener)
			want(t, "peer of the first that arrives", peer, local(t, other))

			r.client.refuse(t, false)
			_, err = unix.Read(conn, make([]byte, 1))
			try(t, "read what was sent again", err)
			_, peer = accept(t, r.listener)
			want(t, "peer of the SYN that was sent again", peer, local(t, late))

			server := listenerAt(t, unix.SOCK_DGRAM, l.address)
			udp := r.ofClient.socket(t, l.domain, unix.SOCK_DGRAM, 0)
			r.client.refuse(t, true)
			want(t, "sendto", unix.Sendto(udp, []byte("refused"), 0, sockaddr(l.address)), error(unix.EPERM))
			r.client.refuse(t, false)
			sendmsg(t, udp, nil, l.address)
			n, _, err := unix.Recvfrom(server, make([]byte, 16), 0)
			try(t, "recvfrom", err)
			want(t, "length of the datagram that arrives", n, 1)
		})
	}
}

func TestEgressProgramFollowsTheSocketNotTheCaller(t *testing.T) {
	enterNetns(t)
	server := listenerAt(t, unix.SOCK_DGRAM, "127.0.0.1:80")
	maker, caller := newCgroup(t), newCgroup(t)
	ofMaker := newTrace(t, maker, ebpf.AttachCGroupInetEgress)
	ofCaller := newTrace(t, caller, ebpf.AttachCGroupInetEgress)
	fd := maker.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
	subtest(t, "in another namespace", func(t *testing.T) {
		enterNetns(t)
		caller.run(t, func() { sendmsg(t, fd, nil, "127.0.0.1:80") })
	})
	want(t, "datagram's source", received(t, server), "127.0.0.1")
	want(t, "packets that the maker's program saw", len(ofMaker.take(t)), 1)
	want(t, "packets that the caller's program saw", len(ofCaller.take(t)), 0)
}

func TestEgressProgramSeesDatagramBeforeItIsCut(t *testing.T) {
	first, _ := twoWires(t)
	cg := newCgroup(t)
	egress := newTrace(t, cg, ebpf.AttachCGroupInetEgress)
	outside := socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
	const size = 4000 // of an interface whose packets have 1500 at most
	for _, to := range []string{"203.0.113.9:9", "[2001:db8:1::9]:9"} {
		domain, headers := unix.AF_INET, uint32(28)
		if to[0] == '[' {
			domain, headers = unix.AF_INET6, 48
		}
		fd := cg.socket(t, domain, unix.SOCK_DGRAM, 0)
		try(t, "send", unix.Sendto(fd, make([]byte, size), 0, sockaddr(to)))
		all := egress.take(t)
		if len(all) != 1 || all[0].length != size+headers {
			t.Errorf("%s: the program saw %v, want one packet of %d", to, all, size+headers)
		}
		// Of an IPv6 fragment the tap does not read further than its header.
		if first.until(t, outside) == nil && domain == unix.AF_INET {
			t.Errorf("%s: nothing left", to)
		}
		for domain == unix.AF_INET && first.until(t, -1) != nil {
		}
	}
}

// TestEgressProgramSeesRoutes is about what leads a datagram away from the address
// that was judged when it was sent: the program sees it, and may refuse it.
func TestEgressProgramSeesRoutes(t *testing.T) {
	r := newControlRig(t)
	egress := newTrace(t, r.cg, ebpf.AttachCGroupInetEgress) // takes the other's place
	cases := append(controlCases4(r.second.ifindex), controlCases6(r.second.ifindex)...)
	for _, c := range cases {
		header, ok := map[string]func(seen) bool{
			"IP_RETOPTS, LSRR":   func(s seen) bool { return s.start[0] == 0x47 && s.start[20] == 131 },
			"IP_RETOPTS, SSRR":   func(s seen) bool { return s.start[0] == 0x47 && s.start[20] == 137 },
			"IPV6_RTHDR, type 2": func(s seen) bool { return s.start[6] == unix.IPPROTO_ROUTING },
			"IPV6_HOPOPTS":       func(s seen) bool { return s.start[6] == unix.IPPROTO_HOPOPTS },
		}[c.name]
		if !ok {
			continue
		}
		l, sent := r.send(t, c, unix.CAP_NET_RAW)
		if c.absent != nil && errors.Is(sent, c.absent) {
			continue
		}
		try(t, c.name, sent)
		all := egress.take(t)
		if len(all) != 1 || !header(all[0]) || packet(all[0].start[:]).destination() != l.destination() {
			t.Errorf("%s: the program saw %v", c.name, all)
		}
		egress.refuse(t, true)
		l, sent = r.send(t, c, unix.CAP_NET_RAW)
		want(t, c.name+" that is refused", sent, error(unix.EPERM))
		if l != nil {
			t.Errorf("%s that is refused left: %v", c.name, l.packet)
		}
		egress.refuse(t, false)
		egress.take(t)
	}
}
