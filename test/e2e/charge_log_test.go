package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestChargeRotated has a logger rotate its files while its container is charged for it,
// and owes: no line is lost, it stays the same helper, and what is owed stays owed.
func TestChargeRotated(t *testing.T) {
	t.Parallel()
	for _, by := range []string{api.ByPlace, api.ByQuota} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, engineCase{engine: "ctr", none: true}, "[charge]", `within = "%s"`, fmt.Sprintf("placement = %v", by == api.ByPlace))
			testRotated(t, n, by)
		})
	}
}

func testRotated(t *testing.T, n *node, by string) {
	path, told := filepath.Join(t.TempDir(), "log.json"), t.TempDir()
	uri := "binary://" + filepath.Join(filepath.Dir(tsugiki), "tsugiki-log") + "?max-size=250k&max-file=1000&path=" + path + "&agent=" + n.socket()
	name := "counts-" + by // an agent that looks for containers tells them by their ids alone
	n.run(t, engines.Container{
		Name: name, None: true, CPUs: 0.25,
		Flags: []string{"--log-uri", uri, "--mount", "type=bind,src=" + told + ",dst=/told,options=bind:rw"},
		Args:  []string{"sh", "-c", "i=0; while [ ! -e /told/stop ]; do echo stdout line $i; i=$((i+1)); done; echo $i > /told/lines"},
	})
	l := &rotating{node: n, t: t, by: by}
	l.await(func() bool { return borrowedFrom(l.account(), "logger") > 0 })
	files := len(rotated(t, path)) + testkit.Times(4, 20)
	owes := owing{l: l, name: name}
	l.await(func() bool { return owes.renewed() && len(rotated(t, path)) > files })
	l.ending = true
	if err := os.WriteFile(filepath.Join(told, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.await(func() bool {
		running, err := n.Running(name)
		return err == nil && !running
	})
	var lines int
	if text, err := os.ReadFile(filepath.Join(told, "lines")); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscan(string(text), &lines); err != nil {
		t.Fatalf("it has printed %q lines: %v", text, err)
	}
	// The logger, which stays until the container is removed, has its last lines later.
	last := fmt.Sprintf("stdout line %d\\n", lines-1)
	testkit.Eventually(t, func() error {
		files := rotated(t, path)
		for _, f := range files[max(0, len(files)-2):] {
			if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(last)) {
				return nil
			}
		}
		return fmt.Errorf("no %q in %d files", last, len(files))
	})
	checkNumbers(t, "stdout", rotated(t, path), lines)
	if err := n.Remove(name); err != nil {
		t.Error(err)
	}
}

// owing keeps a container in debt for as long as a test needs.
type owing struct {
	l       *rotating
	name    string
	charged time.Duration
}

// renewed tells whether the container owes, and charges it again before it has paid. It has at
// most 7 s and what the logger spends to pay, less than what is forgiven (enforce.DebtLimit).
func (o *owing) renewed() bool {
	o.l.t.Helper()
	const atOnce, little = 5 * time.Second, 2 * time.Second
	c := o.l.account()
	debt := time.Duration(c.DebtUS) * time.Microsecond
	// The last charge is in the debt once it is in the sum.
	if borrowedFrom(c, "test") == o.charged && debt < little {
		if err := o.l.asked().client().Charge(o.name, "test", atOnce); err != nil {
			o.l.t.Fatal(err)
		}
		o.charged += atOnce
	}
	return debt > 0
}

// rotating is a container whose logger rotates.
type rotating struct {
	*node
	t    *testing.T
	by   string
	last api.Charges
	// after is when the account was not yet what last says, or zero: it is looked at now and
	// then only.
	after time.Time
	// ending says that the program is told to end. Then a logger that was moved below the
	// container's quota is moved back, and charged by quota.
	ending bool
}

func (l *rotating) account() *api.Charged {
	if len(l.last.Containers) == 0 {
		return nil
	}
	return &l.last.Containers[0]
}

// await waits until something is so, and checks all that is said on the way. The first
// thing that is wrong ends the test: it is asked again and again.
func (l *rotating) await(so func() bool) {
	l.t.Helper()
	testkit.Eventually(l.t, func() error {
		r := try(l.t, command(l.t, l.h, tsugiki, "charge", "show", "-j", "--agent", l.socket()))
		var now api.Charges
		if err := errors.Join(r.err, json.Unmarshal([]byte(r.stdout), &now)); err != nil {
			l.t.Fatalf("%v: %s", err, r.stderr)
		}
		answered, before := time.Now(), l.last
		l.last = now
		if len(now.Containers) == 1 && len(before.Containers) == 1 {
			l.compare(&before.Containers[0], &now.Containers[0])
			l.comparePaid(&before, &now, answered)
		}
		if len(before.Helpers) > 0 && len(now.Helpers) > 0 {
			l.compareHelpers(before.Helpers, now.Helpers)
		}
		if !so() {
			return fmt.Errorf("it is still %+v", now)
		}
		return nil
	})
}

// compare checks that sums only grow, and that debt is paid by the quota alone.
func (l *rotating) compare(before, now *api.Charged) {
	l.t.Helper()
	for _, b := range before.Borrowed {
		if us := borrowedFrom(now, b.Source).Microseconds(); us < b.US {
			l.t.Fatalf("%s has spent %d us, and %d before", b.Source, us, b.US)
		}
		if b.Source == "logger" && b.By != l.by && !l.ending {
			l.t.Fatalf("the logger is charged by %s", b.By)
		}
	}
	if now.ForgivenUS != 0 || now.Since != before.Since {
		l.t.Fatalf("the account is %+v, and was %+v", now, before)
	}
}

// comparePaid checks that no more is paid than the quota gave until the answer, and what a
// container may have saved.
func (l *rotating) comparePaid(before, now *api.Charges, answered time.Time) {
	l.t.Helper()
	var paid [2]time.Duration // what was spent, but for what is still owed
	for i, all := range []*api.Charges{before, now} {
		c := &all.Containers[0]
		us := c.OwnUS - c.DebtUS
		for _, b := range c.Borrowed {
			us += b.US
		}
		paid[i] = time.Duration(us) * time.Microsecond
	}
	if paid[0] == paid[1] {
		return // it may not have been looked at
	}
	asked, err := time.Parse(time.RFC3339Nano, before.Time) // before the agent read the account
	if err != nil {
		l.t.Fatal(err)
	}
	// A law of accounting and no band: both looks lie between the two times, and a slower machine only
	// lengthens that. It may have saved a little more than one quota, and both ends are within a period.
	const quota = 25 * time.Millisecond // in 100 ms
	const saved = 4 * quota
	if all, given := paid[1]-paid[0], answered.Sub(l.after)/4; !l.after.IsZero() && all > given+saved {
		l.t.Fatalf("it has paid %v, of %v that it was given: it was %+v, and is %+v", all, given, before.Containers[0], now.Containers[0])
	}
	l.after = asked
}

// compareHelpers checks that the logger is the same, and attached as it was until the program is
// told to end.
func (l *rotating) compareHelpers(before, now []api.ChargeAttached) {
	l.t.Helper()
	for _, h := range before {
		if h.Source != "logger" {
			continue
		}
		for _, other := range now {
			if l.ending {
				other.By, other.Reason = h.By, h.Reason
			}
			if other.Source == "logger" && other != h {
				l.t.Fatalf("the logger was %+v and is %+v", h, other)
			}
		}
	}
}
