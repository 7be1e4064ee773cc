package enforce

import "time"

// phase finds out when a group's periods begin, from the number of periods that the
// kernel has counted at different times. The kernel's timer keeps its phase also
// while the group is idle, and when its quota is written; it is of the same clock.
//
// Where the count went up by one between two looks, the begin is in between. Each
// round looks ten times at what the round before has left, in the next period: from
// 100 ms to 0.1 ms it takes three periods and thirty looks.
//
// The kernel's timer comes late where its CPU does something else, and so may what is
// learnt from it. What is known is therefore checked: in the next period, a second
// later, and from then on every ten seconds. Right before a period should begin the
// count is to be what it was, and right after it is to be one more. A period that
// begins elsewhere has all learnt anew.
type phase struct {
	period time.Duration
	from   time.Duration // the begin is after from and not after from+width, modulo period
	width  time.Duration // the whole period: nothing is known
	at     time.Duration // of the last look, at which there were
	count  uint64
	looked bool

	running int           // times that more periods were found, half a period apart or more
	ran     time.Duration // the last of these; or the first look

	checks int           // how often it was right since it was learnt
	check  time.Duration // when to see whether it still is

	enough time.Duration // how well it has to be known, for looks that come late anyway
}

const (
	precise = 150 * time.Microsecond
	finest  = 100 * time.Microsecond
	rounds  = 10 // looks per round

	checkSoon  = time.Second
	checkPhase = 10 * time.Second
	// nearBegin is how long before a begin the look comes, at most, that a check is.
	nearBegin = time.Millisecond
)

func newPhase(period time.Duration) phase { return phase{period: period, width: period} }

// known tells whether it is known well enough.
func (p *phase) known() bool { return p.width <= max(precise, p.enough) }

// wanted tells whether the number of periods is to be read at a look.
func (p *phase) wanted(now time.Duration) bool { return !p.known() || now+p.period >= p.check }

// look is told how many periods there were by now.
func (p *phase) look(now time.Duration, count uint64) {
	at, before, looked := p.at, p.count, p.looked
	p.at, p.count, p.looked = now, count, true
	if !looked {
		p.ran = now
		return
	}
	p.run(now, count > before)
	passed := now - at
	if count == before || passed <= 0 || passed >= p.period {
		return
	}
	switch start := p.after(at) - p.width; {
	case start >= now: // a period has begun, but not where it should have
		*p = phase{
			period: p.period, from: at, width: passed, at: now, count: count, looked: true,
			running: p.running, ran: p.ran, enough: p.enough,
		}
	case count != before+1:
	case !p.known():
		if passed < p.width {
			p.from, p.width, p.check = at, passed, now
		}
	case now >= p.check && start-at <= nearBegin && passed <= p.width+2*max(nearBegin, p.enough):
		p.right(now)
	}
}

// run counts looks that found more periods, however many looks there are in between. A
// group that hardly runs has none: the kernel's timer rests.
func (p *phase) run(now time.Duration, more bool) {
	switch since := now - p.ran; {
	case more && since >= p.period/2:
		p.running++
		p.ran = now
	case !more && since >= 2*p.period:
		p.running = 0
	}
}

// right says that a check has found what was learnt to be right.
func (p *phase) right(now time.Duration) {
	p.checks++
	p.check = now + checkPhase
	if p.checks == 1 {
		p.check = now + checkSoon
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
	if p.running < 2 {
		return 0
	}
	if p.known() {
		before := p.after(now) - p.width - afterBegin
		if now < p.check || now >= before {
			return 0
		}
		return before
	}
	step := max(p.width/rounds, finest)
	end := p.after(now)
	// A step early: it may begin right at the start, and a look is a little late.
	if start := end - p.width - step; now < start {
		return start
	}
	return now + step
}
