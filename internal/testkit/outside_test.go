package testkit

import (
	"slices"
	"strings"
	"testing"
)

func TestOutside(t *testing.T) {
	var order []string
	note := func(what string) func() { return func() { order = append(order, what) } }
	cleanup, err := Outside(func(t TB) {
		t.Cleanup(note("first"))
		t.Cleanup(note("second"))
	})
	if err != nil || len(order) != 0 {
		t.Errorf("%v, cleaned up too early: %v", err, order)
	}
	cleanup()
	if !slices.Equal(order, []string{"second", "first"}) {
		t.Errorf("cleaned up in the order %v", order)
	}

	order = nil
	cleanup, err = Outside(func(t TB) {
		t.Cleanup(note("all"))
		t.Errorf("one %s", "fault")
		t.Skipf("needs the program x")
		order = append(order, "after the end")
	})
	if err == nil || !strings.Contains(err.Error(), "one fault") || !strings.Contains(err.Error(), "needs the program x") {
		t.Errorf("the error is %v", err)
	}
	cleanup()
	if !slices.Equal(order, []string{"all"}) {
		t.Errorf("after an error: %v", order)
	}
}
