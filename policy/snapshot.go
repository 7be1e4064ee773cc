package policy

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

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
	prefixes := t.prefixes()
	ranges := 0
	for _, outlets := range t.outlets {
		ranges += len(outlets)
	}
	e := binary.NativeEndian
	var image []byte
	for _, n := range []int{snapshotMagic, snapshotVersion, len(prefixes), len(t.endpoints), ranges, 0} {
		image = e.AppendUint32(image, uint32(n))
	}
	first := 0
	for _, p := range prefixes {
		addr := p.Addr().As16()
		image = append(image, addr[:]...)
		for _, n := range []int{mappedBits(p), first, len(t.outlets[p]), 0} {
			image = e.AppendUint32(image, uint32(n))
		}
		first += len(t.outlets[p])
	}
	for _, ep := range t.endpoints {
		cookie := uint64(0)
		if ep != nil && ep.Type != endpoint.Unix {
			cookie = netnsOf(ep)
		}
		image = e.AppendUint64(image, cookie)
	}
	for _, p := range prefixes {
		for _, o := range t.outlets[p] {
			image = e.AppendUint16(image, o.ports.First)
			image = e.AppendUint16(image, o.ports.Last)
			image = e.AppendUint32(image, uint32(slices.Index(t.endpoints, o.endpoint)))
		}
	}
	return image
}

// prefixes are those of the table, the longest first.
func (t *Table) prefixes() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(t.outlets), func(a, b netip.Prefix) int {
		return cmp.Or(mappedBits(b)-mappedBits(a), a.Addr().Compare(b.Addr()))
	})
}

// mappedBits is the length of a prefix among IPv6 ones, IPv4 mapped.
func mappedBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return p.Bits() + 96
	}
	return p.Bits()
}
