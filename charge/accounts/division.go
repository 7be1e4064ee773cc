package accounts

import (
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/charge/helper"
)

// divideEvery is how often a process's time is divided among several containers: their
// own is known to a tick.
const divideEvery = 100 * time.Millisecond

// division is the time of a process that works for several containers, as the shim of
// a pod does, where it cannot be seen for which. It is theirs in proportion to the CPU
// time that they used themselves meanwhile; if none has used any, in equal parts. One
// that is alone pays for all, at once.
type division struct {
	process divisible
	now     func() time.Time

	mu      sync.Mutex // guards what follows
	last    time.Duration
	divided time.Time
	members map[*account]*share
	calls   map[*share]func() // whom to wake
}

// divisible is a process whose time is divided: a helper.Process.
type divisible interface {
	PID() int
	Elapsed() (time.Duration, error)
	Wake(after time.Duration, call func()) error
	Close() error
}

// share is what of a division is one container's, as a Clock.
type share struct {
	of    *division
	own   func() (time.Duration, error) // what the container uses itself
	usage time.Duration                 // of the container, when it was last divided,
	used  time.Duration                 // and since the time before
	sum   time.Duration
}

// join has a container take part in the division of a process's time. With mu held.
func (a *Accounts) join(acct *account, p *helper.Process) (*share, error) {
	d := a.divisions[p.PID()]
	if d != nil {
		if _, err := d.process.Elapsed(); errors.Is(err, os.ErrProcessDone) {
			d = nil // its number has gone to another one
		}
	}
	if d == nil {
		own, err := helper.Open(p.PID())
		if err != nil {
			return nil, err
		}
		d = &division{process: own, now: time.Now, members: map[*account]*share{}, calls: map[*share]func(){}}
		if d.last, err = own.Elapsed(); err != nil {
			return nil, errors.Join(err, own.Close())
		}
		a.divisions[p.PID()] = d
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &share{of: d, own: acct.group.Usage}
	d.members[acct] = s
	d.use() // begins now for all
	return s, nil
}

// leave ends that: what is not divided yet is the others'. With mu held.
func (a *Accounts) leave(acct *account, s *share) error {
	d := s.of
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.members, acct)
	delete(d.calls, s)
	if len(d.members) > 0 {
		return nil
	}
	if a.divisions[d.process.PID()] == d {
		delete(a.divisions, d.process.PID())
	}
	return d.process.Close()
}

// Elapsed is the container's part of the process's time since it takes part.
func (s *share) Elapsed() (time.Duration, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	err := s.of.divide()
	return s.sum, err
}

// Wake is as of the process: it may have worked for another.
func (s *share) Wake(after time.Duration, call func()) error {
	d := s.of
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.process.Wake(after, d.wake); err != nil {
		return err
	}
	d.calls[s] = call
	return nil
}

func (d *division) wake() {
	d.mu.Lock()
	calls := slices.Collect(maps.Values(d.calls))
	clear(d.calls)
	d.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// divide gives the members what was spent since the last time. With the mutex held.
func (d *division) divide() error {
	now, err := d.process.Elapsed()
	spent := now - d.last
	if spent <= 0 || err == nil && len(d.members) > 1 && d.now().Sub(d.divided) < divideEvery {
		return err
	}
	d.last, d.divided = now, d.now()
	if len(d.members) == 1 {
		for _, s := range d.members {
			s.sum += spent
		}
		return err
	}
	all := d.use()
	for _, s := range d.members {
		part := 1 / float64(len(d.members))
		if all > 0 {
			part = float64(s.used) / float64(all)
		}
		s.sum += time.Duration(float64(spent) * part)
	}
	return err
}

// use finds out what the members have used since the last time. With the mutex held.
func (d *division) use() (all time.Duration) {
	for _, s := range d.members {
		s.used = 0
		// One whose cgroup is gone uses nothing.
		if usage, err := s.own(); err == nil {
			s.used, s.usage = max(0, usage-s.usage), usage
			all += s.used
		}
	}
	return all
}
