package forks

import (
	"errors"
	"testing"
	"time"
)

// Await waits for a child that is being started, and for no later one.
func TestAwait(t *testing.T) {
	Await() // for nobody
	begun, execute := make(chan bool), make(chan error)
	result := make(chan error)
	start := func() {
		result <- Start(func() error { begun <- true; return <-execute })
	}
	go start()
	<-begun
	executed := false
	awaited := make(chan bool)
	go func() {
		Await()
		awaited <- executed
	}()
	executed = true
	failure := errors.New("no such program")
	execute <- failure
	if err := <-result; !errors.Is(err, failure) {
		t.Errorf("start: %v, want %v", err, failure)
	}
	if !<-awaited {
		t.Error("a child that had not executed its program was not waited for")
	}
}

// A child that never runs is not waited for.
func TestAwaitStuck(t *testing.T) {
	stuck := &child{time.Now().Add(-patience), make(chan struct{})}
	mu.Lock()
	children[stuck] = struct{}{}
	mu.Unlock()
	Await()
	mu.Lock()
	delete(children, stuck)
	mu.Unlock()
}
