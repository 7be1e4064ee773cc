package graft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/keeper"
	"github.com/tsugiki/tsugiki/policy"
)

// sink is a listener that takes no packet.
type sink struct {
	file int
	at   netip.AddrPort
}

// makeSink returns the container's sink, and makes it the first time.
func (e *Engine) makeSink() (*sink, error) {
	r := &e.relays
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errRelaysClosed
	}
	if r.sink != nil {
		return r.sink, nil
	}
	file, err := e.loopbackSocket()
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptSockFprog(file, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program(unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}))
	if err == nil {
		err = unix.Bind(file, sockaddr.Of(localhost4(0)))
	}
	if err == nil {
		err = unix.Listen(file, 1)
	}
	s := &sink{file: file}
	if err == nil {
		s.at, err = localName(file)
	}
	if err != nil {
		unix.Close(file)
		return nil, fmt.Errorf("make a listener that takes nothing: %w", err)
	}
	r.sink = s
	return s, nil
}

func program(filter ...unix.SockFilter) *unix.SockFprog {
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
}

func localhost4(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// loopbackSocket makes a socket that may share its port with others of loopbackSocket.
func (e *Engine) loopbackSocket() (int, error) {
	file, err := e.newSocket(keeper.Kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		unix.Close(file)
		return -1, err
	}
	return file, nil
}

// waitingSocket is a program's socket that connects to the sink.
type waitingSocket struct {
	at, sink netip.AddrPort
	sequence uint32 // of its SYN
}

// wait has a program's socket begin to connect to the sink.
func (e *Engine) wait(file int, k *sink, peer netip.AddrPort) (w waitingSocket, err error) {
	own := netip.AddrPortFrom(e.Translation.Own, 0)
	if err := e.Enforcer.StandIn(file, k.at.Port(), own, peer); err != nil {
		return w, err
	}
	syns, err := e.openSyns(k)
	if err != nil {
		return w, err
	}
	defer unix.Close(syns)
	_, err = e.withoutWaiting(file, 0, func() error { return unix.Connect(file, sockaddr.Of(k.at)) })
	if err == nil {
		err = unix.EISCONN
	}
	if !errors.Is(err, unix.EINPROGRESS) {
		return w, refusal(err)
	}
	at, err := localName(file)
	if err != nil {
		return w, err
	}
	w.at, w.sink = localhost4(at.Port()), k.at
	w.sequence, err = readSyn(syns, w.at.Port())
	return w, err
}

// meet connects a socket with the sink's name to a waiting socket.
func (e *Engine) meet(w waitingSocket) (net.Conn, error) {
	file, err := e.loopbackSocket()
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(file, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	if err == nil {
		err = e.Enforcer.StandIn(file, w.at.Port(), netip.AddrPort{}, netip.AddrPort{})
	}
	if err == nil {
		err = e.bindAllowed(file, policy.Binding{Host: w.sink, View: w.sink}, reuse{})
	}
	if err == nil {
		err = unix.SetNonblock(file, true)
	}
	if err == nil {
		if err = unix.Connect(file, sockaddr.Of(w.at)); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	f := os.NewFile(uintptr(file), "relayed connection")
	defer f.Close()
	if err == nil {
		err = awaitConnect(f)
	}
	if err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// sizes of headers
const (
	ipv4Size = 20
	tcpSize  = 20
)

// openSyns opens a socket that gets the SYNs that come to the sink.
func (e *Engine) openSyns(k *sink) (file int, err error) {
	const syn, ack = 0x02, 0x10
	filter := program(
		unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(k.at.Port()), Jf: 4},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ipv4Size + tcpSize},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	)
	err = e.host.Do(func() (err error) {
		file, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("hear who connects to the relay: %w", err)
	}
	err = unix.SetsockoptSockFprog(file, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter)
	if err == nil { // other packets cost nothing then
		err = unix.Bind(file, sockaddr.Of(localhost4(0)))
	}
	if err != nil {
		unix.Close(file)
		return -1, fmt.Errorf("hear who connects to the relay: %w", err)
	}
	return file, nil
}

// readSyn returns the sequence number of the SYN that a port has sent.
func readSyn(file int, port uint16) (uint32, error) {
	const patience = 1000 // ms
	buf := make([]byte, ipv4Size+tcpSize)
	for {
		n, _, err := unix.Recvfrom(file, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			list := []unix.PollFd{{Fd: int32(file), Events: unix.POLLIN}}
			if n, err := unix.Poll(list, patience); n == 0 && err == nil {
				return 0, fmt.Errorf("the program's SYN did not come: %w", unix.ETIMEDOUT)
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == len(buf) && binary.BigEndian.Uint16(buf[ipv4Size:]) == port:
			return binary.BigEndian.Uint32(buf[ipv4Size+4:]), nil
		}
	}
}

// unreachable are the codes of ICMP's message "destination unreachable" (RFC 792) for which the
// kernel has an errno.
var unreachable = map[unix.Errno]byte{unix.ENETUNREACH: 0, unix.EHOSTUNREACH: 1}

// refuse ends the connect of a waiting socket with an errno. For ECONNREFUSED it sends a reset, for all
// others an ICMP error.
func (e *Engine) refuse(w waitingSocket, errno unix.Errno) error {
	packet, protocol := w.resets(), unix.IPPROTO_TCP
	if errno != unix.ECONNREFUSED && errno != unix.ECONNRESET {
		code, known := unreachable[errno]
		if !known {
			code = unreachable[unix.EHOSTUNREACH]
		}
		packet, protocol = w.unreachable(code), unix.IPPROTO_ICMP
	}
	err := e.host.Do(func() error {
		file, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		defer unix.Close(file)
		return unix.Sendto(file, packet, 0, sockaddr.Of(w.at))
	})
	if err != nil {
		return fmt.Errorf("tell a program that its peer refuses: %w", err)
	}
	return nil
}

// resets returns the TCP header of an answer to the SYN (RFC 9293 section 3.10.7.1).
func (w waitingSocket) resets() []byte {
	const sizeAndFlags = tcpSize/4<<12 | 0x14 // RST, ACK
	from, to := w.sink.Addr().As4(), w.at.Addr().As4()
	pseudo := append(from[:], to[:]...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, tcpSize)
	m := binary.BigEndian.AppendUint16(nil, w.sink.Port())
	m = binary.BigEndian.AppendUint16(m, w.at.Port())
	m = binary.BigEndian.AppendUint32(m, 0)
	m = binary.BigEndian.AppendUint32(m, w.sequence+1)
	m = binary.BigEndian.AppendUint16(m, sizeAndFlags)
	m = append(m, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(m[16:], checksum(append(pseudo, m...)))
	return m
}

// unreachable returns an ICMP message about the SYN.
func (w waitingSocket) unreachable(code byte) []byte {
	from, to := w.at.Addr().As4(), w.sink.Addr().As4()
	m := []byte{3, code, 0, 0, 0, 0, 0, 0}
	m = append(m, 0x45, 0, 0, ipv4Size+tcpSize, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0)
	m = append(append(m, from[:]...), to[:]...)
	m = binary.BigEndian.AppendUint16(m, w.at.Port())
	m = binary.BigEndian.AppendUint16(m, w.sink.Port())
	m = binary.BigEndian.AppendUint32(m, w.sequence)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}

// checksum is the Internet's (RFC 1071), of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
