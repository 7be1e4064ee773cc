package sip

import "time"

// bucket limits what is used of something: `burst` at once, and `rate` a second.
type bucket struct {
	burst, rate float64
	left        float64 // at the time `at`; of no meaning before the first call of has
	at          time.Time
}

// has tells whether n are left now. The caller takes from left what it uses.
func (b *bucket) has(n float64, now time.Time) bool {
	if b.at.IsZero() {
		b.left, b.at = b.burst, now
	}
	if passed := now.Sub(b.at); passed > 0 {
		b.left, b.at = min(b.burst, b.left+b.rate*passed.Seconds()), now
	}
	return b.left >= n
}
