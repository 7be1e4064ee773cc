package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// event is a line of a trace.
type event struct {
	Time, Msg, Container, Syscall, Addr, Endpoint string
	PID, FD, Lost                                 int
}

// follow opens a trace of a container: what comes after is in it.
func (n *asked) follow(t *testing.T, name string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(timeout(t), http.MethodGet, "http://tsugiki/v1/containers/"+name+"/trace", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// await reads lines until one is as it has to be.
func await(t *testing.T, lines *bufio.Scanner, is func(event) bool) event {
	t.Helper()
	var seen []string
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if is(e) {
			return e
		}
		seen = append(seen, lines.Text())
	}
	t.Fatalf("%v after\n%s", lines.Err(), strings.Join(seen, "\n"))
	return event{}
}

func decided(syscall, addr string) func(event) bool {
	return func(e event) bool { return e.Msg == "decided" && e.Syscall == syscall && e.Addr == addr }
}

// A trace says what is decided, by gate and agent, of a container that is created on
// the host's side or swapped there, and nothing of others.
func TestTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	for _, v := range []variant{variants[0], variants[2]} {
		for _, m := range modes {
			if m.preloaded { // the program is static: the shim does not see its calls
				continue
			}
			t.Run(v.name+"-"+m.name, func(t *testing.T) {
				v.mode = m
				other := n.obey(t, v.flags(w)...)
				o := n.obey(t, append(v.flags(w), "--endpoint", "in type ipv4 addr "+hostAddr4+" port 8081", "-i", "0.0.0.0:8080=in")...)
				stream := n.follow(t, o.name)
				lines := bufio.NewScanner(stream.Body)
				other.want(sourceAddr4, "dial a tcp %s", remoteObserver())
				before := time.Now()
				o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
				o.want("listens", "listen b 0.0.0.0:8080")
				e := await(t, lines, decided("connect", remoteObserver()))
				at, err := time.Parse(time.RFC3339Nano, e.Time)
				if err != nil || at.Before(before.Truncate(0)) || at.After(time.Now()) {
					t.Errorf("time %q, %v", e.Time, err)
				}
				if e.Endpoint != "out" || e.Container != o.name || e.PID == 0 || e.FD == 0 {
					t.Errorf("connect: %+v", e)
				}
				if e := await(t, lines, decided("bind", "[::]:8080")); e.Endpoint != "in" || e.FD == 0 {
					t.Errorf("bind: %+v", e)
				}
				o.release()
				for lines.Scan() {
					if strings.Contains(lines.Text(), other.name) {
						t.Errorf("of another container: %s", lines.Text())
					}
				}
				if lines.Err() != nil {
					t.Errorf("the trace of an ended container ends with %v", lines.Err())
				}
				other.release()
			})
		}
	}
	if log := n.log.String(); strings.Contains(log, "msg=decided") {
		t.Errorf("decisions are in the agent's log:\n%s", log)
	}
}

// While nobody traces a container, its gate decides without the agent's being told:
// a shim's connect is not even trapped.
func TestTraceStopsToCost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	name := uniqueName("shim")
	args := append([]string{"run", "--run-dir", n.run, "--name", name}, variants[0].flags(w)...)
	const script = `
import socket, sys
print("ready", flush=True)
for line in sys.stdin:
    s = socket.create_connection(("%s", %d))
    s.close()
    print("done", flush=True)
`
	c := hold(t, command(t, w.h, tsugiki, append(args, "--", python(t), "-c", fmt.Sprintf(script, remoteAddr4, observerPort))...), "ready")
	connect := func() (before int) {
		t.Helper()
		before = n.stats(t, name).Gate.Calls["connect"]
		fmt.Fprintln(c.stdin)
		c.await("done")
		return before
	}
	quiet := func() error {
		before := connect()
		if now := n.stats(t, name).Gate.Calls["connect"]; now != before {
			return fmt.Errorf("%d connects of the shim's are trapped without a trace", now-before)
		}
		return nil
	}
	testkit.Eventually(t, quiet) // not the first, which makes the library known
	trapped := func() {
		t.Helper()
		n.connects(t, name, connect()+1)
	}
	first, second := n.follow(t, name), n.follow(t, name)
	trapped()
	await(t, bufio.NewScanner(first.Body), decided("connect", remoteObserver()))
	first.Body.Close()
	trapped()
	await(t, bufio.NewScanner(second.Body), decided("connect", remoteObserver()))
	second.Body.Close()
	testkit.Eventually(t, quiet)
	_ = c.stdin.Close()
}

// Who does not read a trace loses lines, is told of it, and holds up nobody.
func TestTraceSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	stream := n.follow(t, o.name)
	const calls = 5000
	o.want("1000", "storm a 1000 %s", remoteObserver())
	o.want(fmt.Sprint(calls), "storm a %d %s", calls, remoteObserver())
	o.release()
	lines, lost, told := bufio.NewScanner(stream.Body), 0, 0
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		lost += e.Lost
		if e.Msg == "decided" {
			told++
		}
	}
	if lines.Err() != nil || lost == 0 || told == 0 || told > 1000+calls {
		t.Errorf("%d lines were lost, %d decisions told, %v", lost, told, lines.Err())
	}
}

func TestTraceCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	text := start(t, n.command(t, "trace", o.name))
	asJSON := start(t, n.command(t, "trace", "-j", o.name))
	shows := regexp.MustCompile(`(?m)^time=\S+ level=INFO msg=decided container=` + o.name +
		` pid=\d+ syscall=connect fd=\d+ addr=` + regexp.QuoteMeta(remoteObserver()) + ` endpoint=out$`)
	testkit.Eventually(t, func() error {
		o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		if !shows.MatchString(text.output.String()) || !strings.Contains(asJSON.output.String(), `"syscall":"connect"`) {
			return fmt.Errorf("printed %s\n%s", text.output, asJSON.output)
		}
		return nil
	})
	if err := asJSON.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-asJSON.ended
	o.release()
	<-text.ended // with the container
	for _, s := range []*server{text, asJSON} {
		if status := s.ProcessState.ExitCode(); status != 0 {
			t.Errorf("%s: exit status %d\n%s", line(s.Cmd), status, s.output)
		}
	}
	refusal{status: 1, says: []string{"no container of that name"}}.judge(t, try(t, n.command(t, "trace", "nobody")), "")
	refusal{status: 2, says: []string{"CONTAINER"}}.judge(t, try(t, n.command(t, "trace")), "")
}

// The agent's end is not the container's.
func TestTraceWithoutAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	stream := n.follow(t, o.name)
	n.stop()
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("the trace ends as if the container had ended")
	}
	n.start() // which removes the container
	o.release()
}

// As many traces as there can be of a container.
func TestTraceLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	for range 8 {
		if resp := n.follow(t, o.name); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	ninth := n.follow(t, o.name)
	if body, _ := io.ReadAll(ninth.Body); ninth.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(body), "too many traces") {
		t.Errorf("the ninth: %s %s", ninth.Status, body)
	}
	o.release()
}

// tsugiki run -v says the same of a container of the agent's as of its own.
func TestRunVerbose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	url := "http://" + remoteObserver() + "/"
	volatile := regexp.MustCompile(`time=\S+|pid=\d+`)
	said := func(agent string) string {
		args := []string{"run", "--run-dir", n.run, "--agent", agent, "--name", "verbose", "-v"}
		c := command(t, w.h, tsugiki, append(append(args, variants[0].flags(w)...), "--", static(t, "fetch"), url)...)
		r := try(t, c)
		if r.err != nil {
			t.Fatalf("%v %s", r.err, r.stderr)
		}
		return volatile.ReplaceAllString(r.stderr, "X")
	}
	own, agents := said("none"), said(n.socket())
	if !strings.Contains(own, "syscall=connect") || decisionsIn(own) != decisionsIn(agents) {
		t.Errorf("without an agent it says\n%s\nwith one\n%s", own, agents)
	}
}

// decisionsIn are the lines about calls: keepers come when they are needed, and differ.
func decisionsIn(log string) (lines string) {
	for l := range strings.Lines(log) {
		if strings.Contains(l, "syscall=") {
			lines += l
		}
	}
	return lines
}

// An agent that is replaced goes on to say what it decides to who has asked for it.
func TestRunVerboseOverRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	o := n.obey(t, append(variants[0].flags(w), "-v")...)
	o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	n.stop()
	n.start()
	seen := func() int { return strings.Count(o.stderr.String(), "syscall=connect") }
	before := seen()
	testkit.Eventually(t, func() error {
		o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		if seen() == before {
			return context.DeadlineExceeded
		}
		return nil
	})
	o.release()
}
