package enforcer

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
)

// Relay says how the kernel programs lead datagrams to a container's relay.
type Relay struct {
	Netns        uint64 // cookie of the namespace of its sockets
	Port4, Port6 uint16 // 0: none
	// From4 and From6 are the source addresses of datagrams that the programs lead to the relay.
	// The programs put a port into the last two bytes of From6.
	From4, From6 netip.Addr
}

// AllowRelay makes a host socket a socket of the relay: it may bind the address, be bound to a
// device, and answer those who sent to it.
func (e *Enforcement) AllowRelay(sock int, host netip.AddrPort) error {
	row := bpf.PolicyBinding{Host: wordsOf(host.Addr()), View: wordsOf(host.Addr()), HostPort: host.Port(), Relay: 1}
	if err := e.bind(sock, row); err != nil {
		return fmt.Errorf("allow relay at %s: %w", host, err)
	}
	return nil
}

// LeadToRelay makes the kernel programs send datagrams for the container's own loopback to the
// relay.
func (e *Enforcement) LeadToRelay(r Relay) error {
	if r.Netns != 0 {
		if err := e.makeTable(sendersTable); err != nil {
			return fmt.Errorf("make table of senders to relay: %w", err)
		}
	}
	err := e.change(func(c *bpf.PolicyContainer) {
		c.RelayNetns, c.RelayPort4, c.RelayPort6 = r.Netns, r.Port4, r.Port6
		c.RelayFrom4, c.RelayFrom6 = wordsOf(r.From4).Word[3], wordsOf(r.From6)
	})
	if err != nil {
		return fmt.Errorf("lead datagrams to relay: %w", err)
	}
	return nil
}

// SentToRelay tells whether a socket of the container has recently sent to the relay from a port.
func (e *Enforcement) SentToRelay(ip6 bool, port uint16) bool {
	var at bpf.PolicyAddr
	senders := e.senders()
	return senders != nil && senders.Lookup(senderKey(ip6, port), &at) == nil
}

// senders returns the table of senders of a container that has had a relay, or nil.
func (e *Enforcement) senders() *ebpf.Map {
	e.making.Lock()
	defer e.making.Unlock()
	return e.tables.senders
}

// ForgetSender frees the row of a socket that has sent to the relay. The relay answers the socket
// again after it has sent again.
func (e *Enforcement) ForgetSender(ip6 bool, port uint16) error {
	senders := e.senders()
	if senders == nil {
		return nil
	}
	err := senders.Delete(senderKey(ip6, port))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget sender to relay: %w", err)
	}
	return nil
}

// ForgetSenders frees the rows of all sockets for which but returns false.
func (e *Enforcement) ForgetSenders(but func(ip6 bool, port uint16) bool) error {
	var gone []bpf.PolicySender
	var key bpf.PolicySender
	var at bpf.PolicyAddr
	senders := e.senders()
	if senders == nil {
		return nil
	}
	rows := senders.Iterate()
	for rows.Next(&key, &at) {
		if !but(key.Is4 == 0, key.Port) {
			gone = append(gone, key)
		}
	}
	err := rows.Err()
	for _, key := range gone {
		err = errors.Join(err, e.ForgetSender(key.Is4 == 0, key.Port))
	}
	return err
}

func senderKey(ip6 bool, port uint16) bpf.PolicySender {
	return bpf.PolicySender{Bits: senderBits, Port: port, Is4: boolByte(!ip6)}
}
