package forward

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
)

// Reason is why a packet was direct, slow or dropped.
type Reason struct {
	Name    string
	Dropped bool
	Meaning string
}

// Outcome is what becomes of a packet.
type Outcome string

// Outcomes.
const (
	OutcomeDirect  Outcome = "direct"
	OutcomeSlow    Outcome = "slow" // by the bridge, the switch or the host's routes
	OutcomeDropped Outcome = "dropped"
)

// Outcome is what becomes of the reason's packets.
func (r Reason) Outcome() Outcome {
	switch {
	case r.Dropped:
		return OutcomeDropped
	case r == Reasons[bpf.ForwardWhyWHY_DIRECT]:
		return OutcomeDirect
	}
	return OutcomeSlow
}

// Reasons are all of them, in the order of the kernel programs.
var Reasons = [bpf.ForwardWhyWHY_COUNT]Reason{
	bpf.ForwardWhyWHY_DIRECT:       {"direct", false, "went to the other pod directly"},
	bpf.ForwardWhyWHY_OFF:          {"off", false, "one of the two pods is switched off"},
	bpf.ForwardWhyWHY_GROUP:        {"group", false, "broadcast or multicast"},
	bpf.ForwardWhyWHY_NOT_LOCAL:    {"not-local", false, "for no pod of this network on this node"},
	bpf.ForwardWhyWHY_PROTOCOL:     {"protocol", false, "neither TCP, UDP nor an ICMP echo, or with options"},
	bpf.ForwardWhyWHY_FRAGMENT:     {"fragment", false, "a fragment"},
	bpf.ForwardWhyWHY_PAIR:         {"pair", false, "the pair of pods is not direct"},
	bpf.ForwardWhyWHY_FLOW:         {"flow", false, "the flow has come through the switch, which may translate it"},
	bpf.ForwardWhyWHY_SIZE:         {"size", false, "larger than the destination's MTU"},
	bpf.ForwardWhyWHY_TTL:          {"ttl", false, "the TTL ends at this router"},
	bpf.ForwardWhyWHY_BAD_MAC:      {"bad-mac", true, "the source MAC address is not the pod's"},
	bpf.ForwardWhyWHY_BAD_ADDR:     {"bad-addr", true, "the source IP address is not the pod's"},
	bpf.ForwardWhyWHY_BAD_FRAME:    {"bad-frame", true, "a VLAN tag, neither IP nor ARP, or cut off"},
	bpf.ForwardWhyWHY_BAD_NEIGHBOR: {"bad-neighbor", true, "speaks as a router, or for another neighbor"},
}

// Counts are of the packets that a pod has sent.
type Counts struct {
	Packets     map[string]uint64 // by the Reason's Name; those that are not zero
	DirectBytes uint64
}

// Counts returns the counters of one pod since it was added, or ErrUnknown.
func (t *Table) Counts(device int) (Counts, error) {
	var each []bpf.ForwardCounts
	err := t.maps.CountsByDevice.Lookup(uint32(device), &each)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Counts{}, ErrUnknown
	}
	if err != nil {
		return Counts{}, fmt.Errorf("read counts of link %d: %w", device, err)
	}
	c := Counts{Packets: map[string]uint64{}}
	for _, cpu := range each {
		c.DirectBytes += cpu.DirectBytes
		for why, n := range cpu.Packets {
			if n > 0 {
				c.Packets[Reasons[why].Name] += n
			}
		}
	}
	return c, nil
}
