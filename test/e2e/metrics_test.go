package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// decisions and containerStats are what these tests need of GET /v1/stats.
type decisions struct {
	Calls   map[string]int
	Refused int
	Times   []int
}

type containerStats struct {
	Name, State   string
	Gates, Silent int
	Connections   struct{ Out, In int }
	Denied        struct{ SetSockOpt int }
	Gate, Agent   decisions
	Kernel        struct{ Calls map[string]int }
	Memory        int
}

// stats are a container's.
func (n *asked) stats(t *testing.T, name string) containerStats {
	t.Helper()
	var all struct{ Containers []containerStats }
	n.getJSON(t, "/v1/stats", &all)
	for _, s := range all.Containers {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no statistics of %s: %+v", name, all)
	return containerStats{}
}

// connects waits until a container's gates and kernel programs have counted so many connects.
func (n *asked) connects(t *testing.T, name string, want int) containerStats {
	t.Helper()
	var s containerStats
	testkit.Eventually(t, func() error {
		s = n.stats(t, name)
		if got := s.Gate.Calls["connect"] + s.Kernel.Calls["connect"]; got != want {
			return fmt.Errorf("%d connects were counted, want %d", got, want)
		}
		return nil
	})
	return s
}

// samples are what is exposed to Prometheus, by name and labels.
type samples map[string]float64

func parseMetrics(t *testing.T, text []byte) samples {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	all := samples{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				all[key] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				all[key] = m.Gauge.GetValue()
			case dto.MetricType_HISTOGRAM:
				all[key] = float64(m.Histogram.GetSampleCount())
				all.checkHistogram(t, key, m.Histogram)
			}
		}
	}
	return all
}

// checkHistogram: no bucket has less than the one below, and the sum is possible.
func (samples) checkHistogram(t *testing.T, key string, h *dto.Histogram) {
	t.Helper()
	below := uint64(0)
	for _, b := range h.Bucket {
		if b.GetCumulativeCount() < below {
			t.Errorf("%s: fewer below %v than before", key, b.GetUpperBound())
		}
		below = b.GetCumulativeCount()
	}
	if below > h.GetSampleCount() || h.GetSampleSum() < 0 || (h.GetSampleCount() > 0) != (h.GetSampleSum() > 0) {
		t.Errorf("%s: %d of %d in buckets, sum %v", key, below, h.GetSampleCount(), h.GetSampleSum())
	}
}

func (n *asked) metrics(t *testing.T) samples {
	t.Helper()
	return parseMetrics(t, n.get(t, "/metrics"))
}

// silentGates counts the times that a gate did not answer within a second: because it is stopped, or
// because it got no CPU.
const silentGates = "tsugiki_gates_silent_total{}"

// counted are metrics that nothing more has come to, by gates that were all heard. A gate counts a
// call before it answers, and the time that it took after that.
func (n *asked) counted(t *testing.T) samples {
	t.Helper()
	var last, now samples
	testkit.Eventually(t, func() error {
		last, now = now, n.metrics(t)
		for k, v := range now {
			if (strings.HasPrefix(k, "tsugiki_decision") || k == silentGates) && last[k] != v {
				return fmt.Errorf("%s has moved from %v to %v", k, last[k], v)
			}
		}
		return nil
	})
	return now
}

// countedAndTimed are metrics that nothing more has come to, and in which each call of a container
// that gate or agent has counted has its time.
func (n *asked) countedAndTimed(t *testing.T, container string) (now samples) {
	t.Helper()
	testkit.Eventually(t, func() error {
		now = n.counted(t)
		for _, by := range []string{"gate", "agent"} {
			timed, all := now[fmt.Sprintf("tsugiki_decision_seconds{by=%s,container=%s}", by, container)], now.decisions(by, container)
			if timed != all {
				return fmt.Errorf("%v decisions by %s are timed, of %v", timed, by, all)
			}
		}
		return nil
	})
	return now
}

// decisions is the number of decisions about all calls of a container.
func (s samples) decisions(by, container string) (all float64) {
	for k, v := range s {
		if strings.HasPrefix(k, "tsugiki_decisions_total{by="+by+",") && strings.HasSuffix(k, ",container="+container+"}") {
			all += v
		}
	}
	return all
}

// A counter moves by what a program does.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	for _, tt := range []struct {
		decides, source string // who, about connects, and from where they are
		flags           []string
	}{
		// Where sockets are created on the host first, the gate lets connects go ahead; else the agent
		// swaps each. Where connects are not trapped, the kernel programs decide.
		{"gate", sourceAddr4, variants[0].flags(w)},
		{"agent", sourceAddr4, variants[2].flags(w)},
		{"kernel", hostAddr4, untrapped()},
	} {
		t.Run(tt.decides, func(t *testing.T) {
			o := n.obey(t, append(tt.flags, "--endpoint", "in type ipv4 addr "+hostAddr4+" port 8081", "-i", "0.0.0.0:8080=in")...)
			o.want("listens", "listen l 0.0.0.0:8080")
			o.want(tt.source, "dial a tcp %s", remoteObserver())
			before := n.countedAndTimed(t, o.name)
			for i := range 10 {
				o.want(tt.source, "dial a%d tcp %s", i, remoteObserver())
			}
			for range 3 {
				succeed(t, command(t, w.srv, "curl", "-sS", "http://"+hostAddr4+":8081/"))
			}
			o.want("EPERM", "mark a")
			after := n.countedAndTimed(t, o.name)
			moved := func(name, format string) float64 {
				k := fmt.Sprintf("tsugiki_%s{"+format+"}", name, o.name)
				if _, found := after[k]; !found {
					t.Errorf("no %s", k)
				}
				return after[k] - before[k]
			}
			for _, m := range []struct {
				name, labels string
				want         float64
			}{
				{"connections_total", "container=%s,direction=out", 10},
				{"connections_total", "container=%s,direction=in", 3},
				{"denied_total", "call=setsockopt,container=%s", 1},
				{"denied_total", "call=connect,container=%s", 0},
				{"denied_total", "call=bind,container=%s", 0},
				{"denied_total", "call=send,container=%s", 0},
				{"refusals_total", "by=agent,container=%s", 0},
				{"refusals_total", "by=gate,container=%s", 0},
			} {
				if got := moved(m.name, m.labels); got != m.want {
					t.Errorf("%s{%s} moved by %v, want %v", m.name, m.labels, got, m.want)
				}
			}
			for _, by := range []string{"gate", "agent", "kernel"} {
				want := 0.0
				if by == tt.decides {
					want = 10
				}
				if got := moved("decisions_total", "by="+by+",call=connect,container=%s"); got != want {
					t.Errorf("%s has decided %v connects, want %v", by, got, want)
				}
			}
			if running := after["tsugiki_containers{state=running}"]; running != 1 {
				t.Errorf("%v containers run, want 1", running)
			}
			o.release()
		})
	}
	for k := range n.metrics(t) {
		if strings.Contains(k, "container=") {
			t.Errorf("%s is there without a container", k)
		}
	}
}

// What kernel and gates have counted is not lost with the agent.
func TestMetricsOverRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	list := []*obedient{n.obey(t, variants[0].flags(w)...), n.obey(t, untrapped()...)}
	sources := []string{sourceAddr4, hostAddr4}
	var before []containerStats
	for i, o := range list {
		o.want(sources[i], "dial a tcp %s", remoteObserver())
		o.want("EPERM", "mark a")
		before = append(before, n.connects(t, o.name, 1))
	}
	n.stop()
	for i, o := range list {
		o.want(sources[i], "dial b tcp %s", remoteObserver())
	}
	n.start()
	for i, o := range list {
		before, after := before[i], n.connects(t, o.name, 2)
		if after.Connections.Out != before.Connections.Out+1 || after.Denied != before.Denied || after.Agent.Calls["bind"] != before.Agent.Calls["bind"] {
			t.Errorf("before %+v\nafter %+v", before, after)
		}
		o.release()
	}
}

// At an address there are metrics and nothing else.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := net.JoinHostPort(hostAddr4, "9469")
	n := startAgent(t, w, "[metrics]", fmt.Sprintf("listen = %q", at))
	out := succeed(t, command(t, w.srv, "curl", "-sS", "http://"+at+"/metrics"))
	m := parseMetrics(t, []byte(out))
	if _, found := m["tsugiki_containers{state=running}"]; !found || m["go_goroutines{}"] == 0 || m["process_open_fds{}"] == 0 {
		t.Errorf("metrics: %v", m)
	}
	if !strings.Contains(out, "\ntsugiki_build_info{") {
		t.Error("no build info")
	}
	for _, path := range []string{"/", "/v1/containers", "/v1/stats", "/debug/pprof/"} {
		out := succeed(t, command(t, w.srv, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "http://"+at+path))
		if out != "404" {
			t.Errorf("%s: %s", path, out)
		}
	}
	n.stop()
	args := slices.Clone(n.args)
	config := args[len(args)-1]
	if err := os.WriteFile(config, []byte("[metrics]\nlisten = \"203.0.113.99:9469\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal{status: 1, says: []string{`serve metrics: .*203\.0\.113\.99`, `\[metrics\] listen`}}.judge(t, try(t, command(t, w.h, tsugiki, args...)), "")
}

// A gate that does not answer holds up nobody, is said to be silent, and what it
// said last stands.
func TestMetricsSilentGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	trapped := variants[0]
	trapped.mode = modes[1]
	stopped, other := n.obey(t, trapped.flags(w)...), n.obey(t, variants[0].flags(w)...)
	var gate int
	var before containerStats
	testkit.Eventually(t, func() (err error) { // it may exit as idle
		stopped.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		if before = n.stats(t, stopped.name); before.Silent != 0 {
			return fmt.Errorf("it is silent: %+v", before)
		}
		gate, err = stopped.stopGateNow(t)
		return err
	})
	said := n.metrics(t)[silentGates]
	silent := n.stats(t, stopped.name)
	if silent.Silent != 1 || silent.Gates != 1 || silent.Gate.Calls["connect"] != before.Gate.Calls["connect"] {
		t.Errorf("before %+v\nwithout its gate %+v", before, silent)
	}
	other.want(sourceAddr4, "dial a tcp %s", remoteObserver())
	m := n.metrics(t)
	if m[silentGates] < said+2 || m["tsugiki_connections_total{container="+other.name+",direction=out}"] != 1 {
		t.Errorf("silent gates %v, were %v; connections of the other %v", m[silentGates], said,
			m["tsugiki_connections_total{container="+other.name+",direction=out}"])
	}
	// Other containers are served as before.
	n.obey(t, variants[0].flags(w)...).release()
	if err := unix.Kill(gate, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		if s := n.stats(t, stopped.name); s.Silent != 0 {
			return fmt.Errorf("it is silent: %+v", s)
		}
		return nil
	})
	stopped.release()
	other.release()
}

// top is what tsugiki top -j says of all containers.
func (n *asked) top(t *testing.T, containers int) []containerStats {
	t.Helper()
	var all struct {
		Time       string
		Containers []containerStats
	}
	out := succeed(t, n.command(t, "top", "-j"))
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Containers) != containers {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := time.Parse(time.RFC3339Nano, all.Time); err != nil {
		t.Error(err)
	}
	return all.Containers
}

func TestTop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	n := startAgent(t, w)
	idle, busy := n.obey(t, variants[0].flags(w)...), n.obey(t, variants[0].flags(w)...)
	// Without a call for a while, a container has no process of its own, and no memory.
	testkit.Eventually(t, func() error {
		busy.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		for _, c := range n.top(t, 2) {
			if c.State != "running" || c.Gates != 1 || len(c.Gate.Times) != 32 {
				t.Fatalf("%+v", c)
			}
			if c.Name == busy.name && c.Memory == 0 {
				return fmt.Errorf("%+v", c)
			}
		}
		return nil
	})

	top := start(t, n.command(t, "top", "-d", "0.3"))
	// The columns of the busy one, once there is something in them.
	row := regexp.MustCompile(`(?m)^` + busy.name + ` +[1-9][\d.]* +0\.0 +[1-9][\d.]* +\S+ +[\d.]+us +[\d.]+[um]s +0\.0 +0\.0 +\d+K\n` + idle.name + ` `)
	testkit.Eventually(t, func() error {
		busy.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		if !row.MatchString(top.output.String()) {
			return fmt.Errorf("printed %s", top.output)
		}
		return nil
	})
	if strings.Contains(top.output.String(), "\x1b") {
		t.Errorf("control characters where there is no terminal: %q", top.output)
	}
	if err := top.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-top.ended
	if out := succeed(t, n.command(t, "top", "-n", "2", "-d", "0.1")); strings.Count(out, "NAME") != 2 {
		t.Errorf("two tables: %s", out)
	}
	refusal{status: 2, says: []string{"-d at least"}}.judge(t, try(t, n.command(t, "top", "-d", "0")), "")
	idle.release()
	busy.release()
	n.stop()
	refusal{status: 1, says: []string{"agent is not running"}}.judge(t, try(t, n.command(t, "top")), "")
}

// On a terminal the table stays in its place, q ends it, and the terminal is as before.
func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := startAgent(t, w)
	o := n.obey(t, variants[0].flags(w)...)
	c := n.command(t, "top", "-d", "0.1")
	term := startOnTerminal(t, command(t, w.h, "sh", "-c",
		`stty rows 5 cols 60; stty -g; "$@"; s=$?; echo; stty -g; echo "status $s"`, "sh", c.Path, "top", "--agent", c.Args[3], "-d", "0.1"))
	term.expect(t, o.name)
	term.press(t, "q")
	term.expect(t, "status 0")
	<-term.ended
	out := term.output.String()
	modes := regexp.MustCompile(`(?m)^[0-9a-f]+(:[0-9a-f]+){10,}`).FindAllString(out, -1)
	if len(modes) != 2 || modes[0] != modes[1] {
		t.Errorf("terminal modes before and after: %q", modes)
	}
	if !strings.Contains(out, "\x1b[?1049h") || !strings.Contains(out, "\x1b[?1049l") || !strings.Contains(out, "\x1b[H") {
		t.Errorf("printed %q", out)
	}
	o.release()
}
