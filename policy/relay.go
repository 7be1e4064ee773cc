package policy

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
)

// Relay says how the kernel programs lead datagrams to a container's relay.
type Relay struct {
	Netns        uint64 // cookie of the namespace that its sockets are in
	Port4, Port6 uint16 // 0: none
	// From4 and From6 are the source addresses of what comes by the programs.
	// The last two bytes of From6 are where they put a port.
	From4, From6 netip.Addr
}

// AllowRelay makes a host socket one of the relay's own: it may bind the address,
// be bound to a device, and answer those who sent to it.
func (e *Enforcement) AllowRelay(sock int, host netip.AddrPort) error {
	row := bpf.PolicyBinding{Host: wordsOf(host.Addr()), View: wordsOf(host.Addr()), HostPort: host.Port(), Relay: 1}
	if err := e.objs.BindingBySocket.Put(uint32(sock), row); err != nil {
		return fmt.Errorf("allow relay at %s: %w", host, err)
	}
	return nil
}

// LeadToRelay makes the kernel programs send to the relay what is for the
// container's own loopback.
func (e *Enforcement) LeadToRelay(r Relay) error {
	// The namespace last: without it the programs look at nothing else.
	for _, v := range []struct {
		variable *ebpf.Variable
		value    any
	}{
		{e.objs.RelayFrom4, wordsOf(r.From4).Word[3]},
		{e.objs.RelayFrom6, wordsOf(r.From6)},
		{e.objs.RelayPort4, r.Port4},
		{e.objs.RelayPort6, r.Port6},
		{e.objs.RelayNetns, r.Netns},
	} {
		if err := v.variable.Set(v.value); err != nil {
			return fmt.Errorf("lead datagrams to relay: %w", err)
		}
	}
	return nil
}

// SentToRelay tells whether a socket of the container's has lately sent to the
// relay from a port.
func (e *Enforcement) SentToRelay(ip6 bool, port uint16) bool {
	key := bpf.PolicySender{Port: port, Is4: 1}
	if ip6 {
		key.Is4 = 0
	}
	var at bpf.PolicyAddr
	return e.objs.AddressBySender.Lookup(key, &at) == nil
}
