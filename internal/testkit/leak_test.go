package testkit

import (
	"os"
	"testing"
)

// recorder is a TB that remembers what a check reports.
type recorder struct {
	TB
	cleanups []func()
	errors   int
	fatals   int
}

func (r *recorder) Helper()               {}
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.errors++ }
func (r *recorder) Fatalf(string, ...any) { r.fatals++ }

func TestCheckLeaksFindsLeaks(t *testing.T) {
	r := &recorder{TB: t}
	checkLeaks(r, 10*pollInterval) // a limit that passes: the file is not closed before
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.cleanups[0]()
	if r.errors != 1 {
		t.Errorf("an open file is reported %d times, want once", r.errors)
	}
}

func TestProcessUsage(t *testing.T) {
	before, err := ProcessUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	after, err := ProcessUsage(os.Getpid())
	if err != nil || after.FDs != before.FDs+1 || after.Threads < 1 {
		t.Errorf("usage %+v, %v; was %+v", after, err, before)
	}
	if _, err := ProcessUsage(-1); err == nil {
		t.Error("no error for a process that is not there")
	}
}
