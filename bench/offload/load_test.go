package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A way that takes all gets a burst each time. One that takes some gets as many as it has taken, and one
// that takes none gets a burst for each time of patience, which doubles.
func TestWindow(t *testing.T) {
	began := time.Unix(1, 0)
	type step struct {
		after   time.Duration
		arrived uint64
		want    int
	}
	for name, steps := range map[string][]step{
		"all":           {{0, 100, burst}, {1, 100 + burst, burst}, {2, 100 + 2*burst, burst}},
		"some":          {{0, 100, burst}, {1, 103, 3}, {2, 103, 0}, {3, 103 + burst, burst}},
		"an older load": {{0, 50, burst}, {1, 99, 0}},
		"none":          {{0, 0, burst}, {1, 0, 0}, {lossAfter - 1, 0, 0}, {lossAfter, 0, burst}, {3*lossAfter - 1, 0, 0}, {3 * lossAfter, 0, burst}},
		"late":          {{0, 0, burst}, {lossAfter, 0, burst}, {lossAfter + 1, 110, 0}, {lossAfter + 2, 101 + burst, 1}, {2*lossAfter + 2, 101 + burst, burst}},
		"no such":       {{0, 1000, burst}, {1, 1000, burst}},
	} {
		w := window{sent: 100, done: 100}
		var got, want []int
		for _, s := range steps {
			n := w.room(began.Add(s.after), s.arrived)
			w.sent += uint64(n)
			got, want = append(got, n), append(want, s.want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
