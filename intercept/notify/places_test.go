package notify

import "testing"

// fill takes places until there is none, and tells how many there were.
func fill(p *Places) int {
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

// A container that takes all that it gets leaves each other one its own places, and all together
// take no more than the pool and what is each one's own.
func TestPlaces(t *testing.T) {
	pool := NewPool()
	total, containers := 0, 40
	for range containers {
		n := fill(pool.NewPlaces())
		if n < placesOwn || n > placesMax {
			t.Fatalf("a container took %d places, want %d to %d", n, placesOwn, placesMax)
		}
		total += n
	}
	if want := poolPlaces + containers*placesOwn; total != want {
		t.Errorf("all took %d places, want %d", total, want)
	}
	if n := fill(pool.NewPlaces()); n != placesOwn {
		t.Errorf("with the pool empty, a container took %d places, want its own %d", n, placesOwn)
	}
}

// A place that is given back is another's, whichever it was.
func TestPlacesAreGivenBack(t *testing.T) {
	pool := NewPool()
	p := pool.NewPlaces()
	var leave []func()
	for range placesMax {
		leave = append(leave, p.take(nil, nil))
	}
	next := make(chan func())
	for range placesMax {
		go func() { next <- p.take(nil, nil) }()
	}
	for _, l := range leave {
		l()
	}
	for range placesMax {
		(<-next)()
	}
	if len(pool.free)+len(p.own)+len(p.fromPool) != 0 {
		t.Errorf("taken are %d of the pool, %d and %d", len(pool.free), len(p.own), len(p.fromPool))
	}
}
