package filter

import (
	"errors"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestParseMode(t *testing.T) {
	for _, name := range ModeNames() {
		if mode, ok := ParseMode(name); !ok || mode.String() != name {
			t.Errorf("%s: %v, %v", name, mode, ok)
		}
	}
	if mode, ok := ParseMode("ptrace"); ok {
		t.Errorf("ptrace is mode %v", mode)
	}
}

// What conditions leave is divided into a bounded number of regions.
func TestTooManyRegions(t *testing.T) {
	var regions []region
	for value := range uint64(8) {
		r := everything
		for arg := range r {
			r[arg] = exactly(10 * (value + 1))
		}
		regions = append(regions, r)
	}
	if rest, err := outside(regions); !errors.Is(err, errTooMany) {
		t.Errorf("%d regions, %v", len(rest), err)
	}
	profile := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	if rules, err := composeCall(profile, "connect", nil, trap{regions: regions}); !errors.Is(err, errTooMany) {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	many := slices.Repeat([]region{everything}, ruleMax+1)
	if both, err := intersection(many, []region{everything}); !errors.Is(err, errTooMany) {
		t.Errorf("%d regions, %v", len(both), err)
	}
}

// Each operator of a profile lets through the values that libseccomp lets through with it.
func TestOperators(t *testing.T) {
	for op, want := range map[specs.LinuxSeccompOperator][]uint64{
		specs.OpEqualTo:      {5},
		specs.OpNotEqual:     {0, 4, 6, top},
		specs.OpLessThan:     {0, 4},
		specs.OpLessEqual:    {0, 4, 5},
		specs.OpGreaterEqual: {5, 6, top},
		specs.OpGreaterThan:  {6, top},
		specs.OpMaskedEqual:  {4, 5}, // all bits but the last are those of 4
	} {
		c := specs.LinuxSeccompArg{Op: op, Value: 5}
		if op == specs.OpMaskedEqual {
			c.Value, c.ValueTwo = top&^1, 4
		}
		spans, err := parse(c)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, v := range []uint64{0, 4, 5, 6, top} {
			if slices.ContainsFunc(spans, func(s span) bool { return s.contains(v) }) {
				got = append(got, v)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s 5: %v, want %v", op, got, want)
		}
	}
}
