// Relied upon: sendmsg4 sees the source address that a control message
// (IP_PKTINFO) asks for, as msg_src_ip4, may replace it, and the datagram leaves
// with what the program wrote, control message or none; so does sendmsg6.
// For connected sockets the program runs only where an IP-level control
// message is given, and sees the destination, family included, as 0.
//
// The program does not see the interface index of the control message.
//
// Since: Linux 4.18.
// By: bpf (source address of unconnected UDP; a connected socket's destination
// was judged at connect and has to be let through here).

package kernel

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// received is the address that the next datagram came from.
func received(t *testing.T, fd int) string {
	t.Helper()
	_, from, err := unix.Recvfrom(fd, make([]byte, 1), 0)
	try(t, "recvfrom", err)
	return hostOf(addrString(from))
}

// sendmsg sends a datagram to an address, or to the peer if that is empty.
func sendmsg(t *testing.T, fd int, control []byte, to string) {
	t.Helper()
	var sa unix.Sockaddr
	if to != "" {
		sa = sockaddr(to)
	}
	try(t, "sendmsg", unix.Sendmsg(fd, []byte("x"), control, sa, 0))
}

func TestSendmsgProgramSeesSource(t *testing.T) {
	enterNetns(t)
	const to = "127.0.0.1:53"
	server := listenerAt(t, unix.SOCK_DGRAM, to)
	from2 := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{127, 0, 0, 2}})
	cg := newCgroup(t)
	sendmsg4 := watch(t, cg, ebpf.AttachCGroupUDP4Sendmsg, ctxMsgSrc4, ctxIP4, ctxUserFamily)
	check := func(what, source, destination string, family uint32) {
		t.Helper()
		want(t, what+": source", sendmsg4.ip4(t, 1), source)
		want(t, what+": destination", sendmsg4.ip4(t, 2), destination)
		want(t, what+": family", sendmsg4.word(t, 3), family)
		want(t, what+": runs", sendmsg4.runs(t), 1)
	}

	fd := cg.socket(t, unix.AF_INET, unix.SOCK_DGRAM, 0)
	sendmsg(t, fd, nil, to)
	check("plain", "0.0.0.0", "127.0.0.1", unix.AF_INET)
	want(t, "datagram's source", received(t, server), "127.0.0.1")
	sendmsg(t, fd, from2, to)
	check("with control message", "127.0.0.2", "127.0.0.1", unix.AF_INET)
	want(t, "datagram's source", received(t, server), "127.0.0.2")

	try(t, "connect", unix.Connect(fd, sockaddr(to)))
	sendmsg(t, fd, nil, "")
	want(t, "connected: runs", sendmsg4.runs(t), 0)
	want(t, "datagram's source", received(t, server), "127.0.0.1")
	sendmsg(t, fd, from2, "")
	check("connected, with control message", "127.0.0.2", "0.0.0.0", unix.AF_UNSPEC)
	want(t, "datagram's source", received(t, server), "127.0.0.2")
	sendmsg(t, fd, nil, to)
	check("connected, with address", "127.0.0.1", "127.0.0.1", unix.AF_INET)
}

func TestSendmsgProgramReplacesSource(t *testing.T) {
	enterNetns(t)
	testkit.AddToLoopback(t, "2001:db8::2/128")
	cg := newCgroup(t)
	attach(t, cg, ebpf.AttachCGroupUDP4Sendmsg, program(1, storeAddress(ctxMsgSrc4, "127.0.0.2")))
	attach(t, cg, ebpf.AttachCGroupUDP6Sendmsg, program(1, storeAddress(ctxMsgSrc6, "2001:db8::2")))

	for _, c := range []struct {
		to, source string
		domain     int
		control    []byte
	}{
		{"127.0.0.1:53", "127.0.0.2", unix.AF_INET, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{127, 0, 0, 3}})},
		{"[::1]:53", "2001:db8::2", unix.AF_INET6, unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte{15: 1}})},
	} {
		server := listenerAt(t, unix.SOCK_DGRAM, c.to)
		fd := cg.socket(t, c.domain, unix.SOCK_DGRAM, 0)
		sendmsg(t, fd, nil, c.to)
		want(t, "source", received(t, server), c.source)
		sendmsg(t, fd, c.control, c.to)
		want(t, "source in spite of control message", received(t, server), c.source)
	}
}
