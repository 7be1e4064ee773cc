package host

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/wire"
)

// datagram answers a request about a UDP socket.
func (s *stream) datagram(m, reply *wire.Message) error {
	d := &s.vm.datagrams
	if !m.Name.IsValid() || m.Number > 1<<16-1 {
		return unix.EINVAL
	}
	switch m.Op {
	case wire.Bind:
		return d.bind(m, reply, s)
	case wire.Connect:
		return d.query(m, reply)
	}
	return unix.EOPNOTSUPP
}

// bind makes the sockets of a server, for those addresses that a rule covers. An IPv6 socket has the
// IPv4 wildcard, too, unless the program has said otherwise.
func (d *datagrams) bind(m, reply *wire.Message, s *stream) error {
	list := []netip.AddrPort{m.Name}
	only := len(m.Options) > 0 && m.Options[0].Level == unix.SOL_IPV6 && m.Options[0].Name == unix.IPV6_V6ONLY
	if m.Name.Addr() == netip.IPv6Unspecified() && !only {
		list = append(list, netip.AddrPortFrom(netip.IPv4Unspecified(), m.Name.Port()))
	}
	var all []*port
	covered := false
	for _, at := range list {
		if at.Port() == 0 || !d.vm.Covers(unix.IPPROTO_UDP, at) {
			continue
		}
		covered = true
		p, err := d.server(at, s)
		if err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, p := range all {
				d.release(p, s)
			}
			return err
		}
		if p != nil {
			all = append(all, p)
		}
	}
	if !covered {
		reply.Flags |= wire.FlagLocal
	}
	return nil
}

// query tells by which name a port reaches a peer, or why it does not: another socket tries.
func (d *datagrams) query(m, reply *wire.Message) error {
	key := portKey{m.Name.Addr().Is6(), uint16(m.Number)}
	probe, err := d.socket(key.six)
	if err != nil {
		return err
	}
	defer func() { unix.Close(probe.sock) }()
	if err := probe.make(d.vm.Engine.Connect, unix.Connect, m.Name); err != nil {
		return err
	}
	name, err := probe.name(false)
	if err != nil || !name.IsValid() {
		return err
	}
	p, err := d.client(key, m.Name)
	if err != nil {
		return err
	}
	reply.Name = netip.AddrPortFrom(name.Addr(), p.own)
	return nil
}
