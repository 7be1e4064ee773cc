package cputime

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// spin uses CPU time of the calling thread.
func spin(d int64) {
	for end := thread() + d; thread() < end; {
	}
}

// What is counted is no less than the thread's clock says within the work, and no more
// than it says around it.
func TestMeterCountsWorkAndNotWaiting(t *testing.T) {
	var m Meter
	var workers sync.WaitGroup
	var within, around atomic.Int64
	for range 4 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := thread()
			m.Do(func() {
				began := thread()
				spin(int64(10 * time.Millisecond))
				runtime.Gosched() // may be another goroutine's turn, on another thread
				time.Sleep(20 * time.Millisecond)
				within.Add(thread() - began)
			})
			around.Add(thread() - before)
		}()
	}
	workers.Wait()
	spent, err := m.Elapsed()
	if err != nil || int64(spent) < within.Load() || int64(spent) > around.Load() {
		t.Errorf("work of %v to %v in four goroutines: %v, %v", time.Duration(within.Load()), time.Duration(around.Load()), spent, err)
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

// What lasts is counted while it goes on.
func TestMeterFollows(t *testing.T) {
	var m Meter
	spun, end := make(chan int64), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Follow(func() {
			began := thread()
			spin(int64(10 * time.Millisecond))
			spun <- thread() - began
			<-end
		})
	}()
	within := <-spun
	during, err := m.Elapsed()
	if err != nil || int64(during) < within {
		t.Errorf("%v of work so far: %v, %v", time.Duration(within), during, err)
	}
	close(end)
	<-done
	if after, _ := m.Elapsed(); after < during {
		t.Errorf("%v after the end, and %v before", after, during)
	}
	(*Meter)(nil).Follow(func() {})
}
