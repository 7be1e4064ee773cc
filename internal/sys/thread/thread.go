// Package thread runs functions on threads that end with them, so that what a function
// changes of its thread (namespaces, user, capabilities, filters) is nobody else's.
//
// It changes nothing itself, needs no privilege and runs on any kernel.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs fn on a thread of its own, which ends when fn returns, and returns what fn returns.
// Goroutines that fn starts run on other threads. If fn calls runtime.Goexit, as a test's Fatal
// does, the caller's goroutine ends too.
//
// The thread is never the process's main thread: that one does not end, and its state is what
// /proc/PID shows of the process.
func Do(fn func() error) error {
	var err error
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		if unix.Gettid() != unix.Getpid() {
			err = fn()
			returned = true
			return
		}
		// Keep the main thread busy while another thread does the work.
		err = Do(fn)
		returned = true
		runtime.UnlockOSThread()
	}()
	<-done
	if !returned {
		runtime.Goexit()
	}
	return err
}
