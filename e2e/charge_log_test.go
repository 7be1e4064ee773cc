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

	"github.com/tsugiki/tsugiki/agent/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// TestChargeRotated has a logger rotate its files while its container is charged for it,
// and owes: no line is lost, it stays the same helper, and what is owed stays owed.
func TestChargeRotated(t *testing.T) {
	for _, by := range []string{api.ByPlace, api.ByQuota} {
		t.Run(by, func(t *testing.T) {
			n := newNode(t, engineCase{engine: "ctr", none: true}, "[charge]", `within = "%s"`, fmt.Sprintf("placement = %v", by == api.ByPlace))
			testRotated(t, n, by)
		})
	}
}

func testRotated(t *testing.T, n *node, by string) {
	const lines = 100000
	path := filepath.Join(t.TempDir(), "log.json")
	uri := "binary://" + filepath.Join(filepath.Dir(tsugiki), "tsugiki-log") + "?max-size=100k&max-file=1000&path=" + path + "&agent=" + n.socket()
	n.run(t, engines.Container{
		Name: "counts", None: true, CPUs: 0.25, Flags: []string{"--log-uri", uri},
		Args: []string{"sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo stdout line $i; i=$((i+1)); done", lines)},
	})
	l := &rotating{node: n, t: t, by: by}
	l.await(func() bool { return borrowedFrom(l.account(), "logger") > 0 })
	if err := n.asked().client().Charge("counts", "test", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	files := len(rotated(t, path))
	l.await(func() bool { return l.account().DebtUS > 0 && len(rotated(t, path)) > files+2 })
	l.await(func() bool {
		running, err := n.Running("counts")
		return err == nil && !running
	})
	// The logger, which stays until the container is removed, has its last lines later.
	last := fmt.Sprintf("stdout line %d", lines-1)
	testkit.Eventually(t, testLimit, func() error {
		files := rotated(t, path)
		for _, f := range files[max(0, len(files)-2):] {
			if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(last)) {
				return nil
			}
		}
		return fmt.Errorf("no %q in %d files", last, len(files))
	})
	checkNumbers(t, "stdout", rotated(t, path), lines)
	if files := len(rotated(t, path)); files < 50 {
		t.Errorf("there are %d files", files)
	}
	if err := n.Remove("counts"); err != nil {
		t.Error(err)
	}
}

// rotating is a container whose logger rotates.
type rotating struct {
	*node
	t    *testing.T
	by   string
	last api.Charges
}

func (l *rotating) account() *api.Charged {
	if len(l.last.Containers) == 0 {
		return nil
	}
	return &l.last.Containers[0]
}

// await waits until something is so, and checks all that is said on the way.
func (l *rotating) await(so func() bool) {
	l.t.Helper()
	testkit.Eventually(l.t, testLimit, func() error {
		r := try(l.t, command(l.t, l.h, tsugiki, "charge", "show", "-j", "--agent", l.socket()))
		var now api.Charges
		if err := errors.Join(r.err, json.Unmarshal([]byte(r.stdout), &now)); err != nil {
			l.t.Fatalf("%v: %s", err, r.stderr)
		}
		before := l.last
		l.last = now
		if len(now.Containers) == 1 && len(before.Containers) == 1 {
			l.compare(&before.Containers[0], &now.Containers[0])
			l.comparePaid(&before, &now)
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
			l.t.Errorf("%s has spent %d us, and %d before", b.Source, us, b.US)
		}
		if b.Source == "logger" && b.By != l.by {
			l.t.Errorf("the logger is charged by %s", b.By)
		}
	}
	if now.ForgivenUS != 0 || now.Since != before.Since {
		l.t.Errorf("the account is %+v, and was %+v", now, before)
	}
}

// comparePaid checks that no more is paid than the quota gave meanwhile, and what a
// container may have saved.
func (l *rotating) comparePaid(before, now *api.Charges) {
	l.t.Helper()
	var paid [2]time.Duration // what was spent, but for what is still owed
	var at [2]time.Time
	for i, all := range []*api.Charges{before, now} {
		c := &all.Containers[0]
		us := c.OwnUS - c.DebtUS
		for _, b := range c.Borrowed {
			us += b.US
		}
		paid[i] = time.Duration(us) * time.Microsecond
		var err error
		if at[i], err = time.Parse(time.RFC3339Nano, all.Time); err != nil {
			l.t.Fatal(err)
		}
	}
	const saved = 350 * time.Millisecond // and what is said of one at rest may be of a second ago
	if all, given := paid[1]-paid[0], at[1].Sub(at[0])/4; all > given+saved {
		l.t.Errorf("it has paid %v, of %v that it was given", all, given)
	}
}

// compareHelpers checks that the logger is the same, and attached as it was.
func (l *rotating) compareHelpers(before, now []api.ChargeAttached) {
	l.t.Helper()
	for _, h := range before {
		if h.Source != "logger" {
			continue
		}
		for _, other := range now {
			if other.Source == "logger" && other != h {
				l.t.Errorf("the logger was %+v and is %+v", h, other)
			}
		}
	}
}
