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

// divideEvery is the shortest time between two divisions among several containers. The kernel
// counts the containers' own time in ticks, so shorter times divide badly.
const divideEvery = 100 * time.Millisecond

// division divides the CPU time of one process among the containers that it works for. A pod's shim
// is such a process: nothing shows which container it works for at a moment. Each container gets a
// part in proportion to the CPU time that it used itself since the last division. If none used any,
// the parts are equal. A container that is alone gets all of the time at once.
type division struct {
	process divisible
	now     func() time.Time

	mu      sync.Mutex // guards the fields below
	last    time.Duration
	divided time.Time
	members map[*account]*share
	calls   map[*share]func() // called when the process has worked
}

// divisible is a process whose time can be divided. helper.Process implements it.
type divisible interface {
	PID() int
	Elapsed() (time.Duration, error)
	Wake(after time.Duration, call func()) error
	Close() error
}

// share is one container's part of a division. It implements Clock.
type share struct {
	of    *division
	own   func() (time.Duration, error) // the CPU time that the container used itself
	usage time.Duration                 // the result of own at the last division
	used  time.Duration                 // by how much own grew before the last division
	sum   time.Duration                 // of the container's parts so far
}

// join adds a container to the division of a process's time. The caller holds a.mu.
func (a *Accounts) join(acct *account, p *helper.Process) (*share, error) {
	d := a.divisions[p.PID()]
	if d != nil {
		if _, err := d.process.Elapsed(); errors.Is(err, os.ErrProcessDone) {
			d = nil // another process has its pid now
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
	d.use() // the shares of all members start now
	return s, nil
}

// leave removes a container from a division. The remaining members get the time that is not divided
// yet. The caller holds a.mu.
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

// Elapsed returns the container's part of the process's time since join.
func (s *share) Elapsed() (time.Duration, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	err := s.of.divide()
	return s.sum, err
}

// Wake has call run after the process has worked for that long. The work may have been for another
// member.
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

// divide adds the process's time since the last division to the members' sums. The caller holds
// d.mu.
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

// use reads the CPU time that each member used itself since the last call, and returns the sum. The
// caller holds d.mu.
func (d *division) use() (all time.Duration) {
	for _, s := range d.members {
		s.used = 0
		// A member whose cgroup was removed uses no time.
		if usage, err := s.own(); err == nil {
			s.used, s.usage = max(0, usage-s.usage), usage
			all += s.used
		}
	}
	return all
}
