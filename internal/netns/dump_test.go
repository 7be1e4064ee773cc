package netns

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that changes is asked for again, but not for ever; another error is told at once.
func TestDump(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		errs  []error // of the first calls
		want  error
		calls int
	}{
		{nil, nil, 1},
		{[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, nil, 3},
		{[]error{netlink.ErrDumpInterrupted, other}, other, 2},
	} {
		calls := 0
		_, err := Dump(func() ([]int, error) {
			calls++
			if calls <= len(c.errs) {
				return nil, c.errs[calls-1]
			}
			return []int{1}, nil
		})
		if !errors.Is(err, c.want) || calls != c.calls {
			t.Errorf("%v: %v after %d calls, want %v after %d", c.errs, err, calls, c.want, c.calls)
		}
	}
	if _, err := Dump(func() ([]int, error) { return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("for ever: %v", err)
	}
}
