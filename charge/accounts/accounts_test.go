package accounts

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/helper"
	"github.com/tsugiki/tsugiki/charge/ledger"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func quotaOf(t *testing.T, g *cgroups) time.Duration {
	t.Helper()
	l, err := g.Limit()
	if err != nil {
		t.Fatal(err)
	}
	return l.Quota
}

// one returns a container's account. It fails unless there is exactly one.
func one(t *testing.T, a *Accounts) Shown {
	t.Helper()
	shown, _, _ := a.Show()
	if len(shown) != 1 {
		t.Fatalf("there are %d accounts: %+v", len(shown), shown)
	}
	return shown[0]
}

const spin = "while :; do :; done"

func TestHelperIsPlacedAndPutBack(t *testing.T) {
	a := start(t, nil)
	g := placeable(t, 20*time.Millisecond)
	run(t, g, "exec sleep 1000")
	h := run(t, nil, spin)
	before := groupOfProcess(t, h.Process.Pid)
	attached, err := a.Attach(Helper{PID: h.Process.Pid, Container: g.Name, Source: "spin"})
	if err != nil {
		t.Fatal(err)
	}
	if attached.By != api.ByPlace || !strings.HasPrefix(groupOfProcess(t, h.Process.Pid), g.Path()+"/") {
		t.Errorf("it is charged by %s (%s), in %s", attached.By, attached.Reason, groupOfProcess(t, h.Process.Pid))
	}
	again, err := a.Attach(Helper{PID: h.Process.Pid, Container: g.Name})
	attached.Known = true
	if err != nil || again != attached {
		t.Errorf("attached again it is %+v, %v, and was %+v", again, err, attached)
	}
	testkit.Eventually(t, func() error {
		if spent := one(t, a).Borrowed["spin"]; spent < 20*time.Millisecond {
			return fmt.Errorf("borrowed: %v", spent)
		}
		return nil
	})
	if got := one(t, a).By["spin"]; got != api.ByPlace {
		t.Errorf("the source is charged by %q", got)
	}
	if err := a.Detach(strconv.Itoa(attached.ID)); err != nil {
		t.Error(err)
	}
	if after := groupOfProcess(t, h.Process.Pid); after != before {
		t.Errorf("it was in %s and is put back to %s", before, after)
	}
	if err := a.Detach(strconv.Itoa(attached.ID)); !errors.Is(err, ErrUnknown) {
		t.Errorf("detached again: %v", err)
	}
}

// A helper is not placed. The quota falls by its CPU time, and is restored at the end.
func TestQuotaPaysForHelper(t *testing.T) {
	a := start(t, func(c *Config) { c.Placement = false })
	g := group(t, 50*time.Millisecond)
	run(t, g, spin)
	h := run(t, nil, spin)
	attached, err := a.Attach(Helper{PID: h.Process.Pid, Container: g.Name})
	if err != nil || attached.By != api.ByQuota || attached.Reason == "" || attached.Source != "sh" {
		t.Fatalf("%+v, %v", attached, err)
	}
	testkit.Eventually(t, func() error {
		if q := quotaOf(t, g); q >= 50*time.Millisecond {
			return fmt.Errorf("the quota is %v", q)
		}
		return nil
	})
	testkit.Eventually(t, func() error {
		s := one(t, a)
		if s.Before.Quota != 50*time.Millisecond {
			t.Fatalf("the quota before is shown as %v", s.Before.Quota)
		}
		if s.After.Quota >= s.Before.Quota {
			return fmt.Errorf("the quota is shown as %v", s.After.Quota)
		}
		return nil
	})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if q := quotaOf(t, g); q != 50*time.Millisecond {
		t.Errorf("the quota is left at %v", q)
	}
}

func TestWhatCannotBeCharged(t *testing.T) {
	a := start(t, nil)
	g := group(t, 20*time.Millisecond)
	inside := run(t, g, "exec sleep 1000")
	outside := run(t, nil, "exec sleep 1000")
	for _, tt := range []struct {
		name string
		h    Helper
		want error
		text string
	}{
		{"a process of its own", Helper{PID: inside.Process.Pid, Container: g.Name}, ErrRequest, "is in the container"},
		{"no process", Helper{PID: 1 << 22, Container: g.Name}, ErrUnknown, ""},
		{"no container", Helper{PID: outside.Process.Pid, Container: "nobody"}, ErrUnknown, "no container nobody"},
		{"no cgroup", Helper{PID: outside.Process.Pid, Container: "/tsugiki-test-none"}, ErrUnknown, ""},
		{"the root", Helper{PID: outside.Process.Pid, Container: "/"}, ErrRequest, "root"},
		{"another file system", Helper{PID: outside.Process.Pid, Container: "/proc/self"}, ErrUnknown, ""},
		{"out of the hierarchy", Helper{PID: outside.Process.Pid, Container: "/../.."}, ErrUnknown, ""},
		{"its own group", Helper{Group: g.Name, Container: g.Name}, ErrRequest, "in the other"},
		{"a group to be placed", Helper{Group: g.Name, Container: g.Name, Place: true}, ErrRequest, "cannot be placed"},
	} {
		_, err := a.Attach(tt.h)
		if !errors.Is(err, tt.want) || !strings.Contains(fmt.Sprint(err), tt.text) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, attached, _ := a.Show(); len(attached) != 0 {
		t.Errorf("attached are %+v", attached)
	}
	var unknown *UnknownError
	err := a.Charge([]Charge{{g.Name, "x", time.Second}, {"nobody", "x", time.Second}})
	if !errors.As(err, &unknown) || len(unknown.Containers) != 1 || unknown.Containers[0] != "nobody" {
		t.Errorf("charge: %v", err)
	}
	if err := a.Charge([]Charge{{g.Name, "later", time.Millisecond}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error { // what is charged is seen at the next look
		if one(t, a).Borrowed["later"] == 0 {
			return errors.New("not charged yet")
		}
		return nil
	})
	if debt := one(t, a).Borrowed["x"]; debt != 0 {
		t.Errorf("one of two containers was charged: %v", debt)
	}
}

func TestNames(t *testing.T) {
	a := start(t, nil)
	g := group(t, 20*time.Millisecond)
	first := run(t, g, "exec sleep 1000")
	id := strings.Repeat("0123456789abcdef", 4)
	if err := a.Open(Container{Name: "web", ID: id, PID: first.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", id, id[:shortID], g.Name, g.Path()} {
		if err := a.Charge([]Charge{{name, "x", time.Millisecond}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"we", id[:shortID-1], ""} {
		if err := a.Charge([]Charge{{name, "x", time.Millisecond}}); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if s := one(t, a); s.Name != "web" || s.ID != id {
		t.Errorf("it is shown as %s, %s", s.Name, s.ID)
	}
	testkit.Eventually(t, func() error {
		if spent := one(t, a).Borrowed["x"]; spent != 5*time.Millisecond {
			return fmt.Errorf("borrowed: %v", spent)
		}
		return nil
	})
}

func TestOneAgentCharges(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	g := group(t, 20*time.Millisecond)
	charge := []Charge{{g.Name, "x", time.Millisecond}}
	if err := a.Charge(charge); err != nil {
		t.Fatal(err)
	}
	if err := b.Charge(charge); !errors.Is(err, ErrRequest) || !strings.Contains(fmt.Sprint(err), "another agent") {
		t.Errorf("another agent charges it as well: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Charge(charge); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// An account ends when its cgroup is removed, and its helpers are detached.
func TestGroupIsGone(t *testing.T) {
	a := start(t, nil)
	g := group(t, 20*time.Millisecond)
	first := run(t, g, "exec sleep 1000")
	h := run(t, nil, "exec sleep 1000")
	if _, err := a.Attach(Helper{PID: h.Process.Pid, Container: g.Name}); err != nil {
		t.Fatal(err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	testkit.Eventually(t, func() error { return unix.Rmdir(g.Path()) })
	testkit.Eventually(t, func() error {
		if shown, attached, _ := a.Show(); len(shown)+len(attached) > 0 {
			return fmt.Errorf("there are still %+v, %+v", shown, attached)
		}
		return nil
	})
}

func TestSourceName(t *testing.T) {
	for text, want := range map[string]string{
		"logger": "logger", "": "helper", "a b\n\x00/é": "a-b----", strings.Repeat("x", 100): strings.Repeat("x", api.ChargeSourceMax),
	} {
		if got := sourceName(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// No invalid request breaks the accounts.
func FuzzNames(f *testing.F) {
	f.Add("web", "/x")
	f.Fuzz(func(t *testing.T, name, path string) {
		a := &Accounts{byName: map[string]*account{}, byGroup: map[uint64]*account{}, closed: true, log: slog.New(slog.DiscardHandler)}
		for _, n := range []string{name, path, "/" + path} {
			if acct, err := a.resolve(n); acct != nil || err == nil {
				t.Errorf("%q is %v", n, acct)
			}
		}
		if s := sourceName(name); len(s) > api.ChargeSourceMax || s == "" {
			t.Errorf("%q", s)
		}
	})
}

func TestLedgerName(t *testing.T) {
	for _, path := range []string{"/docker/web", "/" + strings.Repeat("x", ledger.NameSize-1)} {
		if got := ledgerName(path); got != path {
			t.Errorf("%s is %s", path, got)
		}
	}
	long := strings.Repeat("/pods", ledger.NameSize)
	a, b := ledgerName(long+"/a"), ledgerName(long+"/b")
	if a == b || len(a) > ledger.NameSize || a != ledgerName(long+"/a") {
		t.Errorf("long paths are %s and %s", a, b)
	}
}

// A helper of one container that is placed stays where it is when another asks for it.
func TestPlacedTwice(t *testing.T) {
	a := start(t, nil)
	one, other := placeable(t, 20*time.Millisecond), placeable(t, 20*time.Millisecond)
	run(t, one, "sleep 1000")
	run(t, other, "sleep 1000")
	h := run(t, nil, "sleep 1000")
	home := groupOfProcess(t, h.Process.Pid)
	first, err := a.Attach(Helper{PID: h.Process.Pid, Container: one.Name})
	if err != nil || first.By != api.ByPlace {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := a.Attach(Helper{PID: h.Process.Pid, Container: other.Name})
	if err != nil || second.By != api.ByQuota || second.Reason == "" {
		t.Errorf("%+v, %v", second, err)
	}
	if _, err := a.Attach(Helper{PID: h.Process.Pid, Container: other.Name, Place: true}); err != nil {
		t.Errorf("one that is attached: %v", err)
	}
	if err := a.Detach(strconv.Itoa(first.ID)); err != nil {
		t.Error(err)
	}
	if now := groupOfProcess(t, h.Process.Pid); now != home {
		t.Errorf("it is in %s, and was in %s", now, home)
	}
}

func TestDividedHelper(t *testing.T) {
	a := start(t, nil)
	busy, idle := group(t, 50*time.Millisecond), group(t, 50*time.Millisecond)
	run(t, busy, spin)
	run(t, idle, "exec sleep 1000")
	h := run(t, nil, spin)
	attach := func(g *cgroups) Attached {
		t.Helper()
		attached, err := a.Attach(Helper{PID: h.Process.Pid, Container: g.Name, Source: "shim", NoPlace: true, divided: true})
		if err != nil || attached.By != api.ByQuota {
			t.Fatalf("%+v, %v", attached, err)
		}
		return attached
	}
	spent := func(g *cgroups) time.Duration {
		t.Helper()
		shown, _, _ := a.Show()
		for _, s := range shown {
			if s.Group == g.Path() {
				return s.Borrowed["shim"]
			}
		}
		return 0
	}
	more := func(g *cgroups) time.Duration {
		t.Helper()
		before := spent(g)
		testkit.Eventually(t, func() error {
			if s := spent(g); s < before+50*time.Millisecond {
				return fmt.Errorf("borrowed: %v", s)
			}
			return nil
		})
		return spent(g)
	}
	attach(idle) // a container that is alone pays for all of the time
	paid := more(idle)
	at := attach(busy)
	// If the busy container gets no CPU for a while, both pay the same. That does not last.
	testkit.Eventually(t, func() error {
		if all := spent(busy); all < 50*time.Millisecond || spent(idle)-paid > all/2 {
			return fmt.Errorf("the busy one is charged %v, the idle one %v", all, spent(idle)-paid)
		}
		return nil
	})
	p, err := helper.Open(h.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sum := spent(idle) + spent(busy)
	if elapsed, err := p.Elapsed(); err != nil || sum > elapsed {
		t.Errorf("both are charged %v, and it has spent %v, %v", sum, elapsed, err)
	}
	if err := a.Detach(strconv.Itoa(at.ID)); err != nil {
		t.Error(err)
	}
	more(idle) // alone again
	_ = h.Process.Kill()
	_ = h.Wait()
	testkit.Eventually(t, func() error {
		if _, attached, _ := a.Show(); len(attached) != 0 {
			a.scan()
			return fmt.Errorf("it has ended, and there is %+v", attached)
		}
		return nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.divisions) != 0 {
		t.Errorf("divisions are left: %+v", a.divisions)
	}
}
