package cputime

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// spin uses CPU time of the calling thread.
func spin(d int64) {
	for end := thread() + d; thread() < end; {
	}
}

func TestMeterCountsWorkAndNotWaiting(t *testing.T) {
	var m Meter
	var workers sync.WaitGroup
	for range 4 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			m.Do(func() {
				spin(int64(10 * time.Millisecond))
				runtime.Gosched() // may be another goroutine's turn, on another thread
				time.Sleep(20 * time.Millisecond)
			})
		}()
	}
	workers.Wait()
	spent, err := m.Elapsed()
	if err != nil || spent < 40*time.Millisecond || spent > 60*time.Millisecond {
		t.Errorf("40 ms of work in four goroutines: %v, %v", spent, err)
	}
}

func TestMeterCountsWhatPanics(t *testing.T) {
	var m Meter
	func() {
		defer func() { _ = recover() }()
		m.Do(func() {
			spin(int64(time.Millisecond))
			panic("work fails")
		})
	}()
	if spent, _ := m.Elapsed(); spent < time.Millisecond {
		t.Errorf("1 ms of work: %v", spent)
	}
}

func TestNoMeter(t *testing.T) {
	did := false
	(*Meter)(nil).Do(func() { did = true })
	if !did {
		t.Error("the work was not done")
	}
}

func BenchmarkDo(b *testing.B) {
	var m Meter
	for b.Loop() {
		m.Do(func() {})
	}
}
