package shared

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/charge/slots"
)

// simulation is a daemon with a thread on each CPU, with the clock and the counts that the kernel
// would keep.
type simulation struct {
	time, cpu time.Duration
	gone      bool
	sums      slots.Sums
	running   slots.Sums
	threads   []*simulated
}

// simulated is a thread that works for one owner at a time, in pieces. An event comes at the end of
// each piece, and when the thread is switched.
type simulated struct {
	slot        uint32
	piece, rest time.Duration // CPU time up to an event, and after it
	switches    time.Duration // the longest time between switches; 0: no switches

	at    time.Duration // position in piece and rest
	since time.Duration // time of the last count
	runs  bool
	spent time.Duration
}

const simWatch = 8193 // more than a word has room for

func (s *simulation) Elapsed() (time.Duration, error) {
	if s.gone {
		return s.cpu, os.ErrProcessDone
	}
	return s.cpu, nil
}

func (s *simulation) Close() error { return nil }

func newSimulation(threads ...*simulated) *simulation {
	return &simulation{
		time: time.Hour, sums: make(slots.Sums, 8), running: make(slots.Sums, stride*len(threads)), threads: threads,
	}
}

func (s *simulation) process(t *testing.T) *process {
	t.Helper()
	p, err := newProcess(1, 0, source{
		of: s, sums: s.sums, running: s.running, watch: simWatch, now: func() time.Duration { return s.time },
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// word returns the running word of a CPU with a thread that is open since then.
func word(slot uint32, watch uint32, since time.Duration) uint64 {
	return (uint64(since)>>unitBits<<watchBits|uint64(watch)&(1<<watchBits-1))<<slotBits | uint64(slot)
}

// step runs the daemon for a millisecond.
func (s *simulation) step() {
	for i, th := range s.threads {
		if runs := th.at < th.piece; runs && !th.runs {
			th.since, th.runs = s.time, true
			s.running[i*stride] = word(th.slot, simWatch, s.time)
		}
		if th.runs {
			s.cpu += ms
			th.spent += ms
		}
		th.at += ms
		ends := th.at >= th.piece
		if now := s.time + ms; th.runs && (ends || th.switches > 0 && now-th.since >= th.switches) {
			s.sums[th.slot] += uint64(now - th.since)
			th.since = now
			s.running[i*stride] = word(th.slot, simWatch, now)
		}
		if th.runs && ends {
			th.runs, s.running[i*stride] = false, 0
		}
		if th.at >= th.piece+th.rest {
			th.at = 0
		}
	}
	s.time += ms
}

// For any length of pieces, the owner of the long pieces gets their time, and at most patience of
// it late.
func TestLateEvents(t *testing.T) {
	for _, piece := range []time.Duration{10 * ms, 100 * ms, 400 * ms, 600 * ms, 3 * time.Second, time.Hour} {
		for _, switches := range []time.Duration{0, 4 * ms, 700 * ms} {
			for _, take := range []time.Duration{10 * ms, 50 * ms, 100 * ms, time.Second} {
				t.Run(fmt.Sprintf("%v switched %v taken %v", piece, switches, take), func(t *testing.T) {
					late, other := &simulated{piece: piece, rest: 60 * ms, switches: switches}, &simulated{piece: ms, rest: 4 * ms}
					divideLate(t, take, late, other)
				})
			}
		}
	}
}

func divideLate(t *testing.T, take time.Duration, late, other *simulated) {
	t.Helper()
	owners := slots.NewTable(uint32(bpf.SharedOwnerSlotSLOT_FIRST), 8)
	for i, th := range []*simulated{late, other} {
		var err error
		if th.slot, err = owners.Hold(uint32(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	s := newSimulation(late, other)
	p := s.process(t)
	got := byOwner{}
	for last := false; !last; {
		for range take / ms {
			s.step()
		}
		last = s.time >= time.Hour+10*time.Second
		if err := p.divide(owners, got, last); err != nil {
			t.Fatal(err)
		}
		if got[1] < late.spent-patience-2*ms || got[1] > late.spent+2*ms {
			t.Fatalf("after %v owner 1 has %v, of %v", s.time-time.Hour, got[1], late.spent)
		}
		if got[2] > other.spent+2*ms || got[2] < other.spent*9/10-2*ms {
			t.Fatalf("after %v owner 2 has %v, of %v", s.time-time.Hour, got[2], other.spent)
		}
	}
	if (got[1] - late.spent).Abs() > 2*ms {
		t.Errorf("at the end owner 1 has %v, of %v", got[1], late.spent)
	}
	if all := sum(got); all != s.cpu || all != p.total.CPU {
		t.Errorf("divided %v (%v) of %v", all, p.total.CPU, s.cpu)
	}
}

// After a process has ended, its clock cannot be read. The counts have its last time.
func TestProcessIsGone(t *testing.T) {
	owners := slots.NewTable(uint32(bpf.SharedOwnerSlotSLOT_FIRST), 8)
	slot, err := owners.Hold(1)
	if err != nil {
		t.Fatal(err)
	}
	s := newSimulation(&simulated{slot: slot, piece: 800 * ms, rest: time.Second})
	p, got := s.process(t), byOwner{}
	for range 700 {
		s.step()
	}
	if err := p.divide(owners, got, false); err != nil {
		t.Fatal(err)
	}
	if want := 700*ms - patience; (got[1] - want).Abs() > 10*time.Microsecond {
		t.Errorf("while it runs owner 1 has %v, want %v", got[1], want)
	}
	clock := s.cpu
	for range 200 {
		s.step()
	}
	s.cpu, s.gone = clock, true
	if err := p.divide(owners, got, false); err == nil {
		t.Error("its end is not told")
	}
	if (got[1]-800*ms).Abs() > 10*time.Microsecond || sum(got) != got[1] {
		t.Errorf("divided %v, want 800ms for owner 1", got)
	}
}

// A running word counts only if it belongs to the watch and has a time before now.
func TestOpenTime(t *testing.T) {
	const now, watch = time.Hour, 5
	unit := time.Duration(1) << unitBits
	for name, c := range map[string]struct {
		words []uint64
		want  map[uint32]time.Duration
	}{
		"nothing":             {[]uint64{0, 0}, nil},
		"of another":          {[]uint64{word(3, 4, now-ms)}, nil},
		"for two":             {[]uint64{word(3, watch, now-ms), word(2047, watch, now-2*ms)}, map[uint32]time.Duration{3: ms, 2047: 2 * ms}},
		"twice for one":       {[]uint64{word(3, watch, now-ms), 0, word(3, watch, now-2*ms)}, map[uint32]time.Duration{3: 3 * ms}},
		"of the daemon":       {[]uint64{word(0, watch, now-time.Second)}, map[uint32]time.Duration{0: time.Second}},
		"it has begun since":  {[]uint64{word(3, watch, now+ms)}, nil},
		"it begins this time": {[]uint64{word(3, watch, now)}, nil},
	} {
		var running slots.Sums
		for _, w := range c.words {
			running = append(running, make([]uint64, stride)...)
			running[len(running)-stride] = w
		}
		got := openTime(running, watch, now)
		for slot, want := range c.want {
			if (got[slot] - want).Abs() > 2*unit {
				t.Errorf("%s: slot %d is open for %v, want %v", name, slot, got[slot], want)
			}
			delete(got, slot)
		}
		for slot, d := range got {
			if d != 0 {
				t.Errorf("%s: slot %d is open for %v", name, slot, d)
			}
		}
	}
	// The time in a word wraps every thirteen days.
	wrap := time.Duration(1) << (timeBits + unitBits)
	running := make(slots.Sums, stride)
	running[0] = word(3, watch, wrap-ms)
	if got := openTime(running, watch, wrap+ms)[3]; (got - 2*ms).Abs() > 2*unit {
		t.Errorf("where the time wraps it is open for %v, want 2ms", got)
	}
}
