package enforcer

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/tsugiki/tsugiki/bpf"
)

// StandIn lets an IPv4 host socket connect to a port of 127.0.0.1. While it is connected to that port,
// its own name is own, and its peer's is peer. A port of 0 in own stands for the port that the
// socket has. The note ends with the socket.
func (e *Enforcement) StandIn(sock int, port uint16, own, peer netip.AddrPort) error {
	row := bpf.PolicyStandIn{
		Own: wordOf4(own.Addr()), OwnPort: own.Port(), Peer: wordOf4(peer.Addr()), PeerPort: peer.Port(),
		Port: port, Container: e.id,
	}
	if err := putInSocket(e.set.StandInBySocket, sock, row); err != nil {
		return fmt.Errorf("note the names of a connection that is relayed: %w", err)
	}
	return nil
}

// RelayPorts has the supervisor asked about connects of translated sockets to these ports. There may be
// 8 of them.
func (e *Enforcement) RelayPorts(ports []uint16) error {
	if room := len(bpf.PolicyContainer{}.Relayed); len(ports) > room {
		return fmt.Errorf("connections at %d ports cannot be relayed, %d are the most", len(ports), room)
	}
	err := e.change(func(c *bpf.PolicyContainer) { copy(c.Relayed[:], ports) })
	if err != nil {
		return fmt.Errorf("note the ports that are relayed: %w", err)
	}
	return nil
}

// wordOf4 returns an IPv4 address in network byte order, or 0 for any other.
func wordOf4(addr netip.Addr) uint32 {
	if !addr.Is4() {
		return 0
	}
	b := addr.As4()
	return binary.NativeEndian.Uint32(b[:])
}
