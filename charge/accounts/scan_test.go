package accounts

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/discover"
	"github.com/tsugiki/tsugiki/charge/helper"
)

// A container that another agent charges is counted as missed, until it can be followed.
func TestMissed(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	g := group(t, 20*time.Millisecond)
	first := run(t, g, "exec sleep 1000")
	if err := a.Charge([]Charge{{g.Name, "x", time.Millisecond}}); err != nil {
		t.Fatal(err)
	}
	again := func(want int) {
		t.Helper()
		b.mu.Lock()
		b.followMissed()
		b.mu.Unlock()
		if n := b.Missed(); n != want {
			t.Errorf("%d containers are missed, want %d", n, want)
		}
	}
	b.missed = map[string]discover.Container{"web": {ID: "web", Init: discover.Process{PID: first.Process.Pid}}}
	again(1)
	again(1)
	if shown, _, _ := b.Show(); len(shown) > 0 {
		t.Errorf("it is charged: %+v", shown)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	again(0)
	if s := one(t, b); s.Name != "web" {
		t.Errorf("%+v is charged", s)
	}
}

// The agent has too many open files when it finds a container, and later when it finds its helper.
// Each scan tries again.
func TestMissedForAFault(t *testing.T) {
	a, g := start(t, nil), group(t, 20*time.Millisecond)
	first, logger := run(t, g, "exec sleep 1000"), run(t, nil, "exec sleep 1000")
	again := func(want, helpers int) {
		t.Helper()
		a.mu.Lock()
		a.followMissed()
		a.mu.Unlock()
		if _, attached, _ := a.Show(); a.Missed() != want || len(attached) != helpers {
			t.Errorf("%d containers are missed, want %d; helpers: %+v", a.Missed(), want, attached)
		}
	}
	a.missed = map[string]discover.Container{"web": {
		ID: "web", Init: discover.Process{PID: first.Process.Pid},
		Helpers: []discover.Helper{{Process: discover.Process{PID: logger.Process.Pid}, Kind: discover.Logger}},
	}}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock() // no scan meanwhile
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: files.Max})
	_, failed := groupOf(first.Process.Pid)
	a.followMissed()
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &files)); err != nil || !errors.Is(failed, unix.EMFILE) {
		t.Errorf("%v; the cgroup: %v", err, failed)
	}
	a.mu.Unlock()
	if n := a.Missed(); n != 1 {
		t.Errorf("%d containers are missed", n)
	}
	t.Cleanup(func() { openProcess = helper.Open })
	openProcess = func(int) (*helper.Process, error) { return nil, unix.EMFILE }
	again(1, 0)
	openProcess = helper.Open
	again(0, 1)
}
