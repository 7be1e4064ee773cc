package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// event is a line of a trace.
type event struct {
	Time, Msg, Container, Syscall, Addr, Endpoint, Protocol, To, Errno string
	PID, FD, Lost                                                      int
	Socket                                                             uint64
}

// untrapped are the flags of a container with a new network, whose connects are not trapped: its
// rules name no source that the host would not choose. It dials from hostAddr4.
func untrapped() []string {
	return []string{"--netns", "new", "--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic", "-e", "198.51.100.0/24=out"}
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
					if strings.Contains(lines.Text(), strconv.Quote(other.name)) {
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

// What the kernel programs decide alone is in a trace, also where it leads and how it fails, and
// traps nothing.
func TestTraceUntrapped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	other, o := n.obey(t, untrapped()...), n.obey(t, untrapped()...)
	lines := bufio.NewScanner(n.follow(t, o.name).Body)
	other.want(hostAddr4, "dial a tcp %s", remoteObserver())
	o.want("listens", "listen l 127.0.0.1:8080")
	o.want("open", "open u")
	for _, tt := range []struct{ want, does, syscall, addr, endpoint, protocol, to, errno string }{
		{hostAddr4, "dial a tcp %s", "connect", remoteObserver(), "out", "tcp", "", ""},
		{hostAddr4, "dial a udp %s", "connect", remoteObserver(), "out", "udp", "", ""},
		{hostAddr4, "send u %s", "send", remoteObserver(), "out", "udp", "", ""},
		{"127.0.0.1", "dial a tcp %s", "connect", "127.0.0.1:8080", "-", "tcp", `127\.0\.0\.1:\d+`, ""},
		{"ECONNREFUSED", "dial a tcp %s", "connect", "127.0.0.1:8081", "-", "tcp", "127.0.0.1:0", "ECONNREFUSED"},
		{"ENETUNREACH", "dial a tcp %s", "connect", "203.0.113.1:80", "-", "tcp", "", "ENETUNREACH|EPERM"},
	} {
		o.want(tt.want, tt.does, tt.addr)
		e := await(t, lines, decided(tt.syscall, tt.addr))
		matches := func(pattern, text string) bool { return regexp.MustCompile("^(" + pattern + ")$").MatchString(text) }
		if e.Endpoint != tt.endpoint || e.Protocol != tt.protocol || e.Container != o.name || e.PID == 0 || e.Socket == 0 ||
			!matches(tt.to, e.To) || !matches(tt.errno, e.Errno) {
			t.Errorf(tt.does+": %+v", tt.addr, e)
		}
	}
	if s := n.stats(t, o.name); s.Gate.Calls["connect"] != 0 || s.Kernel.Calls["connect"] != 5 {
		t.Errorf("a trace traps connects: %+v", s)
	}
	o.release()
	other.release()
	for lines.Scan() {
		if strings.Contains(lines.Text(), strconv.Quote(other.name)) {
			t.Errorf("of another container: %s", lines.Text())
		}
	}
}

// Who does not read a trace loses lines, is told of it, and holds up nobody.
func TestTraceSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	stream := n.follow(t, o.name)
	other := n.obey(t, untrapped()...)
	const calls = 6000
	for _, slow := range []struct {
		*obedient
		stream *http.Response
	}{{o, stream}, {other, n.follow(t, other.name)}} {
		slow.want(fmt.Sprint(calls), "storm a %d %s", calls, remoteObserver())
		slow.release()
		lines, lost, told := bufio.NewScanner(slow.stream.Body), 0, 0
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
		if lines.Err() != nil || lost == 0 || told == 0 || told > calls {
			t.Errorf("%d lines were lost, %d decisions told, %v", lost, told, lines.Err())
		}
	}
}

func TestTraceCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	check := func(source, shown string, flags []string) {
		o := n.obey(t, flags...)
		text := start(t, n.command(t, "trace", o.name))
		asJSON := start(t, n.command(t, "trace", "-j", o.name))
		shows := regexp.MustCompile(`(?m)^time=\S+ level=INFO msg=decided container=` + o.name + ` pid=\d+ syscall=connect ` + shown + `$`)
		testkit.Eventually(t, func() error {
			o.want(source, "dial a tcp %s", remoteObserver())
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
	}
	to := regexp.QuoteMeta(remoteObserver())
	check(sourceAddr4, `fd=\d+ addr=`+to+` endpoint=out`, variants[0].flags(w))
	check(hostAddr4, `socket=\d+ addr=`+to+` endpoint=out protocol=tcp`, untrapped())
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
	volatile := regexp.MustCompile(`time=\S+|pid=\d+|socket=\d+`)
	said := func(agent string, flags []string) string {
		args := []string{"run", "--run-dir", n.run, "--agent", agent, "--name", "verbose", "-v"}
		c := command(t, w.h, tsugiki, append(append(args, flags...), "--", static(t, "fetch"), url)...)
		r := try(t, c)
		if r.err != nil {
			t.Fatalf("%v %s", r.err, r.stderr)
		}
		return volatile.ReplaceAllString(r.stderr, "X")
	}
	for _, flags := range [][]string{variants[0].flags(w), untrapped()} {
		own, agents := said("none", flags), said(n.socket(), flags)
		if !strings.Contains(own, "syscall=connect") || decisionsIn(own) != decisionsIn(agents) {
			t.Errorf("without an agent it says\n%s\nwith one\n%s", own, agents)
		}
	}
}

// decisionsIn are the lines about calls, sorted: those of gates and of kernel programs come by
// different ways. Keepers come when they are needed, and differ.
func decisionsIn(log string) string {
	var list []string
	for l := range strings.Lines(log) {
		if strings.Contains(l, "syscall=") {
			list = append(list, l)
		}
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

// An agent that is replaced goes on to say what it decides to who has asked for it.
func TestRunVerboseOverRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	list := []*obedient{n.obey(t, append(variants[0].flags(w), "-v")...), n.obey(t, append(untrapped(), "-v")...)}
	sources := []string{sourceAddr4, hostAddr4}
	for i, o := range list {
		o.want(sources[i], "dial a tcp %s", remoteObserver())
	}
	n.stop()
	n.start()
	for i, o := range list {
		seen := func() int { return strings.Count(o.stderr.String(), "syscall=connect") }
		before := seen()
		testkit.Eventually(t, func() error {
			o.want(sources[i], "dial a tcp %s", remoteObserver())
			if seen() == before {
				return context.DeadlineExceeded
			}
			return nil
		})
		o.release()
	}
}
