package daemon

import (
	"errors"
	"os"
	"testing"
	"time"
)

// steps is a clock that advances by a second at each look.
type steps struct{ now time.Duration }

func (s *steps) Elapsed() (time.Duration, error) {
	s.now += time.Second
	return s.now, nil
}

// The account of a VMM forgets the clocks of one that has ended, or each boot would add some for ever.
func TestClockEndsWithItsVMM(t *testing.T) {
	c := &bootClock{Clock: &steps{}}
	if now, err := c.Elapsed(); now != time.Second || err != nil {
		t.Fatalf("%v, %v", now, err)
	}
	c.end()
	for range 2 {
		if now, err := c.Elapsed(); now != 2*time.Second || !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("after the end: %v, %v", now, err)
		}
	}
}
