package enforcer

import (
	"runtime"
	"testing"
)

// Work may begin in the moment in which the work before is done, and whoever waits for that has not run yet. On one CPU
// the one that waits does not run before this test does, so a sync.WaitGroup in the place of pending panics.
func TestPending(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var p pending
	for range 1000 {
		done, waited := p.begin(), make(chan struct{})
		go func() {
			defer close(waited)
			p.wait()
		}()
		for range 10 {
			runtime.Gosched() // to the one that waits
		}
		select {
		case <-waited:
			t.Fatal("the work is not done, and nobody waits for it any more")
		default:
		}
		done()
		next := p.begin()
		<-waited
		next()
	}
}
