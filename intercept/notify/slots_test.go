package notify

import "testing"

// fill takes slots until there is none, and tells how many there were.
func fill(p *Slots) int {
	stop := make(chan struct{})
	close(stop)
	for n := 0; ; n++ {
		// stop is closed, so one that is free may be missed: by chance, and not so often.
		found := false
		for range 100 {
			found = found || p.take(stop, nil) != nil
			if found {
				break
			}
		}
		if !found {
			return n
		}
	}
}

// A container that takes all that it gets leaves each other one its own slots, and all together
// take no more than the pool and what is each one's own.
func TestSlots(t *testing.T) {
	pool := NewPool()
	total, containers := 0, 40
	for range containers {
		n := fill(pool.NewSlots())
		if n < slotsOwn || n > slotsMax {
			t.Fatalf("a container took %d slots, want %d to %d", n, slotsOwn, slotsMax)
		}
		total += n
	}
	if want := poolSlots + containers*slotsOwn; total != want {
		t.Errorf("all took %d slots, want %d", total, want)
	}
	if n := fill(pool.NewSlots()); n != slotsOwn {
		t.Errorf("with the pool empty, a container took %d slots, want its own %d", n, slotsOwn)
	}
}

// A slot that is given back is another's, whichever it was.
func TestSlotsAreGivenBack(t *testing.T) {
	pool := NewPool()
	p := pool.NewSlots()
	var leave []func()
	for range slotsMax {
		leave = append(leave, p.take(nil, nil))
	}
	next := make(chan func())
	for range slotsMax {
		go func() { next <- p.take(nil, nil) }()
	}
	for _, l := range leave {
		l()
	}
	for range slotsMax {
		(<-next)()
	}
	if len(pool.free)+len(p.own)+len(p.fromPool) != 0 {
		t.Errorf("taken are %d of the pool, %d and %d", len(pool.free), len(p.own), len(p.fromPool))
	}
}
