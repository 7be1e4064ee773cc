package daemon

import (
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
)

// steps is a clock that advances by a second at each look.
type steps struct{ now time.Duration }

func (s *steps) Elapsed() (time.Duration, error) {
	s.now += time.Second
	return s.now, nil
}

// The account of a VMM forgets the clocks of one that has ended, or each boot would add some for ever.
func TestClockEndsWithItsVMM(t *testing.T) {
	c := &bootClock{Clock: &steps{}}
	if now, err := c.Elapsed(); now != time.Second || err != nil {
		t.Fatalf("%v, %v", now, err)
	}
	c.end()
	for range 2 {
		if now, err := c.Elapsed(); now != 2*time.Second || !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("after the end: %v, %v", now, err)
		}
	}
}

// askRemove asks for the removal of a guest. It returns the answer's status.
func askRemove(d *Daemon, name string) int {
	r := httptest.NewRequest("DELETE", "/v1/guests/"+name, nil)
	r.SetPathValue("container", name)
	w := httptest.NewRecorder()
	d.handleRemove(w, r)
	return w.Code
}

// A guest of an earlier daemon that cannot be attached keeps its record, and can be removed.
func TestPendingGuest(t *testing.T) {
	d, log := newDaemon(t)
	r := someRecord("vm")
	r.VSock = "hybrid:" + filepath.Join(t.TempDir(), "none", "v")
	d.formerGuests = []*record{r}
	if err := d.store.put(r); err != nil {
		t.Fatal(err)
	}
	d.attachGuests()
	p := d.pending.find("vm")
	if got, err := d.store.get("vm"); p == nil || got == nil || err != nil {
		t.Fatalf("pending %v, record %v, %v", p, got, err)
	}
	if err := d.try(p, true); err == nil {
		t.Error("attached without a folder")
	}
	if text := log.String(); !strings.Contains(text, "find the folder of the VMM's socket") || strings.Contains(text, "virtual machine registered") {
		t.Errorf("its container was made, or nothing said why it was not:\n%s", text)
	}
	other, err := net.Listen("unix", d.holderOf("vm")) // of another kind than a holder's: it cannot be asked
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if code := askRemove(d, "vm"); code != 500 {
		t.Errorf("DELETE says %d while a holder cannot be ended", code)
	}
	if got, err := d.store.get("vm"); d.pending.find("vm") != p || got == nil || err != nil {
		t.Errorf("its device may be there, and it is not: record %v, %v", got, err)
	}
	other.Close()
	if code := askRemove(d, "vm"); code != 204 {
		t.Errorf("DELETE says %d", code)
	}
	if err := d.try(p, true); err != nil { // it was to be tried at this moment
		t.Error(err)
	}
	if got, err := d.store.get("vm"); d.pending.find("vm") != nil || got != nil || err != nil {
		t.Errorf("record %v, %v", got, err)
	}
	if code := askRemove(d, "vm"); code != 404 {
		t.Errorf("DELETE once more says %d", code)
	}
}

// Each reload tries the configuration's guests anew, in the place of those that are tried already.
func TestPendingGuestOfConfig(t *testing.T) {
	d, _ := newDaemon(t)
	cfg := *d.config.Load()
	cfg.Containers = []config.Container{{Match: "vm"}}
	cfg.Guests = []config.Guest{{Name: "vm", VSock: "hybrid:" + filepath.Join(t.TempDir(), "none", "v")}}
	var former []*pendingGuest
	for range 3 {
		d.Reload(&cfg)
		p := d.pending.find("vm")
		if p == nil || p.ended {
			t.Fatal("the guest is not tried again")
		}
		for _, f := range former {
			if !f.ended {
				t.Error("the guest is tried twice")
			}
		}
		former = append(former, p)
	}
	if code := askRemove(d, "vm"); code != 409 {
		t.Errorf("DELETE says %d", code)
	}
	cfg.Guests = nil
	d.Reload(&cfg)
	if p := d.pending.find("vm"); p != nil || !former[2].ended {
		t.Errorf("it is pending without a configuration: %v", p)
	}
}

// There is one pending guest of a name: the last.
func TestPendingGuestsOfOneName(t *testing.T) {
	var l pendingGuests
	one := &pendingGuest{guest: api.Guest{Name: "vm"}, former: someRecord("vm"), over: make(chan struct{})}
	two := &pendingGuest{guest: api.Guest{Name: "vm"}, over: make(chan struct{})}
	l.add(one)
	l.add(two)
	l.drop(one)
	if !one.ended || two.ended || l.find("vm") != two {
		t.Errorf("%+v, %+v", one, two)
	}
	if !l.cancel("vm") || l.cancel("vm") || !two.ended {
		t.Errorf("%+v", two)
	}
	three := &pendingGuest{guest: api.Guest{Name: "vm"}, over: make(chan struct{})}
	l.add(three)
	three.end() // it is attached, and about to be dropped
	if names := l.cancelConfigured(); len(names) > 0 {
		t.Errorf("%v were not attached", names)
	}
}
