package enforce

import "time"

// phase finds out when a group's periods begin, from the number of periods that the
// kernel has counted at different times. The kernel's timer keeps its phase also
// while the group is idle, and when its quota is written; it is of the same clock.
//
// Where the count went up by one between two looks, the begin is in between. Each
// round looks ten times at what the round before has left, in the next period: from
// 100 ms to 0.1 ms it takes three periods and thirty looks.
type phase struct {
	period    time.Duration
	from      time.Duration // the begin is after from and not after from+width, modulo period
	width     time.Duration // the whole period: nothing is known
	at        time.Duration // of the last look, at which there were
	count     uint64
	looked    bool
	running   int           // looks a period apart, each of which found more periods
	unchanged int           // looks since there were more
	check     time.Duration // when to see whether it is still right
	enough    time.Duration // how well it has to be known, for looks that come late anyway
}

const (
	precise    = 150 * time.Microsecond
	finest     = 100 * time.Microsecond
	rounds     = 10 // looks per round
	checkPhase = 10 * time.Second
)

func newPhase(period time.Duration) phase { return phase{period: period, width: period} }

// known tells whether it is known well enough.
func (p *phase) known() bool { return p.width <= max(precise, p.enough) }

// look is told how many periods there were by now.
func (p *phase) look(now time.Duration, count uint64) {
	at, before, looked := p.at, p.count, p.looked
	p.at, p.count, p.looked = now, count, true
	if !looked {
		return
	}
	passed := now - at
	if count == before {
		// A group that hardly runs has no periods: the kernel's timer rests.
		if p.unchanged++; passed >= p.period || p.unchanged > 3*rounds {
			p.running = 0
		}
		return
	}
	p.unchanged = 0
	if passed >= p.period/2 {
		p.running++
	}
	if passed <= 0 || passed >= p.period {
		return
	}
	switch start := p.after(at); {
	case start-p.width >= now: // a period has begun, but not where it should have
		*p = phase{period: p.period, from: at, width: passed, at: now, count: count, looked: true, running: p.running}
	case count == before+1 && passed < p.width:
		p.from, p.width, p.check = at, passed, now+checkPhase
	}
}

// after is the end of the next time in which a period begins.
func (p *phase) after(now time.Duration) time.Duration {
	since := (now - p.from - p.width) % p.period
	if since < 0 {
		since += p.period
	}
	return now + p.period - since
}

// next is when to look, or zero when there is no need.
func (p *phase) next(now time.Duration) time.Duration {
	if p.known() {
		if now < p.check {
			return 0
		}
		// Right before a period begins the count must be what it was after the begin
		// of the one before.
		p.check = now + checkPhase
		return p.after(now) - p.width - afterBegin
	}
	if p.running < 2 {
		return 0
	}
	step := max(p.width/rounds, finest)
	end := p.after(now)
	// A step early: it may begin right at the start, and a look is a little late.
	if start := end - p.width - step; now < start {
		return start
	}
	return now + step
}
