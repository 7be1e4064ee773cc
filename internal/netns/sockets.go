package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Socket is a socket with a port, as sock_diag(7) shows it. The kernel shows the cgroup since Linux
// 5.8 (commit 6e3a401fc8af), and TCP sockets that are bound but do not listen since 6.8 (commit
// 91051f003948).
type Socket struct {
	Protocol int // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	Family   int // unix.AF_INET or unix.AF_INET6; one of the latter may have an address of IPv4
	At       netip.AddrPort
	Peer     netip.AddrPort // to which it is connected; zero if it is not
	V6Only   bool           // of the wildcard of IPv6: it does not stand for IPv4's
	Cgroup   uint64         // id of the one in which it was made
}

// States of sockets, of net/tcp_states.h.
const (
	tcpListen        = 1 << 10
	tcpBoundInactive = 1 << 13
	allStates        = 1<<32 - 1
)

// Sizes of struct inet_diag_req_v2 and struct inet_diag_msg.
const (
	diagRequestSize = 56
	diagMessageSize = 72
)

// Sockets returns the UDP sockets of the namespace, and those of TCP that are bound or
// listen and have no connection.
func (ns *NS) Sockets() (list []Socket, err error) {
	err = ns.Do(func() (err error) {
		list, err = sockets()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find sockets by sock_diag: %w", err)
	}
	return list, nil
}

// Peers returns the addresses to which sockets of a cgroup are connected, with their numbers. The
// sockets are of TCP and UDP, and not in TIME_WAIT. Before Linux 5.8 it finds none.
func (ns *NS) Peers(cgroup uint64) (map[netip.Addr]int, error) {
	peers := map[netip.Addr]int{}
	if err := ns.Do(func() error {
		for _, protocol := range []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			list, err := SocketsAt(protocol, 0)
			if err != nil {
				return err
			}
			for _, s := range list {
				if s.Cgroup == cgroup && s.Peer.IsValid() {
					peers[s.Peer.Addr()]++
				}
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return peers, nil
}

// SocketsAt returns the sockets of a protocol that have a port, or for 0 any port, in the calling
// thread's namespace, connections included. Of a connection in TIME_WAIT the cgroup is 0.
func SocketsAt(protocol int, port uint16) (list []Socket, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := dumpSockets(family, uint8(protocol), allStates)
		if err != nil {
			return nil, fmt.Errorf("find sockets by sock_diag: %w", err)
		}
		for _, s := range found {
			if port == 0 || s.At.Port() == port {
				list = append(list, s)
			}
		}
	}
	return list, nil
}

// sockets finds those of the calling thread's namespace.
func sockets() (list []Socket, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for _, d := range []struct {
			protocol uint8
			states   uint32
		}{{unix.IPPROTO_TCP, tcpListen | tcpBoundInactive}, {unix.IPPROTO_UDP, allStates}} {
			found, err := dumpSockets(family, d.protocol, d.states)
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
		}
	}
	return list, nil
}

// dumpSockets asks for the sockets of a family and protocol.
func dumpSockets(family, protocol uint8, states uint32) (list []Socket, err error) {
	data := make([]byte, diagRequestSize)
	data[0], data[1] = family, protocol
	binary.NativeEndian.PutUint32(data[4:], states)
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddRawData(data)
	var bad error
	err = req.ExecuteIter(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
		s, err := parseSocket(int(protocol), msg)
		if err != nil {
			bad = err
			return false
		}
		if s.At.Port() != 0 {
			list = append(list, s)
		}
		return true
	})
	return list, errors.Join(err, bad)
}

// diagAddr reads an address of a struct inet_diag_sockid.
func diagAddr(family uint8, data []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(data))
	}
	return netip.AddrFrom16([16]byte(data)).Unmap()
}

// parseSocket reads a struct inet_diag_msg and the attributes that follow it.
func parseSocket(protocol int, msg []byte) (Socket, error) {
	s := Socket{Protocol: protocol}
	if len(msg) < diagMessageSize {
		return s, fmt.Errorf("message of %d bytes", len(msg))
	}
	s.Family = int(msg[0])
	s.At = netip.AddrPortFrom(diagAddr(msg[0], msg[8:]), binary.BigEndian.Uint16(msg[4:]))
	if port := binary.BigEndian.Uint16(msg[6:]); port != 0 {
		s.Peer = netip.AddrPortFrom(diagAddr(msg[0], msg[24:]), port)
	}
	attrs, err := nl.ParseRouteAttr(msg[diagMessageSize:])
	if err != nil {
		return s, err
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netlink.INET_DIAG_SKV6ONLY && len(a.Value) >= 1:
			s.V6Only = a.Value[0] != 0
		case a.Attr.Type == netlink.INET_DIAG_CGROUP_ID && len(a.Value) >= 8:
			s.Cgroup = binary.NativeEndian.Uint64(a.Value)
		}
	}
	return s, nil
}
