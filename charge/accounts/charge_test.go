package accounts

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
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
