package enforce

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// wakingClock is a Waker that a test advances.
type wakingClock struct {
	mu      sync.Mutex // guards what follows
	elapsed time.Duration
	call    func()
	broken  bool // Wake fails
}

func (w *wakingClock) Elapsed() (time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.elapsed, nil
}

func (w *wakingClock) Wake(_ time.Duration, call func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken {
		return errors.New("no timers are left")
	}
	w.call = call
	return nil
}

func (w *wakingClock) advance(d time.Duration) (call func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elapsed += d
	return w.call
}

func borrowed(a *Account, want time.Duration) func() bool {
	return func() bool { return a.Status().Borrowed["helper"] == want }
}

// A charge makes the loop look at a sleeping account at the next multiple of 100 ms.
func TestRoused(t *testing.T) {
	r := newRig(t, nil)
	a := r.add(t, newPlace(t, freezers[0], limit(20*ms)))
	clock := &wakingClock{}
	a.Attach("helper", clock, false)
	for i, rouse := range []func(){
		func() { clock.advance(5 * ms)() },
		func() { a.Charge("helper", 5*ms) },
	} {
		r.mu.Lock() // holds up the loop's next look
		for !a.asleep.Load() {
			r.mu.Unlock()
			eventually(t, "it sleeps", a.asleep.Load)
			r.mu.Lock()
		}
		rouse()
		r.dueRoused()
		if now := r.now(); a.due > now+restEvery {
			t.Errorf("rouse %d: it is looked at in %v", i, a.due-now)
		}
		r.sleep.Lock()
		if r.alarm > a.due {
			t.Errorf("rouse %d: the loop sleeps for %v more", i, r.alarm-a.due)
		}
		r.sleep.Unlock()
		r.mu.Unlock()
		eventually(t, "it is charged", borrowed(a, time.Duration(i+1)*5*ms))
	}
}

// An account does not sleep if one of its clocks cannot rouse it.
func TestNotAsleep(t *testing.T) {
	r := newRig(t, nil)
	a := r.add(t, newPlace(t, freezers[0], limit(20*ms)))
	clock := &wakingClock{}
	a.Attach("helper", clock, false)
	eventually(t, "it sleeps", a.asleep.Load)
	clock.mu.Lock()
	clock.broken = true
	clock.mu.Unlock()
	a.Attach("other", &wakingClock{}, false) // makes the loop look at it
	for range 3 {
		clock.advance(5 * ms)
		eventually(t, "it is charged", borrowed(a, clock.elapsed))
		if a.asleep.Load() {
			t.Fatal("it sleeps")
		}
	}
}

// openFiles returns the files of cgroups that this process has open, without directories.
func openFiles(t *testing.T) (files []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		link, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || !strings.HasPrefix(link, "/sys/fs/cgroup/") {
			continue
		}
		if info, err := os.Stat(link); err == nil && !info.IsDir() {
			files = append(files, link)
		}
	}
	return files
}

// Accounts at rest have no open files, whatever they did before.
func TestNoFilesAtRest(t *testing.T) {
	r := newRig(t, nil)
	var accounts []*Account
	for range 10 {
		accounts = append(accounts, r.add(t, newPlace(t, freezers[0], limit(20*ms))))
	}
	rest := func() bool {
		for _, a := range accounts {
			if s := a.Status(); s.Debt > 0 || !a.asleep.Load() { // the status is read, too
				return false
			}
		}
		return true
	}
	eventually(t, "all sleep", rest)
	if files := openFiles(t); len(files) > 0 {
		t.Errorf("before anything was charged: %q", files)
	}
	for _, a := range accounts {
		a.Charge("helper", 15*ms)
	}
	eventually(t, "files are kept while something is owed", func() bool { return len(openFiles(t)) >= len(accounts) })
	eventually(t, "all sleep again", rest)
	if files := openFiles(t); len(files) > 0 {
		t.Errorf("at rest again: %q", files)
	}
}
