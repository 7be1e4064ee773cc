package enforce

import "time"

// phase learns when a group's periods begin. Its input is the number of periods that the kernel has
// counted at different times. The kernel's timer runs on the same clock as the loop. It keeps its
// phase while the group is idle, and when the quota is written.
//
// If the count went up by one between two looks, a period began between them. Each round narrows
// the known interval to a tenth, with ten looks in the next period. From 100 ms to 0.1 ms it takes
// three periods and thirty looks.
//
// The kernel's timer fires late if its CPU is busy, so a learnt beginning may be wrong. It is
// therefore checked: in the next period, one second later, and then every ten seconds. The count
// must be unchanged right before a beginning, and one higher right after it. If a period begins
// elsewhere, the phase is learnt again from the start.
type phase struct {
	period time.Duration
	from   time.Duration // a period begins after from and no later than from+width, modulo period
	width  time.Duration // equal to period: nothing is known
	at     time.Duration // when look was last called
	count  uint64        // the number of periods at that time
	looked bool

	running int           // how many times a look found more periods, at least half a period apart
	ran     time.Duration // the last of these times; or of the first look

	checks int           // successful checks since the phase was learnt
	check  time.Duration // when to check next

	enough time.Duration // the width that is precise enough, because looks come late anyway
}

const (
	precise = 150 * time.Microsecond
	finest  = 100 * time.Microsecond
	rounds  = 10 // looks per round

	checkSoon  = time.Second
	checkPhase = 10 * time.Second
	// nearBegin is the longest time between a beginning and the look before it that still makes a
	// check.
	nearBegin = time.Millisecond
)

func newPhase(period time.Duration) phase { return phase{period: period, width: period} }

// known tells whether the beginning is known precisely enough.
func (p *phase) known() bool { return p.width <= max(precise, p.enough) }

// wanted tells whether a look should read the number of periods.
func (p *phase) wanted(now time.Duration) bool { return !p.known() || now+p.period >= p.check }

// look records that the kernel has counted count periods by now.
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
	case start >= now: // a period began at another time than expected
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

// run counts the looks that found more periods, however many looks come in between. The kernel's
// timer stops while a group does not run, so such a group has no new periods.
func (p *phase) run(now time.Duration, more bool) {
	switch since := now - p.ran; {
	case more && since >= p.period/2:
		p.running++
		p.ran = now
	case !more && since >= 2*p.period:
		p.running = 0
	}
}

// right records a successful check.
func (p *phase) right(now time.Duration) {
	p.checks++
	p.check = now + checkPhase
	if p.checks == 1 {
		p.check = now + checkSoon
	}
}

// after returns the end of the next interval in which a period begins.
func (p *phase) after(now time.Duration) time.Duration {
	since := (now - p.from - p.width) % p.period
	if since < 0 {
		since += p.period
	}
	return now + p.period - since
}

// next returns the time of the next look for the phase, or zero if none is needed.
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
	// The look comes one step early: the period may begin right at the interval's start, and a look
	// is a little late.
	if start := end - p.width - step; now < start {
		return start
	}
	return now + step
}
