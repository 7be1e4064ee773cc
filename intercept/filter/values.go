package filter

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Sets of the values that an argument may have, as OCI rules can say them, and of
// the calls that such sets describe. libseccomp has no order among overlapping
// rules of a call and takes each argument only once in a rule, so what is to be
// composed has to be split into rules that do not overlap.

// span is a set of numbers: those from lo to hi, but, if mask is not 0, those of
// which the bits of mask are value. If hi is two below lo, it is all but the number
// between them.
type span struct {
	lo, hi      uint64
	mask, value uint64
}

const top = math.MaxUint64

var anyValue = span{hi: top}

func exactly(v uint64) span { return span{lo: v, hi: v} }

func except(v uint64) span { return span{lo: v + 1, hi: v - 1} }

// number is the only number of a span that has one.
func (s span) number() (v uint64, is bool) { return s.lo, s.mask == 0 && s.lo == s.hi }

// hole returns the only number that is not in the set.
func (s span) hole() (v uint64, is bool) { return s.hi + 1, s.mask == 0 && s.lo == s.hi+2 }

// masked returns the values whose bits of mask equal those of value. Neighbouring values become an
// interval, so that one set has one form.
func masked(mask, value uint64) span {
	value &= mask
	if free := ^mask; free&(free+1) == 0 {
		return span{lo: value, hi: value | free}
	}
	return span{mask: mask, value: value}
}

func (s span) contains(v uint64) bool {
	if s.mask != 0 {
		return v&s.mask == s.value
	}
	if missing, is := s.hole(); is {
		return v != missing
	}
	return s.lo <= v && v <= s.hi
}

// blocks returns the set as aligned blocks, each of which a mask describes.
func (s span) blocks() []span {
	if s.mask != 0 {
		return []span{s}
	}
	if missing, is := s.hole(); is {
		return differing(top, missing)
	}
	var all []span
	for lo := s.lo; ; {
		size := bits.TrailingZeros64(lo) // 64 for 0
		for s.hi-lo < 1<<size-1 {
			size--
		}
		hi := lo | (1<<size - 1)
		all = append(all, span{lo: lo, hi: hi})
		if hi == s.hi {
			return all
		}
		lo = hi + 1
	}
}

// bitsOf is the mask and the value of an aligned block.
func (s span) bitsOf() (mask, value uint64) {
	if s.mask != 0 {
		return s.mask, s.value
	}
	return ^(s.lo ^ s.hi), s.lo
}

func (s span) intersect(t span) []span {
	v, holed := s.hole()
	w, holedToo := t.hole()
	switch {
	case s == t, s == anyValue, holed && !t.contains(v):
		return []span{t}
	case t == anyValue, holedToo && !s.contains(w):
		return []span{s}
	case s.mask == 0 && t.mask == 0 && !holed && !holedToo:
		if lo, hi := max(s.lo, t.lo), min(s.hi, t.hi); lo <= hi {
			return []span{{lo: lo, hi: hi}}
		}
		return nil
	}
	var all []span
	for _, a := range s.blocks() {
		for _, b := range t.blocks() {
			m, v := a.bitsOf()
			n, w := b.bitsOf()
			if (v^w)&m&n == 0 {
				all = append(all, masked(m|n, v|w))
			}
		}
	}
	return all
}

func (s span) complement() []span {
	if v, is := s.hole(); is {
		return []span{exactly(v)}
	}
	if s.mask == 0 && s.lo == s.hi {
		return []span{except(s.lo)}
	}
	if s.mask == 0 {
		return s.aside()
	}
	return differing(s.mask, s.value)
}

// differing are the numbers that differ from value in one of the bits of mask.
func differing(mask, value uint64) []span {
	var all []span
	var before uint64
	for m := mask; m != 0; m &= m - 1 {
		bit := m & -m
		all = append(all, masked(before|bit, value^bit))
		before |= bit
	}
	return all
}

// aside is what is below an interval, and what is above it.
func (s span) aside() []span {
	var all []span
	if s.lo > 0 {
		all = append(all, span{hi: s.lo - 1})
	}
	if s.hi < top {
		all = append(all, span{lo: s.hi + 1, hi: top})
	}
	return all
}

// conditions returns conditions of which each alone says that an argument is in the set. libseccomp
// 2.5 is wrong about order operators where rules share an argument, so conditions uses none.
func (s span) conditions(index int) []specs.LinuxSeccompArg {
	c := specs.LinuxSeccompArg{Index: uint(index), Value: s.lo, Op: specs.OpEqualTo}
	if v, is := s.hole(); is {
		c.Value, c.Op = v, specs.OpNotEqual
		return []specs.LinuxSeccompArg{c}
	}
	if s.mask == 0 && s.lo == s.hi {
		return []specs.LinuxSeccompArg{c}
	}
	var all []specs.LinuxSeccompArg
	for _, block := range s.blocks() {
		c.Op = specs.OpMaskedEqual
		c.Value, c.ValueTwo = block.bitsOf()
		all = append(all, c)
	}
	return all
}

// parse returns what a condition of a profile says.
func parse(c specs.LinuxSeccompArg) ([]span, error) {
	switch c.Op {
	case specs.OpEqualTo:
		return []span{exactly(c.Value)}, nil
	case specs.OpNotEqual:
		return []span{except(c.Value)}, nil
	case specs.OpLessThan:
		return span{lo: c.Value, hi: top}.aside(), nil
	case specs.OpLessEqual:
		return []span{{hi: c.Value}}, nil
	case specs.OpGreaterEqual:
		return []span{{lo: c.Value, hi: top}}, nil
	case specs.OpGreaterThan:
		return span{hi: c.Value}.aside(), nil
	case specs.OpMaskedEqual:
		return []span{masked(c.Value, c.ValueTwo)}, nil
	}
	return nil, fmt.Errorf("unknown operator %q", c.Op)
}

func isOfOrder(op specs.LinuxSeccompOperator) bool {
	switch op {
	case specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterEqual, specs.OpGreaterThan:
		return true
	}
	return false
}

// lowerHalves are the numbers whose lower half is in one of the spans: what a condition says of an
// argument of which the kernel takes no more, such as the family of socket(2). An interval that is
// open above is a block for each bit otherwise, and those of the upper half say nothing to programs of
// a 32-bit ABI. A number with an upper half is then refused if the profile refuses its lower half.
func lowerHalves(spans []span) []span {
	var all []span
	for _, s := range spans {
		for _, low := range s.intersect(span{hi: math.MaxUint32}) {
			for _, block := range low.blocks() {
				mask, value := block.bitsOf()
				all = append(all, masked(mask&math.MaxUint32, value))
			}
		}
	}
	return all
}

// region is a set of calls: those of which each argument is in its set.
type region [6]span

var everything = region{anyValue, anyValue, anyValue, anyValue, anyValue, anyValue}

// where narrows a region by one argument.
func (r region) where(arg int, s span) region {
	r[arg] = s
	return r
}

// errTooMany says that a profile is divided into too many rules.
var errTooMany = fmt.Errorf("its conditions come to more than %d rules", ruleMax)

func (r region) intersect(t region) ([]region, error) {
	all := []region{r}
	for arg := range r {
		var next []region
		for _, one := range all {
			for _, s := range r[arg].intersect(t[arg]) {
				next = append(next, one.where(arg, s))
			}
		}
		if all = next; len(all) > ruleMax {
			return nil, errTooMany
		}
	}
	return all, nil
}

// complement is all that is not in the region, in regions that do not overlap.
func (r region) complement() []region {
	var all []region
	within := everything
	for arg, s := range r {
		for _, other := range s.complement() {
			all = append(all, within.where(arg, other))
		}
		within[arg] = s
	}
	return all
}

func intersection(rs, ts []region) ([]region, error) {
	var all []region
	for _, r := range rs {
		for _, t := range ts {
			both, err := r.intersect(t)
			if err != nil {
				return nil, err
			}
			if all = append(all, both...); len(all) > ruleMax {
				return nil, errTooMany
			}
		}
	}
	return all, nil
}

// outside is all that is in none of the regions.
func outside(rs []region) (rest []region, err error) {
	rest = []region{everything}
	for _, r := range rs {
		if rest, err = intersection(rest, r.complement()); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// rules are the conditions of rules that together match what is in the regions.
func rules(rs []region) [][]specs.LinuxSeccompArg {
	var all [][]specs.LinuxSeccompArg
	for i, r := range rs {
		if slices.Contains(rs[:i], r) {
			continue
		}
		parts := [][]specs.LinuxSeccompArg{nil}
		for arg, s := range r {
			if s == anyValue {
				continue
			}
			var next [][]specs.LinuxSeccompArg
			for _, before := range parts {
				for _, c := range s.conditions(arg) {
					next = append(next, append(slices.Clone(before), c))
				}
			}
			// More would be too many, however many there are.
			parts = next[:min(len(next), ruleMax+1)]
		}
		all = append(all, parts...)
	}
	return all
}
