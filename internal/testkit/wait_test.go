package testkit

import (
	"errors"
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for slow, want := range map[string]time.Duration{
		"":      time.Minute,
		"1":     time.Minute,
		"2.5":   150 * time.Second,
		"0.5":   30 * time.Second,
		"0":     time.Minute,
		"-1":    time.Minute,
		"NaN":   time.Minute,
		"+Inf":  time.Minute,
		"1e9":   time.Minute,
		"quite": time.Minute,
	} {
		if got := patience(slow); got != want {
			t.Errorf("TSUGIKI_SLOW=%s: %v, want %v", slow, got, want)
		}
	}
}

// TestEventually checks that the last error is what the test ends with, and that a check that
// is right at last is enough.
func TestEventually(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rightAt  int // the call of check that returns nil, 0 for none
		limit    time.Duration
		failures int
	}{
		{"at once", 1, Patience, 0},
		{"at last", 4, Patience, 0},
		{"never", 0, 3 * pollInterval, 1},
		{"at once, without a limit", 1, 0, 0},
		{"never, without a limit", 0, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, calls := &recorder{TB: t}, 0
			eventually(r, tt.limit, func() error {
				if calls++; calls == tt.rightAt {
					return nil
				}
				return errors.New("not yet")
			})
			if r.fatals != tt.failures {
				t.Errorf("it failed the test %d times, want %d", r.fatals, tt.failures)
			}
			if tt.rightAt > 0 && calls != tt.rightAt {
				t.Errorf("check ran %d times, want %d", calls, tt.rightAt)
			}
		})
	}
}

// A long wait looks seldom, and never so seldom that one would notice.
func TestPollAfter(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		0:                      pollInterval,
		pollInterval:           pollInterval,
		20 * pollInterval:      2 * pollInterval,
		10 * pollMost:          pollMost,
		Patience + time.Hour:   pollMost,
		500 * time.Millisecond: 50 * time.Millisecond,
	} {
		if got := pollAfter(waited); got != want {
			t.Errorf("after %v: %v, want %v", waited, got, want)
		}
	}
}
