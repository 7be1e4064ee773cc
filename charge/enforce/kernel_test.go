package enforce

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/charge/balance"
	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/ledger"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const busy = "while :; do :; done"

func (p *place) frozen(t testing.TB) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.freezer, "freezer.state"))
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(p.freezer, "cgroup.freeze"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return text[0] == 'F' || text[0] == '1'
}

// outside writes to a file from another process, as an engine does.
func outside(t testing.TB, file, text string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", "echo "+text+" > "+file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// eventually waits for something to become true.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if !is() {
			return errors.New("not yet: " + what)
		}
		return nil
	})
}

// The controller's own loop takes a helper's time out of a real group's quota. It adopts a quota
// that an engine writes, and restores it at the end.
func TestQuotaOfARealGroup(t *testing.T) {
	r := newRig(t, nil)
	p := newPlace(t, freezers[0], limit(60*ms))
	a := r.add(t, p)
	a.Attach("helper", rateClock{time.Now(), .1}, false)
	p.start(t, nil, busy)
	eventually(t, "the quota is lowered", func() bool { return p.quota(t) != "60000" })
	// A write by somebody else between the controller's read and write of a quota is lost.
	r.mu.Lock()
	p.setLimit(t, "50000", "200000")
	r.mu.Unlock()
	l := bandwidth.Limit{Quota: 50 * ms, Period: 200 * ms}
	eventually(t, "the new one is adopted", func() bool { return a.Status().Before == l })
	eventually(t, "and lowered", func() bool { return p.quota(t) != "50000" })
	if s := a.Status(); s.Mode != "quota" || s.Own == 0 || s.Borrowed["helper"] == 0 || s.Throttling.Periods == 0 {
		t.Errorf("%+v", s)
	}
	if err := r.Remove(a); err != nil {
		t.Error(err)
	}
	if got := p.quota(t); got != "50000" {
		t.Errorf("the quota is %s", got)
	}
}

// A real group is held unless somebody else freezes or thaws it. The test moves the clock, so no
// hold ends before the test has looked.
func TestFreezerOfARealGroup(t *testing.T) {
	for _, hierarchy := range freezers {
		t.Run(hierarchy, func(t *testing.T) {
			gone := 0
			s := newSim(t, func(c *Config) { c.Gone = func(*Account) { gone++ } })
			w, err := newWatch(s.Controller)
			if err != nil {
				t.Fatal(err)
			}
			s.Controller.watch = w
			p := newPlace(t, hierarchy, limit(20*ms))
			a, err := s.Add("real", p.group)
			if err != nil {
				t.Fatal(err)
			}
			p.start(t, nil, busy)
			eventually(t, "the container runs, in all of its groups", func() bool {
				used, err := p.group.Usage()
				return err == nil && used > 0 && len(pidsOf(p.freezer)) > 0
			})
			a.Charge("test", 20*time.Second)
			s.run(2 * restEvery)
			if st := a.Status(); !p.frozen(t) || st.HeldNow == 0 {
				t.Fatalf("frozen %v, held for %v", p.frozen(t), st.HeldNow)
			}
			if !a.hold.freezer.Private() {
				pausedWhileHeld(t, s, a, p)
			}
			for _, pid := range pidsOf(p.dirs[0]) {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			s.run(2 * balance.Bound()) // in v1 a frozen process does not end
			eventually(t, "the processes are gone", func() bool { return len(pidsOf(p.dirs[0])) == 0 })
			eventually(t, "the group is removed", func() bool { return unix.Rmdir(p.dirs[0]) == nil })
			s.run(trustLimit)
			if gone != 1 || len(s.accounts) != 0 {
				t.Errorf("%d accounts have ended", gone)
			}
		})
	}
}

// pausedWhileHeld pauses and resumes a held container as an engine does.
func pausedWhileHeld(t *testing.T, s *sim, a *Account, p *place) {
	t.Helper()
	p.pause(t)
	s.run(2 * balance.Bound())
	if st := a.Status(); !p.frozen(t) || st.HeldNow != 0 || st.Holds != 1 {
		t.Fatalf("paused while held: frozen %v, held for %v, the %d. time", p.frozen(t), st.HeldNow, st.Holds)
	}
	p.unpause(t)
	if p.frozen(t) {
		t.Error("frozen again at once")
	}
	a.Charge("test", 20*time.Second)
	s.run(2 * restEvery)
	if st := a.Status(); !p.frozen(t) || st.Holds != 2 {
		t.Fatalf("charged again: frozen %v, held the %d. time", p.frozen(t), st.Holds)
	}
	p.unpause(t)
	s.lookAtFreezers()
	s.run(thawedByOthers / 2)
	if st := a.Status(); p.frozen(t) || st.HeldNow != 0 {
		t.Errorf("thawed by its engine: frozen %v, held for %v", p.frozen(t), st.HeldNow)
	}
	s.run(thawedByOthers)
	if !p.frozen(t) {
		t.Error("not held again")
	}
}

// killed has the files of the controller that is killed.
const killed = "TSUGIKI_TEST_KILLED"

// beController runs a controller in this process, and charges a container so much that it is always
// in debt.
func beController() int {
	j, err := journal.Open(filepath.Join(os.Getenv(killed), "journal"))
	if err == nil {
		j.UndoHelper = os.Args[2]
		err = j.Guard(slog.Default())
	}
	l, ledgerErr := ledger.Open(filepath.Join(os.Getenv(killed), "ledger"))
	g, groupErr := bandwidth.Open(os.Args[1])
	if err := errors.Join(err, ledgerErr, groupErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c, err := New(Config{Journal: j, Ledger: l, Log: slog.Default()})
	if err != nil {
		return 1
	}
	a, err := c.Add("killed", g)
	if err != nil {
		return 1
	}
	a.Attach("helper", rateClock{time.Now(), 1}, false)
	select {}
}

func TestKilledControllerIsUndone(t *testing.T) {
	p := newPlace(t, freezers[0], limit(20*ms))
	p.start(t, nil, busy)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, p.group.Path(), filepath.Join(testkit.BuildTsugiki(t), journal.Program))
	cmd.Env = append(os.Environ(), role+"=controller", killed+"="+dir)
	cmd.Stderr = os.Stderr
	begin(t, cmd)
	eventually(t, "held at the lowest quota", func() bool {
		return p.frozen(t) && p.quota(t) == "1000"
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "undone", func() bool { return !p.frozen(t) && p.quota(t) == "20000" })

	// The next controller knows the container's debt.
	l, err := ledger.Open(filepath.Join(dir, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config) { c.Ledger = l })
	t.Cleanup(func() { l.Close() })
	a, err := r.Add("killed", p.group)
	if err != nil {
		t.Fatal(err)
	}
	if s := a.Status(); s.Carried < 10*ms || s.Borrowed["helper"] < 10*ms {
		t.Errorf("%+v", s)
	}
}
