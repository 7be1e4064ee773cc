package enforce

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// eventually waits for something to become true.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in 10 seconds: %s", what)
		}
	}
}

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

// held has a container held, for about a second.
func held(t testing.TB, r *rig, p *place) *Account {
	t.Helper()
	a := r.add(t, p)
	p.start(t, nil, busy)
	eventually(t, "the container runs", func() bool { return a.Status().Own > 20*ms })
	a.Charge("test", 10*time.Second)
	eventually(t, "the container is held", func() bool { return p.frozen(t) })
	return a
}

func TestHoldEndsInTime(t *testing.T) {
	for _, freezer := range freezers {
		t.Run(freezer, func(t *testing.T) {
			r := newRig(t, nil)
			p := newPlace(t, freezer, limit(20*ms))
			a := held(t, r, p)
			if now := a.Status().HeldNow; now <= 0 {
				t.Error("the status does not tell")
			}
			eventually(t, "it goes on", func() bool { return !p.frozen(t) })
			s := a.Status()
			if s.LongestHold < 500*ms || s.LongestHold > balance.Bound()+500*ms {
				t.Errorf("held for %v", s.LongestHold)
			}
			if s.Carried < 5*time.Second || s.After.Quota > 11*ms {
				t.Errorf("%v carried, the quota is %v", s.Carried, s.After.Quota)
			}
		})
	}
}

func TestPauseWhileHeldStays(t *testing.T) {
	r := newRig(t, nil)
	p := newPlace(t, freezers[len(freezers)-1], limit(20*ms))
	a := held(t, r, p)
	p.pause(t)
	eventually(t, "the hold ends", func() bool { return a.Status().HeldNow == 0 })
	// It would have ended by itself meanwhile, and others would have begun.
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * ms) {
		if !p.frozen(t) {
			t.Fatal("somebody's pause was undone")
		}
	}
	if holds := a.Status().Holds; holds != 1 {
		t.Errorf("%d holds", holds)
	}
	p.unpause(t)
	own := a.Status().Own
	eventually(t, "it runs", func() bool { return a.Status().Own > own+5*ms })
	if err := r.Remove(a); err != nil {
		t.Error(err)
	}
}

func TestThawByOthersIsRespected(t *testing.T) {
	r := newRig(t, nil)
	p := newPlace(t, freezers[len(freezers)-1], limit(20*ms))
	a := held(t, r, p)
	p.unpause(t)
	for end := time.Now().Add(thawedByOthers / 2); time.Now().Before(end); time.Sleep(10 * ms) {
		if p.frozen(t) {
			t.Fatal("frozen again at once")
		}
	}
	if s := a.Status(); s.Holds != 1 || s.HeldNow != 0 {
		t.Errorf("%d holds, held now for %v", s.Holds, s.HeldNow)
	}
}

func TestPausedBeforeIsNotThawed(t *testing.T) {
	r := newRig(t, nil)
	p := newPlace(t, freezers[len(freezers)-1], limit(20*ms))
	a := r.add(t, p)
	p.start(t, nil, busy)
	eventually(t, "the container runs", func() bool { return a.Status().Own > 20*ms })
	p.pause(t)
	a.Charge("test", time.Second)
	time.Sleep(1500 * ms)
	if s := a.Status(); s.Holds != 0 || !p.frozen(t) {
		t.Errorf("%d holds, frozen %v", s.Holds, p.frozen(t))
	}
}

func TestLetGo(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Burst = true })
	p := newPlace(t, freezers[0], limit(20*ms))
	a := r.add(t, p)
	p.start(t, nil, busy)
	r.neighbour(t)
	eventually(t, "it has burst", func() bool { return p.burst(t) == "20000" })
	a.LetGo(10 * ms)
	p.setQuota(t, "10000") // refused with the burst
	a.Charge("test", time.Second)
	eventually(t, "the container is held", func() bool { return p.frozen(t) })
	a.LetGo(time.Second)
	if p.frozen(t) {
		t.Error("it is not let go")
	}
	time.Sleep(300 * ms)
	if p.frozen(t) {
		t.Error("it is held again")
	}
}

func TestKilledWhileHeld(t *testing.T) {
	for _, freezer := range freezers {
		t.Run(freezer, func(t *testing.T) {
			r := newRig(t, nil)
			p := newPlace(t, freezer, limit(20*ms))
			held(t, r, p)
			for _, pid := range pidsOf(p.dirs[0]) {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "the process is gone", func() bool { return len(pidsOf(p.dirs[0])) == 0 })
		})
	}
}

func TestGroupIsRemovedWhileHeld(t *testing.T) {
	gone := make(chan *Account, 1)
	r := newRig(t, func(c *Config) { c.Gone = func(a *Account) { gone <- a } })
	p := newPlace(t, freezers[0], limit(20*ms))
	a := held(t, r, p)
	for _, pid := range pidsOf(p.dirs[0]) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	eventually(t, "the group is removed", func() bool { return unix.Rmdir(p.dirs[0]) == nil })
	select {
	case got := <-gone:
		if got != a {
			t.Error("another account has ended")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the account has not ended")
	}
	a.LetGo(time.Second)
	a.Charge("test", time.Second)
	if err := r.Remove(a); err != nil {
		t.Error(err)
	}
	if left := r.ledger.Entries(); len(left) != 0 {
		t.Errorf("%d in the ledger", len(left))
	}
}

// spending is what an account had come to at a look.
type spending struct {
	at        time.Duration
	all, debt time.Duration // own and borrowed; what of it is not paid for
}

func (r *rig) spent(a *Account) spending {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := spending{at: a.last, all: a.entry.Own(), debt: a.balance.Debt()}
	for _, d := range a.entry.Sources() {
		s.all += d
	}
	return s
}

// adopted waits until a limit is what is charged and the quota is lowered, and checks
// that the container and its helpers keep to that limit for ten periods.
func (r *rig) adopted(t *testing.T, a *Account, l bandwidth.Limit) {
	t.Helper()
	eventually(t, "it is adopted", func() bool { return a.Status().Before == l })
	eventually(t, "its quota is lowered", func() bool { return a.Status().After.Quota < l.Quota })
	before, now := r.spent(a), spending{}
	eventually(t, "ten periods pass", func() bool {
		now = r.spent(a)
		return now.at >= before.at+10*l.Period
	})
	given := time.Duration(float64(now.at-before.at) / float64(l.Period) * float64(l.Quota))
	saved := l.Quota * 5 / 4 // at first, for package balance lets it save a little more than a quota
	if paid := now.all - before.all - (now.debt - before.debt); paid > given+saved {
		t.Errorf("with %v of %v it has paid for %v in %v", l.Quota, l.Period, paid, now.at-before.at)
	}
}

// between writes to the files when the controller does not: what somebody else writes
// between its reading a quota and its writing one is lost.
func (r *rig) between(write func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	write()
}

func TestUpdateOfTheLimitIsAdopted(t *testing.T) {
	r := newRig(t, nil)
	p := newPlace(t, freezers[0], limit(60*ms))
	a := r.add(t, p)
	a.Attach("helper", rateClock{time.Now(), .1}, false)
	p.start(t, nil, busy)
	r.adopted(t, a, limit(60*ms))
	r.between(func() { p.setQuota(t, "40000") })
	r.adopted(t, a, limit(40*ms))
	r.between(func() { p.setLimit(t, "50000", "200000") })
	r.adopted(t, a, bandwidth.Limit{Quota: 50 * ms, Period: 200 * ms})
	r.between(func() { p.setQuota(t, "-1") })
	eventually(t, "it has no quota", func() bool { return a.Status().Mode == "account only: no quota" })
	p.setQuota(t, "30000")
	r.adopted(t, a, bandwidth.Limit{Quota: 30 * ms, Period: 200 * ms})
	if s := a.Status(); s.Mode != "quota" {
		t.Errorf("mode %q", s.Mode)
	}
	if err := r.Remove(a); err != nil {
		t.Error(err)
	}
	if got := p.quota(t); got != "30000" {
		t.Errorf("the quota is %s", got)
	}
}

func TestRefusedQuotaLeavesItAlone(t *testing.T) {
	if v2 {
		t.Skip("skip: needs the cpu controller of cgroup v1, which refuses less than a child has")
	}
	r := newRig(t, nil)
	p := newPlace(t, freezers[0], limit(50*ms))
	child := filepath.Join(p.dirs[0], "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Rmdir(child) })
	if err := os.WriteFile(filepath.Join(child, "cpu.cfs_quota_us"), []byte("40000"), 0); err != nil {
		t.Fatal(err)
	}
	a := r.add(t, p)
	p.start(t, nil, busy)
	a.Attach("helper", rateClock{time.Now(), .2}, false)
	eventually(t, "it is left alone", func() bool { return strings.HasPrefix(a.Status().Mode, "account only: ") })
	if got := p.quota(t); got != "50000" {
		t.Errorf("the quota is %s", got)
	}
	before := a.Status().Borrowed["helper"]
	eventually(t, "the helper is still counted", func() bool { return a.Status().Borrowed["helper"] > before })
}

// neighbour adds a container whose quota is lowered for its helper.
func (r *rig) neighbour(t *testing.T) *Attachment {
	p := newPlace(t, freezers[0], limit(20*ms))
	a := r.add(t, p)
	p.start(t, nil, busy)
	return a.Attach("helper", rateClock{time.Now(), .1}, false)
}

func TestBurstIsGivenAndTakenAway(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Burst = true })
	p := newPlace(t, freezers[0], bandwidth.Limit{Quota: 50 * ms, Burst: 5 * ms})
	a := r.add(t, p)
	p.start(t, nil, busy)
	burst := func(is string) func() bool {
		return func() bool { return p.burst(t) == is }
	}
	time.Sleep(2 * protectAfter)
	if !burst("5000")() {
		t.Errorf("with no neighbour in debt the burst is %s", p.burst(t))
	}
	neighbour := r.neighbour(t)
	eventually(t, "burst", burst("50000"))
	x := a.Attach("helper", rateClock{time.Now(), .2}, false)
	eventually(t, "none with a lower quota", burst("0"))
	x.Detach()
	eventually(t, "burst again", burst("50000"))
	neighbour.Detach()
	eventually(t, "burst as it was", burst("5000"))
	if err := r.Remove(a); err != nil {
		t.Error(err)
	}
	if !burst("5000")() {
		t.Errorf("the burst is %s", p.burst(t))
	}
}

// Only what others owe gives a container burst.
func TestBurstIsNotForOnesOwnDebts(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Burst = true })
	place := func() *place { return newPlace(t, freezers[0], bandwidth.Limit{Quota: 50 * ms, Burst: 5 * ms}) }
	p := place()
	a, b, c := r.add(t, p), r.add(t, place()), r.add(t, place())
	r.mu.Lock() // the loop does not look meanwhile
	defer r.mu.Unlock()
	owes, owesNothing := balance.Output{Quota: 40 * ms}, balance.Output{Quota: 50 * ms, Protect: true}
	for i, step := range []struct {
		owe  []*Account // one after the other
		want string     // burst of the first
	}{
		{nil, "5000"},
		{[]*Account{a}, "5000"},
		{[]*Account{a, a}, "5000"},
		{[]*Account{b}, "50000"},
		{[]*Account{b, a}, "50000"},
		{[]*Account{b, c, a, a}, "50000"},
		{[]*Account{a, b, b}, "50000"},
	} {
		r.lowered = lowered{}
		for _, account := range []*Account{a, b, c} { // as they were
			if err := account.control(owesNothing); err != nil {
				t.Fatal(err)
			}
		}
		for _, account := range step.owe {
			if err := account.control(owes); err != nil {
				t.Fatal(err)
			}
		}
		a.limits.owesSince = r.now() - protectAfter
		if err := a.control(owesNothing); err != nil {
			t.Fatal(err)
		}
		if got := p.burst(t); got != step.want {
			t.Errorf("step %d: the burst is %s, not %s", i, got, step.want)
		}
	}
}

func TestManyAccountsComeAndGo(t *testing.T) {
	r := newRig(t, nil)
	accounts := make(map[*Account]*place)
	for range 200 {
		p := newPlace(t, "", limit(20*ms))
		a := r.add(t, p)
		a.Attach("helper", rateClock{time.Now(), .05}, false)
		accounts[a] = p
	}
	time.Sleep(500 * ms)
	for a, p := range accounts {
		if a.Status().Borrowed["helper"] == 0 {
			t.Errorf("%s was not looked at", a.Name())
		}
		if err := r.Remove(a); err != nil {
			t.Error(err)
		}
		if got := p.quota(t); got != "20000" {
			t.Errorf("the quota is %s", got)
		}
	}
	if left := r.ledger.Entries(); len(left) != 0 {
		t.Errorf("%d in the ledger", len(left))
	}
}

// killed are the files of the controller that is killed.
const killed = "TSUGIKI_TEST_KILLED"

// beController charges a container that never stops owing.
func beController() int {
	j, err := journal.Open(filepath.Join(os.Getenv(killed), "journal"))
	if err == nil {
		j.Guardian = os.Args[2]
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

	// The next one knows what it owes.
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
