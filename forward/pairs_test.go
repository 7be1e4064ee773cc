package forward

import (
	"errors"
	"testing"

	"github.com/tsugiki/tsugiki/bpf"
)

// A table whose pairs are full says so, whatever the verdict is, and still changes and removes those
// that it has.
func TestFullOfPairs(t *testing.T) {
	r := newRig(t, true, 3)
	a, b, c := r.pods[0].Device, r.pods[1].Device, r.pods[2].Device
	r.do(func() error { return r.table.SetPair(a, b, Direct) })
	m := r.table.maps.VerdictByPair
	keys := make([]bpf.ForwardPair, m.MaxEntries()-1)
	for i := range keys {
		keys[i] = bpf.ForwardPair{Low: 1 << 20, High: 1<<20 + 1 + uint32(i)}
	}
	if _, err := m.BatchUpdate(keys, make([]bpf.ForwardVerdict, len(keys)), nil); err != nil {
		t.Fatal(err)
	}
	r.do(func() error {
		for _, v := range []Verdict{Direct, Slow} {
			if err := r.table.SetPair(a, c, v); !errors.Is(err, ErrFull) {
				t.Errorf("%s: %v, want %v", v, err, ErrFull)
			}
		}
		return errors.Join(r.table.SetPair(a, b, Slow), r.table.SetPair(a, b, Default), r.table.SetPair(a, c, Slow))
	})
}
