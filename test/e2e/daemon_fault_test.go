package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A daemon that is killed at whatever step of a container's beginning or end leaves
// nothing that the next one does not find and remove.
func TestDaemonKilledInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	name := fmt.Sprintf("brief-%d", os.Getpid())
	done := make(chan struct{})
	var load sync.WaitGroup
	var ended atomic.Int32
	for i := range 3 {
		load.Add(1)
		go func() {
			defer load.Done()
			for {
				select {
				case <-done:
					return
				default:
				}
				out, err := d.graft("--name", fmt.Sprintf("%s-%d", name, i), "-e", "0.0.0.0/0=0.0.0.0", "--", "true").CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, out)
					return
				}
				ended.Add(1)
			}
		}()
	}
	for range testkit.Times(5, 25) {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		d.kill()
		before := ended.Load()
		d.start()
		testkit.Eventually(t, func() error { // or whoever waits for an agent would give up at last
			if ended.Load() == before && !t.Failed() {
				return errors.New("no container has ended since the agent was started")
			}
			return nil
		})
	}
	close(done)
	load.Wait()
	d.kill() // and what was going on then
	d.start()
	testkit.Eventually(t, func() error {
		left, err := filepath.Glob(filepath.Join(ownCgroup(t), "tsugiki-"+name+"-*"))
		if err != nil || len(left) > 0 || strings.Contains(d.ps(), name) {
			return fmt.Errorf("left are %v, %w, and\n%s", left, err, d.ps())
		}
		return nil
	})
}

// A daemon that cannot take over a container, for a namespace has no longer its name,
// takes over the others; and that one once the name is back.
func TestDaemonMissesNetns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	named := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(named, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mount := func() {
		if err := unix.Mount(w.srv.Path(), named, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	mount()
	t.Cleanup(func() { _ = unix.Unmount(named, unix.MNT_DETACH) })
	d.sleeper(t, "one", 8086)
	start(t, d.graft("--name", "far", "--endpoint", "far type ipv4 addr 0.0.0.0 port dynamic netns "+named,
		"-e", "0.0.0.0/0=far", "--", "sleep", "1000"))
	await := func(name string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			ps := d.ps()
			for l := range strings.Lines(ps) {
				if f := strings.Fields(l); f[0] == name && f[2] == "running" {
					return nil
				}
			}
			return fmt.Errorf("no container %s:\n%s", name, ps)
		})
	}
	await("far")
	d.kill()
	if err := unix.Unmount(named, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	d.start()
	await("one")
	d.log.await(t, "not taken over")
	mount()
	d.log.await(t, `"container taken over" container=far`)
	await("far")
	d.kill()
	d.log = &syncBuffer{} // but for the fault that it has to have logged
	d.start()
	await("far")
}

// registered is a container of the daemon that has no program yet, as an engine has it.
func (d *daemon) registered(t *testing.T, name, id string) (token string) {
	t.Helper()
	body := fmt.Sprintf(`{"id": %q, "name": %q, "rules": {"mode": "auto", "endpoints": [], "ingress": [], "egress": ["0.0.0.0/0=0.0.0.0"]}}`, id, name)
	var answer struct{ Token string }
	if err := json.Unmarshal([]byte(d.request(t, "POST", "/v1/containers", body)), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Token
}

func (d *daemon) request(t *testing.T, method, path, body string) string {
	t.Helper()
	return succeed(t, command(t, d.ns, "curl", "-sS", "--unix-socket", d.socket(), "-X", method, "-d", body, "http://tsugiki"+path))
}

// Who is late to remove a container does not remove the next one of its name.
func TestRemovedByID(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	w := newWorld(t)
	d := startDaemon(t, w.h)
	d.registered(t, "box", "second")
	if answer := d.request(t, "DELETE", "/v1/containers/box?id=first", ""); !strings.Contains(answer, "no container") {
		t.Errorf("the removal of another container was answered with %s", answer)
	}
	if ps := d.ps(); !strings.Contains(ps, "box ") {
		t.Errorf("the container is gone:\n%s", ps)
	}
	d.request(t, "DELETE", "/v1/containers/box?id=second", "")
	if ps := d.ps(); strings.Contains(ps, "box ") {
		t.Errorf("the container is there:\n%s", ps)
	}
}

// What was registered with a daemon that is stopped before there is a program does not
// keep its name and ports for long.
func TestRegisteredAndForgotten(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	w := newWorld(t)
	d := startDaemon(t, w.h)
	d.registered(t, "box", "1")
	d.stop()
	d.start()
	testkit.Eventually(t, func() error {
		if ps := d.ps(); strings.Contains(ps, "box ") {
			return fmt.Errorf("the container is there:\n%s", ps)
		}
		return nil
	})
}

// A program that cannot be attached is killed, and a container that has no other ends.
func TestNotAttached(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	testkit.Program(t, "python3")
	for _, test := range []struct{ name, what, want string }{
		{"no listener", "nothing", "no seccomp listener"},
		{"host's namespace", "listener", "nothing needs grafting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			d := startDaemon(t, w.h)
			token := d.registered(t, "box", "1")
			r := try(t, command(t, w.h, "python3", "testdata/attach.py", filepath.Join(d.run, "seccomp.sock"), token, test.what))
			var exit *exec.ExitError
			if !errors.As(r.err, &exit) || exit.ExitCode() != -1 {
				t.Errorf("the program ended with %v, printed %s%s", r.err, r.stdout, r.stderr)
			}
			d.log.await(t, test.want)
			if test.what == "listener" {
				testkit.Eventually(t, func() error {
					if ps := d.ps(); strings.Contains(ps, "box ") {
						return fmt.Errorf("the container is there:\n%s", ps)
					}
					return nil
				})
			} else {
				d.request(t, "DELETE", "/v1/containers/box", "")
			}
			d.kill() // what it has logged are faults, and have to be
		})
	}
}

// A container without rules may have whatever name.
func TestNamesWithoutRules(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	w := newWorld(t)
	d := startDaemon(t, w.h)
	for _, name := range []string{"agent", "seccomp", "a/b", strings.Repeat("x", 70)} {
		if answer := d.request(t, "POST", "/v1/containers", fmt.Sprintf(`{"id": "1", "name": %q}`, name)); !strings.Contains(answer, `"graft":false`) {
			t.Errorf("%q: %s", name, answer)
		}
	}
}

// What was asked for by somebody who is gone is not done: nobody would start the container's
// program.
func TestRegistrationIsAbandoned(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "curl")
	w := newWorld(t)
	n := startBesieged(t, w)
	agent := n.cmd.Process
	if err := agent.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	conn, err := n.dial("agent")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"id":"1","name":"box","rules":{"mode":"auto","endpoints":[],"ingress":[],"egress":["0.0.0.0/0=0.0.0.0"]}}`
	_, err = fmt.Fprintf(conn, "POST /v1/containers HTTP/1.1\r\nHost: tsugiki\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err := errors.Join(err, conn.Close(), agent.Signal(unix.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	n.registered(t, "later", "2") // one after the other, as they came
	if ps := n.ps(); strings.Contains(ps, "box ") || !strings.Contains(ps, "later ") {
		t.Errorf("tsugiki ps prints\n%s", ps)
	}
	n.log.await(t, "container registered")
	if log := n.log.String(); strings.Contains(log, `"box"`) {
		t.Errorf("the agent says\n%s", log)
	}
	n.request(t, "DELETE", "/v1/containers/later", "")
}
