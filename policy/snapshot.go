package policy

import (
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/wire"
)

// The image of policy/c/rules.h: a header, and an array of each of the three other structs.
const (
	imageMagic   = 0x6b747372
	imageVersion = 1
)

// imageHeader is struct rules.
type imageHeader struct {
	magic     uint32
	version   uint32
	prefixes  uint32
	endpoints uint32
	ranges    uint32
	_         uint32
}

// imagePrefix is struct rules_prefix.
type imagePrefix struct {
	addr  [16]byte
	bits  uint32
	first uint32
	count uint32
	_     uint32
}

// imageEndpoint is struct rules_endpoint.
type imageEndpoint struct {
	netns uint64
}

// imageRange is struct rules_range.
type imageRange struct {
	first    uint16
	last     uint16
	endpoint uint32
}

// askEndpoint is RULES_ASK of policy/c/rules.h.
const askEndpoint = 1<<32 - 1

// Snapshot returns the egress part of the table in the form for C programs, see policy/c. netnsOf
// gives the SO_NETNS_COOKIE of the namespace in which an endpoint's sockets live.
func (t *Table) Snapshot(netnsOf func(*endpoint.Endpoint) uint64) []byte {
	var prefixes, ranges []byte
	header := imageHeader{magic: imageMagic, version: imageVersion, endpoints: uint32(len(t.endpoints))}
	for _, r := range t.Routes() {
		prefixes = wire.Append(prefixes, imagePrefix{
			addr: r.Prefix.Addr().As16(), bits: uint32(MappedBits(r.Prefix)), first: header.ranges, count: uint32(len(r.Ranges)),
		})
		header.prefixes++
		for _, o := range r.Ranges {
			to := uint32(o.Endpoint)
			if o.Protocol != 0 {
				to = askEndpoint
			}
			ranges = wire.Append(ranges, imageRange{first: o.Ports.First, last: o.Ports.Last, endpoint: to})
			header.ranges++
		}
	}
	image := append(wire.Append(nil, header), prefixes...)
	for _, ep := range t.endpoints {
		var e imageEndpoint
		if ep != nil && ep.Type != endpoint.Unix {
			e.netns = netnsOf(ep)
		}
		image = wire.Append(image, e)
	}
	return append(image, ranges...)
}
