package figures

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

// The study's sizes are the default. A quick sweep is smaller, and what the user asks for wins.
func TestSizesOfASweep(t *testing.T) {
	for name, test := range map[string]struct {
		options               sweep.Options
		rounds, largest, many int
	}{
		"the study's":   {sweep.Options{}, usualRounds, 64, 128},
		"quick":         {sweep.Options{Quick: true}, quickRounds, quickMax, quickFiles},
		"asked for":     {sweep.Options{Max: 300, Files: 7}, usualRounds, 300, 7},
		"quick, larger": {sweep.Options{Quick: true, Max: 8, Files: 9}, quickRounds, 8, 9},
	} {
		o := &test.options
		if r, l, m := rounds(o), largest(o, 64), files(o, 128); r != test.rounds || l != test.largest || m != test.many {
			t.Errorf("%s: %d rounds, %d containers, %d files; want %d, %d, %d", name, r, l, m, test.rounds, test.largest, test.many)
		}
	}
	for largest, want := range map[int][]int{1: {1}, 2: {1, 2}, 8: {1, 2, 4, 8}, 9: {1, 2, 4, 8, 9}} {
		if got := doubling(largest); !slices.Equal(got, want) {
			t.Errorf("doubling to %d: %v, want %v", largest, got, want)
		}
	}
}

// The error names the program that is missing, and the package that has it.
func TestNeed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := need("fio", "fio"); !errors.Is(err, rig.ErrMissing) || err.Error() != "fio: "+rig.ErrMissing.Error()+"; install the package fio" {
		t.Errorf("%v", err)
	}
}

// An interrupt ends the wait for a helper, with the reason of the interrupt.
func TestAwaitIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	h := &noise{ctx: ctx, cancel: cancel}
	if err := h.await("the agent", func() bool { return true }); err != nil {
		t.Error(err)
	}
	other, reason := errors.New("the run"), errors.New("the agent ended")
	if err := h.cause(other); !errors.Is(err, other) {
		t.Errorf("without an interrupt: %v", err)
	}
	cancel(reason)
	if err := h.await("the agent", func() bool { return false }); !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
	if err := h.cause(other); !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
}
