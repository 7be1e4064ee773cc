package flows

import (
	"net/netip"
	"slices"
)

// Judge tells which pairs of pods the policy leaves alone.
type Judge struct{ policy *Policy }

// NewJudge makes one for a policy, which does not change.
func NewJudge(p *Policy) *Judge { return &Judge{p} }

// Equal compares two policies.
func (p *Policy) Equal(q *Policy) bool {
	return p.Allow == q.Allow && slices.EqualFunc(p.Rules, q.Rules, func(x, y Rule) bool {
		return x.Allow == y.Allow && x.From == y.From && x.To == y.To && x.Protocol == y.Protocol && slices.Equal(x.Ports, y.Ports)
	})
}

// bits are rules of the policy: a bit for each.
type bits []uint64

// Subject is a pod as the rules see it.
type Subject struct {
	addrs    []subjectAddr
	from, to bits // rules that name any of the addresses
}

type subjectAddr struct {
	netip.Addr
	from, to bits
}

// Subject looks a pod's addresses up in the rules.
func (j *Judge) Subject(addrs []netip.Addr) *Subject {
	words := (len(j.policy.Rules) + 63) / 64
	s := &Subject{from: make(bits, words), to: make(bits, words)}
	for _, a := range addrs {
		own := subjectAddr{a, make(bits, words), make(bits, words)}
		for i := range j.policy.Rules {
			r := &j.policy.Rules[i]
			if r.Protocol == "icmp" && a.Is6() || r.Protocol == "icmp6" && a.Is4() {
				continue
			}
			own.mark(s, i, r)
		}
		s.addrs = append(s.addrs, own)
	}
	return s
}

// mark notes on which sides a rule names the address.
func (a *subjectAddr) mark(s *Subject, i int, r *Rule) {
	word, bit := i/64, uint64(1)<<(i%64)
	if !r.From.IsValid() || r.From.Contains(a.Addr) {
		a.from[word] |= bit
		s.from[word] |= bit
	}
	if !r.To.IsValid() || r.To.Contains(a.Addr) {
		a.to[word] |= bit
		s.to[word] |= bit
	}
}

// Free tells whether everything passes between two pods, in both directions. It may say no of a pair
// that several rules together leave alone.
func (j *Judge) Free(a, b *Subject) bool {
	if j.policy.Allow && !meet(a.from, b.to) && !meet(b.from, a.to) {
		return true // no rule is about the two: that is so of most pairs
	}
	for i := range a.addrs {
		for k := range b.addrs {
			x, y := &a.addrs[i], &b.addrs[k]
			if x.Is4() == y.Is4() && (!j.passes(x.from, y.to) || !j.passes(y.from, x.to)) {
				return false
			}
		}
	}
	return true
}

func meet(x, y bits) bool {
	for i := range x {
		if x[i]&y[i] != 0 {
			return true
		}
	}
	return false
}

// passes tells whether all packets of connections from one address to another pass. A rule about
// some of them counts if it forbids.
func (j *Judge) passes(from, to bits) bool {
	for i := range from {
		for both, at := from[i]&to[i], 64*i; both != 0; both, at = both>>1, at+1 {
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
