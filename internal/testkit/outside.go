package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
)

// Outside runs a function of the test kit in a program that is no test. The caller runs cleanup, which
// is what the function leaves for the end of a test; after an error it has run.
func Outside(fn func(t TB)) (cleanup func(), err error) {
	o := &outside{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(o)
	}()
	<-done
	if o.err != nil {
		o.clean()
		return func() {}, o.err
	}
	return o.clean, nil
}

// outside is the TB of a program that is no test.
type outside struct {
	cleanups []func()
	err      error
}

func (o *outside) Helper()          {}
func (o *outside) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

func (o *outside) Errorf(format string, args ...any) {
	o.err = errors.Join(o.err, fmt.Errorf(format, args...))
}

func (o *outside) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	runtime.Goexit()
}

func (o *outside) Skipf(format string, args ...any) { o.Fatalf(format, args...) }

func (o *outside) clean() {
	for _, f := range slices.Backward(o.cleanups) {
		f()
	}
	o.cleanups = nil
}
