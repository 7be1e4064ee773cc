package policy

import (
	"encoding/binary"

	"github.com/tsugiki/tsugiki/endpoint"
)

// The image of policy/c/rules.h.
const (
	snapshotMagic   = 0x6b747372
	snapshotVersion = 1
)

// Snapshot is the egress part of the table as C programs read it, see
// policy/c. netnsOf gives the SO_NETNS_COOKIE of the namespace in which an
// endpoint's sockets live.
func (t *Table) Snapshot(netnsOf func(*endpoint.Endpoint) uint64) []byte {
	routes := t.Routes()
	ranges := 0
	for _, r := range routes {
		ranges += len(r.Ranges)
	}
	e := binary.NativeEndian
	var image []byte
	for _, n := range []int{snapshotMagic, snapshotVersion, len(routes), len(t.endpoints), ranges, 0} {
		image = e.AppendUint32(image, uint32(n))
	}
	first := 0
	for _, r := range routes {
		addr := r.Prefix.Addr().As16()
		image = append(image, addr[:]...)
		for _, n := range []int{MappedBits(r.Prefix), first, len(r.Ranges), 0} {
			image = e.AppendUint32(image, uint32(n))
		}
		first += len(r.Ranges)
	}
	for _, ep := range t.endpoints {
		cookie := uint64(0)
		if ep != nil && ep.Type != endpoint.Unix {
			cookie = netnsOf(ep)
		}
		image = e.AppendUint64(image, cookie)
	}
	for _, r := range routes {
		for _, o := range r.Ranges {
			image = e.AppendUint16(image, o.Ports.First)
			image = e.AppendUint16(image, o.Ports.Last)
			image = e.AppendUint32(image, uint32(o.Endpoint))
		}
	}
	return image
}
