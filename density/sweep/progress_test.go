package sweep

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	p := &progress{expected: 100}
	p.since = time.Now()
	for _, tt := range []struct {
		past  float64
		took  time.Duration
		share float64
		left  time.Duration
	}{
		{0, 0, 0, 100 * time.Second},
		{50, 100 * time.Second, 0.5, 100 * time.Second}, // twice as slow as expected
		{100, 10 * time.Second, 1, 0},
	} {
		p.past, p.took = tt.past, tt.took
		if share, left := p.state(); share-tt.share > 0.01 || left != tt.left {
			t.Errorf("after %v of 100 s: %v, %v left, want %v, %v", tt.past, share, left, tt.share, tt.left)
		}
	}
	// A step that takes longer than expected counts only its expected time.
	p.past, p.took, p.guess, p.since = 0, 0, 30, time.Now().Add(-time.Hour)
	if share, left := p.state(); share != 0.3 || left != 70*time.Second {
		t.Errorf("in a long step: %v, %v left", share, left)
	}
	// A step that reports its progress is as slow as it reports.
	p.share = 0.5
	if share, left := p.state(); share != 0.15 || left < 5*time.Hour || left > 6*time.Hour {
		t.Errorf("half of a step in an hour: %v, %v left", share, left)
	}
	p.share = 0
	var out bytes.Buffer
	p.out, p.width, p.step = &out, 50, "cpu, round 1 of 5: "+strings.Repeat("x", 100)
	p.draw()
	if got, want := out.String(), "\r\x1b[K[#######-----------------]  30 %  1m10s left  cpu"; got != want {
		t.Errorf("bar: %q, want %q", got, want)
	}
}
