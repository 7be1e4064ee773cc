// Relied upon: a cgroup_skb/ingress program of the socket's cgroup sees each
// datagram for a UDP socket, connected or not, before the socket's queue has it,
// from the IP header on. One that it refuses is lost without a word: its sender
// notices nothing, the socket does not become readable, and no ICMP error is
// sent. ICMP errors are not packets of the socket's: they arrive.
//
// Of TCP the listener's program sees the SYN and the ACK that ends the handshake,
// the connection's what comes later. A SYN that is refused is not answered with
// RST. What comes for a connection in TIME_WAIT is not seen.
//
// Since: Linux 4.10; checked on 5.10, 6.1, 6.12 and 6.18.
// By: bpf (who may send to a UDP client).

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// datagram receives the next datagram's length.
func datagram(t *testing.T, fd int) int {
	t.Helper()
	n, _, err := unix.Recvfrom(fd, make([]byte, 64), 0)
	try(t, "recvfrom", err)
	return n
}

func TestIngressProgramRefusesDatagrams(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			ingress := newTrace(t, cg, ebpf.AttachCGroupInetIngress)
			var server int
			cg.run(t, func() { server = listenerAt(t, unix.SOCK_DGRAM, l.address) })
			client := socket(t, l.domain, unix.SOCK_DGRAM, 0)
			try(t, "connect", unix.Connect(client, sockaddr(l.address)))

			check := func(what string) {
				t.Helper()
				ingress.refuse(t, true)
				_, err := unix.Write(client, []byte("refused"))
				try(t, what+": write", err)
				// On the loopback it would be in the queue by now.
				poll := []unix.PollFd{{Fd: int32(server), Events: unix.POLLIN}}
				ready, err := unix.Poll(poll, 0)
				try(t, "poll", err)
				want(t, what+": sockets that are readable", ready, 0)
				ingress.refuse(t, false)
				_, err = unix.Write(client, []byte("x"))
				try(t, what+": write", err)
				want(t, what+": length of the first that arrives", datagram(t, server), 1)
				want(t, what+": packets that the program saw", len(ingress.take(t)), 2)
			}
			check("unconnected")
			try(t, "connect", unix.Connect(server, sockaddr(local(t, client))))
			check("connected")
		})
	}
}

// TestIngressProgramSeesSource: a datagram's source can be judged.
func TestIngressProgramSeesSource(t *testing.T) {
	enterNetns(t)
	cg := newCgroup(t)
	ingress := newTrace(t, cg, ebpf.AttachCGroupInetIngress)
	server := cg.socket(t, unix.AF_INET6, unix.SOCK_DGRAM, 0)
	try(t, "bind", unix.Bind(server, sockaddr("[::]:80")))
	for _, l := range []struct{ from, to string }{{"127.0.0.2:1234", "127.0.0.1:80"}, {"[::1]:1234", "[::1]:80"}} {
		client := listenerAt(t, unix.SOCK_DGRAM, l.from)
		sendmsg(t, client, nil, l.to)
		want(t, "length", datagram(t, server), 1)
		all := ingress.take(t)
		if len(all) != 1 {
			t.Fatalf("%s: the program saw %d packets, want 1", l.from, len(all))
		}
		p := packet(all[0].start[:])
		want(t, "source", p.source(), hostOf(l.from))
		want(t, "source port", int(p[p.headers()])<<8|int(p[p.headers()+1]), 1234)
	}
}

// TestIngressProgramDoesNotSeeErrors: a connected UDP socket is told that nobody
// listens, whatever the program refuses.
func TestIngressProgramDoesNotSeeErrors(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			cg := newCgroup(t)
			ingress := newTrace(t, cg, ebpf.AttachCGroupInetIngress)
			ingress.refuse(t, true)
			fd := cg.socket(t, l.domain, unix.SOCK_DGRAM, 0)
			try(t, "connect", unix.Connect(fd, sockaddr(l.address)))
			_, err := unix.Write(fd, []byte("x"))
			try(t, "write", err)
			_, err = unix.Read(fd, make([]byte, 1))
			want(t, "read", err, error(unix.ECONNREFUSED))
			want(t, "packets that the program saw", len(ingress.take(t)), 0)
		})
	}
}

func TestIngressProgramOfTCP(t *testing.T) {
	for _, l := range loopbacks {
		t.Run(l.name, func(t *testing.T) {
			enterNetns(t)
			ofClient, ofServer := newCgroup(t), newCgroup(t)
			client := newTrace(t, ofClient, ebpf.AttachCGroupInetIngress)
			server := newTrace(t, ofServer, ebpf.AttachCGroupInetIngress)
			var listener int
			ofServer.run(t, func() { listener = listenerAt(t, unix.SOCK_STREAM, l.address) })
			fd := ofClient.socket(t, l.domain, unix.SOCK_STREAM, 0)
			try(t, "connect", unix.Connect(fd, sockaddr(l.address)))
			conn, _ := accept(t, listener)
			want(t, "connect: of the client", client.tcp(t), "SYN+ACK/SYN_SENT")
			want(t, "connect: of the server", server.tcp(t), "SYN/LISTEN ACK/LISTEN")
			_, err := unix.Write(fd, []byte("x"))
			try(t, "write", err)
			_, err = unix.Read(conn, make([]byte, 1))
			try(t, "read", err)
			want(t, "data: of the server", server.tcp(t), "ACK/ESTABLISHED")

			server.refuse(t, true)
			late := ofClient.socket(t, l.domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			want(t, "connect, SYN refused", unix.Connect(late, sockaddr(l.address)), error(unix.EINPROGRESS))
			want(t, "SYN refused: of the server", server.tcp(t), "SYN/LISTEN")
			server.refuse(t, false)
			_, peer := accept(t, listener)
			want(t, "peer of the SYN that was sent again", peer, local(t, late))
		})
	}
}
