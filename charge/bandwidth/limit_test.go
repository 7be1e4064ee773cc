package bandwidth

import (
	"testing"
	"time"
)

// The text of a quota has the period in v2, as the kernel writes it.
func TestFormatQuota(t *testing.T) {
	for _, test := range []struct {
		v2     bool
		period string
		quota  time.Duration
		want   string
	}{
		{false, "", None, "-1"},
		{false, "", 1500 * time.Microsecond, "1500"},
		{true, "50000", None, "max 50000"},
		{true, "50000", 25 * ms, "25000 50000"},
		{true, "", 25 * ms, "25000 100000"}, // of a group that was removed
		{true, "", None, "max 100000"},
	} {
		g := &Group{all: &hierarchies{cpu: hierarchy{v2: test.v2}}, path: "/nowhere", dir: -1, period: test.period}
		if got := g.FormatQuota(test.quota); got != test.want {
			t.Errorf("%v with period %q in v2=%v: %q, want %q", test.quota, test.period, test.v2, got, test.want)
		}
	}
	if got := FormatBurst(1500 * time.Microsecond); got != "1500" {
		t.Errorf("a burst is %q", got)
	}
}
