package filter

import (
	"errors"
	"testing"
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
	for value := range uint64(4) {
		r := everything
		for arg := range r {
			r[arg] = exactly(10 * (value + 1))
		}
		regions = append(regions, r)
	}
	if rest, err := outside(regions); !errors.Is(err, errTooMany) {
		t.Errorf("%d regions, %v", len(rest), err)
	}
}
