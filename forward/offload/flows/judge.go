package flows

import (
	"net/netip"
	"slices"
)

// Judge tells which pairs of pods the policy leaves alone. It looks an address up in the rules once.
type Judge struct {
	policy   *Policy
	from, to map[netip.Addr][]uint64 // which rules name the address: a bit for each
}

// NewJudge makes one for a policy, which does not change.
func NewJudge(p *Policy) *Judge {
	return &Judge{p, map[netip.Addr][]uint64{}, map[netip.Addr][]uint64{}}
}

// Equal compares two policies.
func (p *Policy) Equal(q *Policy) bool {
	return p.Allow == q.Allow && slices.EqualFunc(p.Rules, q.Rules, func(x, y Rule) bool {
		return x.Allow == y.Allow && x.From == y.From && x.To == y.To && x.Protocol == y.Protocol && slices.Equal(x.Ports, y.Ports)
	})
}

// Free tells whether everything passes between two pods, in both directions.
func (j *Judge) Free(a, b []netip.Addr) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Is4() == y.Is4() && (!j.passes(x, y) || !j.passes(y, x)) {
				return false
			}
		}
	}
	return true
}

// passes tells whether all packets of connections from one address to another pass. A rule about
// some of them counts if it forbids.
func (j *Judge) passes(from, to netip.Addr) bool {
	x, y := j.bits(j.from, from, func(r *Rule) netip.Prefix { return r.From }), j.bits(j.to, to, func(r *Rule) netip.Prefix { return r.To })
	for i := range x {
		for both, at := x[i]&y[i], 64*i; both != 0; both, at = both>>1, at+1 {
			if both&1 == 0 {
				continue
			}
			r := &j.policy.Rules[at]
			if !r.Allow {
				return false
			}
			if r.Protocol == "" {
				return true
			}
		}
	}
	return j.policy.Allow
}

// bits are those of the rules that name an address, on one side.
func (j *Judge) bits(cache map[netip.Addr][]uint64, a netip.Addr, side func(*Rule) netip.Prefix) []uint64 {
	if found, ok := cache[a]; ok {
		return found
	}
	bits := make([]uint64, (len(j.policy.Rules)+63)/64)
	for i := range j.policy.Rules {
		r := &j.policy.Rules[i]
		p := side(r)
		if p.IsValid() && !p.Contains(a) || r.Protocol == "icmp" && a.Is6() || r.Protocol == "icmp6" && a.Is4() {
			continue
		}
		bits[i/64] |= 1 << (i % 64)
	}
	cache[a] = bits
	return bits
}
