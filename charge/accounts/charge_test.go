package accounts

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
)

// A name that cannot be charged is listed, so that the sender repeats the charges without it. A
// charge alone is refused with its reason.
func TestRefusedNameDoesNotPreventOthers(t *testing.T) {
	a := start(t, nil)
	begin := strings.Repeat("0123456789abcdef", 3)
	for _, end := range []string{"a", "b"} {
		first := run(t, group(t, 20*time.Millisecond), "exec sleep 1000")
		if err := a.Open(Container{Name: end, ID: begin + end, PID: first.Process.Pid}); err != nil {
			t.Fatal(err)
		}
	}
	refused := []string{"/", begin, "nobody"}
	charges := []Charge{{"a", "x", time.Millisecond}}
	for _, name := range refused {
		charges = append(charges, Charge{name, "x", time.Millisecond})
	}
	var unknown *UnknownError
	err := a.Charge(charges)
	if !errors.As(err, &unknown) || !slices.Equal(unknown.Containers, refused) || !strings.Contains(err.Error(), "several containers") {
		t.Errorf("of several: %v", err)
	}
	if err := a.Charge(charges[:1]); err != nil {
		t.Error(err)
	}
	for _, alone := range charges[1:3] {
		if err := a.Charge([]Charge{alone}); !errors.Is(err, ErrRequest) || errors.As(err, &unknown) {
			t.Errorf("%s alone: %v", alone.Container, err)
		}
	}
}

// A container that is only counted is so from the moment its account is opened, and its helper is not
// moved under its quota. An account that is open follows.
func TestOnlyCount(t *testing.T) {
	a := start(t, nil)
	g := placeable(t, 20*time.Millisecond)
	first := run(t, g, "exec sleep 1000")
	id := strings.Repeat("0123456789abcdef", 4)
	const why = "its policy says so"
	a.OnlyCount(id, why)
	if err := a.Open(Container{Name: "web", ID: id, PID: first.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	if mode := one(t, a).Mode; mode != "account only: "+why {
		t.Errorf("the new account's mode is %q", mode)
	}
	h := run(t, nil, spin)
	attached, err := a.Attach(Helper{PID: h.Process.Pid, Container: "web", Source: "spin"})
	if err != nil || attached.By != api.ByQuota || attached.Reason != why {
		t.Errorf("the helper: %+v, %v", attached, err)
	}
	for _, tt := range []struct{ reason, mode string }{{why, "account only: " + why}, {"", "quota"}, {why, "account only: " + why}} {
		a.OnlyCount(id, tt.reason)
		if mode := one(t, a).Mode; !strings.HasPrefix(mode, tt.mode) {
			t.Errorf("with the reason %q the mode is %q, want %q", tt.reason, mode, tt.mode)
		}
	}
}
