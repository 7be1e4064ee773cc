package accounts

import (
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/charge/discover"
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
