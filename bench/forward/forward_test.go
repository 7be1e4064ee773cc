package main

import (
	"context"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A short run measures every mode, each of which goes its own way.
func TestMeasure(t *testing.T) {
	testkit.CheckLeaks(t)
	if err := testkit.Programs("ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "taskset"); err != nil {
		t.Skipf("skip: %v", err)
	}
	o := &options{}
	if err := o.parse([]string{"-rounds", "1", "-trips", "100"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	report, err := o.measure(context.Background(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var modes []string
	for _, r := range report.Results {
		if r.Metric == "p50" && len(r.Values) == 1 && r.Values[0] > 0 {
			modes = append(modes, r.Mode)
		}
	}
	if diff := cmp.Diff(modeNames, modes); diff != "" {
		t.Errorf("modes:\n%s", diff)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-trips", "1"}, {"more"}, {"-x"}} {
		if err := (&options{}).parse(args, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
