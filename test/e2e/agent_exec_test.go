package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// filtered prepares a program in the container's namespace as an engine would.
func (n *asked) filtered(t *testing.T, token string, more ...string) *testkit.Cmd {
	t.Helper()
	args := []string{"testdata/filtered/filtered.py", filepath.Join(n.run, "seccomp.sock"), token, remoteAddr4, fmt.Sprint(observerPort)}
	return command(t, n.w.c1, python(t), append(args, more...)...)
}

// Each program that an engine executes in a container has a gate of its own. What that
// has counted is the container's, also when it has ended; a trace is of all.
func TestProgramsOfAnEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	const name = "engine-1"
	body, err := json.Marshal(map[string]any{"id": "1", "name": name, "rules": map[string]any{
		"mode": "seccomp", "endpoints": []string{}, "ingress": []string{}, "egress": []string{"0.0.0.0/0=" + hostAddr4},
	}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.http.Post("http://tsugiki/v1/containers", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var registered struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&registered); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %v", resp.Status, err)
	}
	if s := n.stats(t, name); s.State != "created" || s.Gates != 0 {
		t.Errorf("before its program: %+v", s)
	}
	call := func(p *held, times int) {
		t.Helper()
		fmt.Fprintln(p.stdin, times)
		p.await("done")
	}
	first := hold(t, n.filtered(t, registered.Token), "{}")
	call(first, 3)
	stream := n.follow(t, name) // before there is the second gate
	second := hold(t, n.filtered(t, registered.Token), "{}")
	call(second, 5)
	if s := n.connects(t, name, 8); s.Gates != 2 || s.Gate.Calls["socket"] != 8 {
		t.Errorf("with two programs: %+v", s)
	}
	call(second, 5) // of which nobody has asked before it ends
	second.release()
	testkit.Eventually(t, func() error {
		if s := n.stats(t, name); s.Gates != 1 {
			return fmt.Errorf("%d gates", s.Gates)
		}
		return nil
	})
	call(first, 2)
	// A gate that ends may not have come to count what it answered last.
	testkit.Eventually(t, func() error {
		if s := n.stats(t, name); s.Gate.Calls["connect"] < 14 || s.Gate.Calls["connect"] > 15 || s.Gate.Calls["socket"] != 15 {
			return fmt.Errorf("with one of two: %+v", s)
		}
		return nil
	})
	first.release()
	var trace bytes.Buffer
	if _, err := trace.ReadFrom(stream.Body); err != nil {
		t.Error(err)
	}
	if got := strings.Count(trace.String(), `"syscall":"connect"`); got != 12 {
		t.Errorf("%d connects are in the trace, want 12:\n%s", got, &trace)
	}
	n.log.await(t, "program attached\" container="+name+" pid=", "container ended\" container="+name)
}

// Two programs of a container wait for an agent. The one that came second is attached first, and ends:
// the container goes on, for the other one.
func TestProgramsThatWaitForAnAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	keeps := hold(t, n.filtered(t, n.registered(t, "other", "1")), "{}") // the gate pool, with the agent's socket
	token := n.registered(t, "box", "2")
	n.killAndForget()
	first := hold(t, n.filtered(t, token, "later"), "connected")
	second := n.filtered(t, token) // it ends when it is attached
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.log.await(t, "program attached\" container=box")
	if err := second.Wait(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		if s := n.stats(t, "box"); s.Gates > 0 {
			return fmt.Errorf("%d gates", s.Gates)
		}
		return nil
	})
	fmt.Fprintln(first.stdin)
	first.await("{}")
	fmt.Fprintln(first.stdin, 1)
	first.await("done")
	late := hold(t, n.filtered(t, token, "later"), "connected")
	first.release()
	n.log.await(t, "container ended\" container=box")
	fmt.Fprintln(late.stdin)
	late.await(`{"error":"process`) // an engine executes programs while it ends a container: no fault
	if said := late.release(); !strings.Contains(said[len(said)-1], "its container has ended") {
		t.Errorf("the agent answers %q", said)
	}
	keeps.release()
}

// A program whose token is nobody's is told so and not killed, for a message proves nothing
// about whom it names: its calls fail with ENOSYS, as it has no listener any more.
func TestProgramOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startBesieged(t, w)
	files := n.warm(t)
	c := n.filtered(t, "nobody's")
	c.Stdin = strings.NewReader("1\n")
	if r := try(t, c); signalOf(r.err) != 0 || !strings.Contains(r.stdout, "no container is registered") || !strings.Contains(r.stderr, "Function not implemented") {
		t.Errorf("it ended with %v, and printed %s and %s", r.err, r.stdout, r.stderr)
	}
	n.log.await(t, `no container is registered by that token`, `"msg":"program not attached","pid":`)
	observe(t, w.srv)
	n.unharmed(t, files)
}
