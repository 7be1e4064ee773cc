package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/ledger"
	"github.com/tsugiki/tsugiki/internal/mapped"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// asks sends a request, and returns the status and what the answer says.
func (n *asked) asks(t *testing.T, method, path string, body io.Reader) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://tsugiki"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.http.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(said)
}

// TestChargeRefused asks for what makes no sense. Nothing is charged, and the answer
// says why, in one line.
func TestChargeRefused(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	p := newPaying(t, 20*time.Millisecond)
	inside := exec.Command("sleep", "1000")
	launch(t, inside)
	p.Enter(t, inside.Process.Pid)
	over := exec.Command("true")
	if err := over.Run(); err != nil {
		t.Fatal(err)
	}
	batch := fmt.Sprintf(`{"charges":[{"container":%q,"microseconds":1000},{"container":"nobody","microseconds":1000},{"container":"/tsugiki-test-nobody","microseconds":1}]}`, p.Name)
	var many strings.Builder
	for i := range api.ChargesMax + 1 {
		fmt.Fprintf(&many, `%s{"container":%q,"microseconds":1}`, map[bool]string{true: ","}[i > 0], p.Name)
	}
	helper := func(pid int, more string) string {
		return fmt.Sprintf(`{"helper":{"pid":%d},"to":%q%s}`, pid, p.Name, more)
	}
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"no body", "POST", "/v1/charge", "", 400, ""},
		{"an array", "POST", "/v1/charge", "[]", 400, ""},
		{"a number", "POST", "/v1/charge", `{"container":"/x","duration":5}`, 400, ""},
		{"nothing", "POST", "/v1/charge", "{}", 400, "nothing is charged"},
		{"another key", "POST", "/v1/charge", `{"container":"x","duration":"1us","pid":1}`, 400, ""},
		{"negative", "POST", "/v1/charge", `{"container":"x","duration":"-1us"}`, 400, "more than 0"},
		{"nanoseconds", "POST", "/v1/charge", `{"container":"x","duration":"1ns"}`, 400, "whole microseconds"},
		{"too long", "POST", "/v1/charge", `{"container":"x","duration":"61m"}`, 400, "at most"},
		{"overflow", "POST", "/v1/charge", `{"charges":[{"container":"x","microseconds":9223372036854775807}]}`, 400, "at most"},
		{"source", "POST", "/v1/charge", `{"container":"x","source":"a b","duration":"1us"}`, 400, "letters"},
		{"dots", "POST", "/v1/charge", `{"container":"/a/../..","duration":"1us"}`, 400, ""},
		{"root", "POST", "/v1/charge", `{"container":"/","duration":"1us"}`, 400, "root"},
		{"unknown", "POST", "/v1/charge", `{"container":"nobody","duration":"1us"}`, 404, "nobody"},
		{"unknown path", "POST", "/v1/charge", `{"container":"/tsugiki-test-nobody","duration":"1us"}`, 404, "nobody"},
		{"a file", "POST", "/v1/charge", fmt.Sprintf(`{"container":"%s/cgroup.procs","duration":"1us"}`, p.Name), 404, ""},
		{"two unknown", "POST", "/v1/charge", batch, 404, "nobody"},
		{"too many", "POST", "/v1/charge", `{"charges":[` + many.String() + `]}`, 400, "too many"},
		{"huge", "POST", "/v1/charge", `{"container":"` + strings.Repeat("x", 2<<20) + `"}`, 413, ""},
		{"helper that has ended", "POST", "/v1/charge/helpers", helper(over.Process.Pid, ""), 404, ""},
		{"helper in the container", "POST", "/v1/charge/helpers", helper(inside.Process.Pid, ""), 400, "in the container"},
		{"no helper", "POST", "/v1/charge/helpers", helper(0, ""), 400, ""},
		{"both", "POST", "/v1/charge/helpers", helper(1, `,"shared":true`), 400, ""},
		{"by what", "POST", "/v1/charge/helpers", helper(1, `,"by":"force"`), 400, ""},
		{"the container itself", "POST", "/v1/charge/helpers", fmt.Sprintf(`{"helper":{"group":%q},"to":%[1]q}`, p.Name), 400, ""},
		{"a group that is not there", "POST", "/v1/charge/helpers", fmt.Sprintf(`{"helper":{"group":"/tsugiki-test-nobody"},"to":%q}`, p.Name), 404, ""},
		{"no such helper", "DELETE", "/v1/charge/helpers/4711", "", 404, ""},
		{"no number", "DELETE", "/v1/charge/helpers/x", "", 404, ""},
		{"let go of nobody", "POST", "/v1/charge/nobody/let-go", `{"for":"1s"}`, 404, ""},
		{"let go for long", "POST", "/v1/charge/nobody/let-go", `{"for":"61s"}`, 400, ""},
		{"let go for no time", "POST", "/v1/charge/nobody/let-go", `{}`, 400, ""},
		{"another method", "PUT", "/v1/charge", `{}`, 405, ""},
	} {
		status, said := n.asks(t, tt.method, tt.path, strings.NewReader(tt.body))
		var failure api.Failure
		if err := json.Unmarshal([]byte(said), &failure); err != nil && status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %v: %q", tt.name, err, said)
		}
		if status != tt.status || !strings.Contains(failure.Error, tt.says) || strings.Contains(failure.Error, "\n") {
			t.Errorf("%s: %d %q, want %d", tt.name, status, said, tt.status)
		}
		if tt.name == "two unknown" && len(failure.Unknown) != 2 {
			t.Errorf("%s: %q are unknown", tt.name, failure.Unknown)
		}
	}
	if c := n.account(t, p.Path()); c != nil && (len(c.Borrowed) != 0 || c.DebtUS != 0) {
		t.Errorf("%+v was charged", c)
	}
	n.checkCommand(t, p)
}

// checkCommand checks the command's statuses: 2 for what is wrong by itself, 1 for what
// the agent does not do; and that others than root are not heard.
func (n *asked) checkCommand(t *testing.T, p *paying) {
	t.Helper()
	for _, tt := range []struct {
		args   string
		status int
	}{
		{"add " + p.Name + " 0us", 2},
		{"add " + p.Name + " 1h1us", 2},
		{"add nobody 1us", 1},
		{"attach --helper 1 --to nobody", 1},
		{"attach --helper 4194305 --to " + p.Name, 1},
		{"detach 4711", 1},
		{"show nobody", 1},
	} {
		r := try(t, n.command(t, "charge", strings.Fields(tt.args)...))
		if exitStatus(r.err) != tt.status || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
			t.Errorf("charge %s: %v\n%s%s", tt.args, r.err, r.stdout, r.stderr)
		}
	}
	nobody := n.command(t, "charge", "show")
	nobody.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	if r := try(t, nobody); exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("nobody: %v\n%s%s", r.err, r.stdout, r.stderr)
	}
}

// TestChargeHelpers attaches many helpers, some twice, and detaches them.
func TestChargeHelpers(t *testing.T) {
	t.Parallel()
	const helpers = 1000
	n := startAgent(t, newWorld(t))
	p := newPaying(t, 50*time.Millisecond)
	other := newPaying(t, 50*time.Millisecond)
	c := n.client()
	// The first has what all need, such as the undo helper's entry and files of the group.
	first := program(t, "sleep", "1000")
	attach := func(pid int, to *paying, by string) api.ChargeAttached {
		t.Helper()
		h, err := c.AttachHelper(api.ChargeHelper{Helper: api.HelperProcess{PID: pid}, To: to.Name, By: by})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	placed := attach(first.Process.Pid, p, api.ByPlace)
	before, err := testkit.ProcessUsage(n.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// It is where it is: the other container has to charge it otherwise.
	if h := attach(first.Process.Pid, other, api.ByAuto); h.By != api.ByQuota || !strings.Contains(h.Reason, "placed already") {
		t.Errorf("a helper of two containers: %+v", h)
	}
	var sleepers []*exec.Cmd
	ids := map[string]bool{}
	for i := range helpers {
		s := exec.Command("sleep", "1000")
		launch(t, s)
		sleepers = append(sleepers, s)
		by := []string{api.ByPlace, api.ByQuota}[i%2]
		h := attach(s.Process.Pid, p, by)
		if h.By != by || h.Source == "" || ids[h.ID] {
			t.Fatalf("%+v", h)
		}
		ids[h.ID] = true
	}
	again := fmt.Sprintf(`{"helper":{"pid":%d},"to":%q}`, sleepers[0].Process.Pid, p.Name)
	if status, said := n.asks(t, "POST", "/v1/charge/helpers", strings.NewReader(again)); status != http.StatusOK || len(n.charges(t).Helpers) != helpers+2 {
		t.Errorf("a helper that is attached twice: %d %s, %d helpers", status, said, len(n.charges(t).Helpers))
	}
	// A third ends, a third is detached, the rest goes when the agent does.
	for i, s := range sleepers {
		if i%3 == 0 {
			_ = s.Process.Kill()
			_ = s.Wait()
		}
	}
	for _, h := range n.charges(t).Helpers {
		if len(ids) > helpers*2/3 && ids[h.ID] {
			delete(ids, h.ID)
			if err := c.DetachHelper(h.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
				t.Error(err)
			}
		}
	}
	testkit.Eventually(t, func() error {
		if left := len(n.charges(t).Helpers); left > helpers*2/3+2 {
			return fmt.Errorf("%d helpers are left", left)
		}
		return nil
	})
	for _, h := range n.charges(t).Helpers {
		if h.ID != placed.ID {
			if err := c.DetachHelper(h.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
				t.Error(err)
			}
		}
	}
	testkit.Eventually(t, func() error {
		after, err := testkit.ProcessUsage(n.cmd.Process.Pid)
		if err == nil && (after.FDs > before.FDs+20 || after.Threads > before.Threads+slackThreads) {
			err = fmt.Errorf("the agent has %+v, and before that had %+v", after, before)
		}
		return err
	})
	if err := c.DetachHelper(placed.ID); err != nil {
		t.Error(err)
	}
	n.stop() // who is charged no more keeps what it owes
	for _, c := range []*paying{p, other} {
		if err := c.untouched(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range append(sleepers, first) {
		if s.ProcessState == nil && strings.HasPrefix(cpuGroup(t, s.Process.Pid), p.Path()) {
			t.Errorf("a helper is left in %s", cpuGroup(t, s.Process.Pid))
		}
	}
}

// TestChargeRepaid charges more than the container has in many periods. It is held, runs in
// between, and pays for all of it. (How long one hold is, charge/enforce says on its own clock.)
func TestChargeRepaid(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	p := newPaying(t, 50*time.Millisecond)
	p.print(t)
	const charge = 3 * time.Second
	start := time.Now()
	if err := n.client().Charge(p.Name, "test", charge); err != nil {
		t.Fatal(err)
	}
	var c *api.Charged
	testkit.Eventually(t, func() error {
		c = n.account(t, p.Path())
		if c == nil || borrowedFrom(c, "test") < charge || c.DebtUS > 0 {
			return fmt.Errorf("it still owes: %+v", c)
		}
		return nil
	})
	took := time.Since(start)
	t.Logf("paid within %v: held %+v", took, c.Held)
	if c.Held.Count == 0 || c.ForgivenUS != 0 {
		t.Errorf("%+v", c)
	}
	// Nobody pays for it faster than the quota is given: a law of accounting and no band, for a
	// slower machine only takes longer.
	if own := time.Duration(c.OwnUS) * time.Microsecond; own+charge > took/2+time.Second {
		t.Errorf("it used %v itself while it paid, in %v", own, took)
	}
}

// TestChargeEmpty charges a container that is being made: it has a cgroup with a quota and
// nothing else yet. Its quota is lowered, and it is held once there is something to hold.
func TestChargeEmpty(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	p := limit(t, testkit.NewGroupsIn(t, "cpu"), 20*time.Millisecond)
	charge := func() {
		t.Helper()
		if err := n.client().Charge(p.Name, "test", 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	charge()
	testkit.Eventually(t, func() error {
		if c := n.account(t, p.Path()); c.After.QuotaUS >= c.Before.QuotaUS || !strings.HasPrefix(c.Mode, "quota") {
			return fmt.Errorf("its quota is not lowered: %+v", c)
		}
		return nil
	})
	if c := n.account(t, p.Path()); c.OwnUS != 0 || c.Held.Count != 0 || strings.Contains(c.Mode, "no group of its own") {
		t.Errorf("while nothing is in it: %+v", c)
	}
	p.Add(t, "cpuacct", "freezer")
	busy := exec.Command("sh", "-c", "while :; do :; done")
	launch(t, busy)
	p.Enter(t, busy.Process.Pid)
	testkit.Eventually(t, func() error {
		charge()
		if c := n.account(t, p.Path()); c.Held.Count == 0 || c.OwnUS == 0 || c.Mode != "quota" {
			return fmt.Errorf("it is not held: %+v", c)
		}
		return nil
	})
	n.stop()
	if err := p.untouched(); err != nil {
		t.Error(err)
	}
}

// refusesFull checks that an answer says that a file of so many places is full.
func refusesFull(t *testing.T, status int, said string, limit int, what string) {
	t.Helper()
	var failure api.Failure
	if err := json.Unmarshal([]byte(said), &failure); err != nil {
		t.Fatal(err)
	}
	if status != http.StatusInsufficientStorage || !strings.Contains(failure.Error, fmt.Sprintf("all %d ", limit)) ||
		!strings.Contains(failure.Error, what) || strings.Contains(failure.Error, "\n") {
		t.Errorf("%d %q", status, failure.Error)
	}
}

// TestChargeFullLedger fills the file in which the agent has what is owed: it says so, has done
// nothing, and goes on.
func TestChargeFullLedger(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	known, other := newPaying(t, 20*time.Millisecond), newPaying(t, 20*time.Millisecond)
	charge := func(p *paying) (int, string) {
		t.Helper()
		return n.asks(t, "POST", "/v1/charge", strings.NewReader(fmt.Sprintf(
			`{"charges":[{"container":%q,"microseconds":1000},{"container":%q,"microseconds":1000}]}`, known.Name, p.Name)))
	}
	if status, said := charge(known); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, said)
	}
	free := fill(t, filepath.Join(filepath.Dir(n.run), "state", "charge.ledger"), ledger.Capacity)
	status, said := charge(other)
	refusesFull(t, status, said, ledger.Capacity, "ledger")
	if c := n.account(t, known.Path()); borrowedFrom(c, api.SourceDefault) > 2*time.Millisecond || n.account(t, other.Path()) != nil {
		t.Errorf("half of it is charged: %+v", n.charges(t))
	}
	r := try(t, n.command(t, "charge", "add", other.Name, "1ms"))
	if exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "ledger") || r.stdout != "" {
		t.Errorf("charge add: %v\n%s%s", r.err, r.stdout, r.stderr)
	}
	free()
	if status, said := charge(other); status != http.StatusNoContent {
		t.Errorf("with room again: %d %s", status, said)
	}
	n.stop()
	for _, p := range []*paying{known, other} {
		if err := p.untouched(); err != nil {
			t.Error(err)
		}
	}
}

// TestChargeFullJournal fills the file in which the agent has what has to be undone, before it has
// anything there: what an account no longer needs would be room.
func TestChargeFullJournal(t *testing.T) {
	t.Parallel()
	n := startAgent(t, newWorld(t))
	p := newPaying(t, 20*time.Millisecond)
	helper := program(t, "sleep", "1000")
	home := cpuGroup(t, helper.Process.Pid)
	attach := func(by string) (int, string) {
		t.Helper()
		return n.asks(t, "POST", "/v1/charge/helpers", strings.NewReader(fmt.Sprintf(
			`{"helper":{"pid":%d},"to":%q,"by":%q}`, helper.Process.Pid, p.Name, by)))
	}
	free := fill(t, filepath.Join(n.run, "charge.journal"), journal.Capacity)
	status, said := attach(api.ByPlace)
	refusesFull(t, status, said, journal.Capacity, "undo journal")
	if group := cpuGroup(t, helper.Process.Pid); group != home || len(n.charges(t).Helpers) != 0 {
		t.Errorf("half of it is done: it is in %s, %+v", group, n.charges(t).Helpers)
	}
	if err := p.untouched(); err != nil {
		t.Error(err)
	}
	status, said = attach(api.ByAuto)
	hs := n.charges(t).Helpers
	if status != http.StatusCreated || len(hs) != 1 || hs[0].By != api.ByQuota || !strings.Contains(hs[0].Reason, "undo journal") {
		t.Fatalf("otherwise: %d %s, %+v", status, said, hs)
	}
	free()
	if err := n.client().DetachHelper(hs[0].ID); err != nil {
		t.Error(err)
	}
	if status, said := attach(api.ByPlace); status != http.StatusCreated {
		t.Errorf("with room again: %d %s", status, said)
	}
	n.stop()
	if err := p.untouched(); err != nil {
		t.Error(err)
	}
	if group := cpuGroup(t, helper.Process.Pid); group != home {
		t.Errorf("the helper is in %s, want %s", group, home)
	}
}

// fill makes a mapped file of a running agent look as if all its places were taken, until
// it is undone.
func fill(t *testing.T, path string, capacity uint32) (undo func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	before := make([]byte, 4)
	if _, err := f.ReadAt(before, mapped.Spare); err != nil {
		t.Fatal(err)
	}
	write := func(used []byte) {
		t.Helper()
		if _, err := f.WriteAt(used, mapped.Spare); err != nil {
			t.Fatal(err)
		}
	}
	write(binary.NativeEndian.AppendUint32(nil, capacity))
	return func() { t.Helper(); write(before) }
}
