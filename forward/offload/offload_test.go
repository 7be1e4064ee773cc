package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

func TestConfig(t *testing.T) {
	const begin = "[dpu]\nendpoint = \"unix:/run/dpu\"\n"
	const node = "[[node]]\ntunnel = \"192.0.2.1\"\nsubnets = [\"10.77.1.0/24\"]\n"
	const other = "[[node]]\ntunnel = \"192.0.2.2\"\nsubnets = [\"10.77.2.0/24\"]\n"
	for name, c := range map[string]struct{ text, want string }{
		"right":         {begin + node + other + "[policy]\ndefault = \"deny\"\n[[policy.rule]]\naction = \"allow\"\nto = \"10.77.1.0/24\"\nprotocol = \"tcp\"\nports = [80]\n", ""},
		"no file":       {"", "endpoint"},
		"no node":       {begin, "there is no [[node]]"},
		"unknown key":   {begin + "port = 1\n" + node, "line 3"},
		"syntax":        {begin + "x", "line 3"},
		"type":          {begin + "credentials = 7\n", "line 3"},
		"tunnel":        {begin + "[[node]]\nsubnets = [\"10.0.0.0/8\"]\n", "tunnel or subnets is missing"},
		"same tunnel":   {begin + node + strings.Replace(node, "77.1", "77.3", 1), "two nodes have the tunnel"},
		"overlap":       {begin + node + strings.Replace(other, "77.2.0/24", "0.0.0/8", 1), "overlap"},
		"host bits":     {begin + strings.Replace(node, "1.0/24", "1.1/24", 1), "write 10.77.1.0/24"},
		"default":       {begin + node + "[policy]\ndefault = \"maybe\"\n", "write allow or deny"},
		"action":        {begin + node + "[[policy.rule]]\naction = \"log\"\n", "[[policy.rule]] 1"},
		"rule":          {begin + node + "[[policy.rule]]\naction = \"deny\"\nprotocol = \"gre\"\n", "unknown protocol"},
		"port":          {begin + node + "[[policy.rule]]\naction = \"deny\"\nprotocol = \"tcp\"\nports = [65536]\n", "65536"},
		"metrics":       {begin + node + "[metrics]\nlisten = \"9470\"\n", "ADDR:PORT"},
		"large subnets": {begin + "[[node]]\ntunnel = \"192.0.2.1\"\nsubnets = [\"10.77.1.0/33\"]\n", "line 5"},
	} {
		_, err := Parse([]byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("[dpu]\nendpoint = \"unix:/run/dpu\"\n[[node]]\ntunnel = \"192.0.2.1\"\nsubnets = [\"10.77.1.0/24\"]\n[[policy.rule]]\naction = \"deny\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse([]byte(text)); err == nil && len(c.nodes) == 0 {
			t.Error("a configuration without nodes")
		}
	})
}

var errBroken = errors.New("broken")

// table is a host's table of pods, which notes what happens to it.
type table struct {
	pods   map[int]forward.Pod
	pairs  map[pair]forward.Verdict
	full   bool  // there is no room for pairs that have no verdict
	fail   error // what SetPair and Pairs return
	breaks int   // how many calls of SetPair fail
	log    *[]string
	wrote  chan pair // gets each pair for which SetPair is called; nil: nobody waits
}

func (t *table) Pod(device int) (forward.Pod, error) {
	if p, ok := t.pods[device]; ok {
		return p, nil
	}
	return forward.Pod{}, forward.ErrUnknown
}

func (t *table) Pairs() (list []forward.Pair, err error) {
	for p, v := range t.pairs {
		list = append(list, forward.Pair{A: p.a, B: p.b, Verdict: v})
	}
	return list, t.fail
}

func (t *table) SetPair(a, b int, v forward.Verdict) error {
	if t.fail != nil {
		return t.fail
	}
	if t.breaks > 0 {
		t.breaks--
		return errBroken
	}
	if t.full && v != forward.Default && t.pairs[pair{a, b}] == "" {
		return fmt.Errorf("enter pair: %w", forward.ErrFull)
	}
	*t.log = append(*t.log, fmt.Sprintf("pair %d %d %s", a, b, v))
	t.pairs[pair{a, b}] = v
	if t.wrote != nil {
		t.wrote <- pair{a, b}
	}
	if v == forward.Default {
		delete(t.pairs, pair{a, b})
	}
	return nil
}

func (t *table) SetDirect(device int, on bool) error {
	*t.log = append(*t.log, fmt.Sprintf("direct %d %v", device, on))
	return nil
}

// taker is a switch that notes what it takes.
type taker struct {
	log  *[]string
	fail error
}

func (s *taker) Replace(_ context.Context, list []flows.Flow) error {
	*s.log = append(*s.log, "replace")
	return s.fail
}

func (s *taker) Change(_ context.Context, lines []string) error {
	*s.log = append(*s.log, "change")
	return s.fail
}

// rig is a controller of three pods whose pairs are direct without a verdict, or not.
func rig(t *testing.T, usual bool) (*Controller, *table, *taker, *[]string) {
	t.Helper()
	log := &[]string{}
	tab := &table{pods: map[int]forward.Pod{}, pairs: map[pair]forward.Verdict{}, log: log}
	for i := range 3 {
		tab.pods[i+1] = forward.Pod{Device: i + 1, MAC: [6]byte{2, byte(i + 1)}, AllPairs: usual}
	}
	discard := slog.New(slog.DiscardHandler)
	c := &Controller{direct: newDirect(tab, discard), log: discard, stats: newStats(), config: &Config{}}
	sw := &taker{log: log}
	c.sw = sw
	return c, tab, sw, log
}

func port(i int) *ports.Port {
	return &ports.Port{Name: fmt.Sprintf("rep0-%d", i), Device: i, MAC: dpu.MAC{2, byte(i)}, Direct: true, Number: i, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 77, 1, byte(i)})}}
}

// steps does what sync does, without a database.
func steps(t *testing.T, c *Controller, policy *flows.Policy, list ...*ports.Port) {
	t.Helper()
	s := &flows.State{Policy: *policy}
	for _, p := range list {
		s.Pods = append(s.Pods, flows.Pod{Port: p.Number, MAC: p.MAC, Addrs: p.Addrs})
	}
	err := c.direct.restrict(list, policy)
	if err == nil {
		err = c.install(context.Background(), flows.Compute(s))
	}
	if err == nil {
		err = c.direct.loosen()
	}
	if err == nil {
		_, err = c.answers(list, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A pair stops being direct before the flows change that forbid something, and is direct again only
// afterwards. A pod's packets go directly only when its flows are in the switch.
func TestOrder(t *testing.T) {
	allow := &flows.Policy{Allow: true}
	deny := &flows.Policy{Allow: true, Rules: []flows.Rule{{To: netip.MustParsePrefix("10.77.1.1/32"), Protocol: "tcp"}}}
	for usual, want := range map[bool][]string{
		true: {
			"replace", "direct 1 true", "direct 2 true",
			"pair 1 2 slow", "change",
			"change", "pair 1 2 default",
		},
		false: {
			"replace", "pair 1 2 direct", "direct 1 true", "direct 2 true",
			"pair 1 2 slow", "change",
			"change", "pair 1 2 direct",
		},
	} {
		c, _, _, log := rig(t, usual)
		list := []*ports.Port{port(1), port(2)}
		steps(t, c, allow, list...)
		for _, p := range list {
			p.Installed = true
		}
		steps(t, c, deny, list...)
		steps(t, c, deny, list...) // nothing to do
		steps(t, c, allow, list...)
		if diff := cmp.Diff(want, *log); diff != "" {
			t.Errorf("usual %v:\n%s", usual, diff)
		}
	}
}

// A verdict that a user has written stays unless the policy forbids something; a table that is full
// leaves pairs slow; a pod that is gone is left out.
func TestVerdictsOfOthers(t *testing.T) {
	allow := &flows.Policy{Allow: true}
	c, tab, _, _ := rig(t, true)
	tab.pairs[pair{1, 2}] = forward.Slow
	tab.pairs[pair{1, 3}] = forward.Direct
	delete(tab.pods, 9)
	steps(t, c, allow, port(1), port(2), port(3), port(9))
	steps(t, c, &flows.Policy{}, port(1), port(2), port(3))
	steps(t, c, allow, port(1), port(2), port(3))
	if diff := cmp.Diff(map[pair]forward.Verdict{{1, 2}: forward.Slow}, tab.pairs, cmp.AllowUnexported(pair{})); diff != "" {
		t.Error(diff)
	}
	c, tab, _, _ = rig(t, false)
	tab.full = true
	steps(t, c, allow, port(1), port(2))
	if len(tab.pairs) > 0 {
		t.Errorf("pairs %v", tab.pairs)
	}
}

// If there is no room for verdicts that forbid, only one pod at most has direct packets, also one that
// comes later. A verdict that is there is changed.
func TestNoRoomToForbid(t *testing.T) {
	c, tab, _, log := rig(t, true)
	one, two, three := port(1), port(2), port(3)
	steps(t, c, &flows.Policy{Allow: true}, one, two)
	one.Installed, two.Installed = true, true
	tab.full = true
	*log = nil
	deny := &flows.Policy{}
	steps(t, c, deny, one, two)
	steps(t, c, deny, one, two, three)
	off := map[string]bool{}
	for _, line := range *log {
		off[line] = strings.HasPrefix(line, "direct ")
	}
	delete(off, "change")
	if off["direct 1 true"] || off["direct 2 true"] || off["direct 3 true"] || off["direct 1 false"] == off["direct 2 false"] {
		t.Errorf("%q", *log)
	}
	c, tab, _, log = rig(t, false)
	steps(t, c, &flows.Policy{Allow: true}, one, two)
	tab.full = true
	*log = nil
	steps(t, c, deny, one, two)
	if diff := cmp.Diff([]string{"pair 1 2 slow", "change"}, *log); diff != "" {
		t.Error(diff)
	}
}

// A policy that could not be written into the host's table is written the next time, also if a pod
// came meanwhile; so is what a bundle that failed has kept from becoming direct.
func TestRetries(t *testing.T) {
	allow, deny := &flows.Policy{Allow: true}, &flows.Policy{}
	for usual, direct := range map[bool]map[pair]forward.Verdict{
		true:  {},
		false: {{1, 2}: forward.Direct, {1, 3}: forward.Direct, {2, 3}: forward.Direct},
	} {
		slow := map[pair]forward.Verdict{{1, 2}: forward.Slow, {1, 3}: forward.Slow, {2, 3}: forward.Slow}
		if !usual {
			delete(slow, pair{1, 3}) // the third pod comes when nothing is allowed
			delete(slow, pair{2, 3})
		}
		c, tab, sw, _ := rig(t, usual)
		two, three := []*ports.Port{port(1), port(2)}, []*ports.Port{port(1), port(2), port(3)}
		steps(t, c, allow, two...)
		tab.fail = errBroken
		for _, list := range [][]*ports.Port{two, three} {
			if err := c.direct.restrict(list, deny); !errors.Is(err, errBroken) {
				t.Errorf("usual %v: %v", usual, err)
			}
		}
		tab.fail = nil
		steps(t, c, deny, three...)
		if diff := cmp.Diff(slow, tab.pairs, cmp.AllowUnexported(pair{})); diff != "" {
			t.Errorf("usual %v, denied:\n%s", usual, diff)
		}
		sw.fail = errBroken
		if err := errors.Join(c.direct.restrict(three, allow), c.install(t.Context(), nil)); !errors.Is(err, errBroken) {
			t.Errorf("usual %v: %v", usual, err)
		}
		sw.fail = nil
		steps(t, c, allow, three...)
		if diff := cmp.Diff(direct, tab.pairs, cmp.AllowUnexported(pair{})); diff != "" {
			t.Errorf("usual %v, allowed:\n%s", usual, diff)
		}
	}
}

// After a bundle that failed nobody knows the switch's flows: all are replaced.
func TestFailedBundle(t *testing.T) {
	c, _, sw, log := rig(t, true)
	first := []flows.Flow{{Match: "a", Actions: "drop"}}
	second := []flows.Flow{{Match: "b", Actions: "drop"}}
	install := func(list []flows.Flow, want error) {
		t.Helper()
		sw.fail = want
		if err := c.install(context.Background(), list); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	install(first, nil)
	install(second, errors.New("lost"))
	install(second, nil)
	install(second, nil)
	c.take(&dpu.Health{Generation: "1"}, &dpu.Health{Generation: "2"})
	install(second, nil)
	if diff := cmp.Diff([]string{"replace", "change", "replace", "replace"}, *log); diff != "" {
		t.Error(diff)
	}
	want := "# HELP tsugiki_offload_replays_total Times that all flows were replaced.\n# TYPE tsugiki_offload_replays_total counter\ntsugiki_offload_replays_total 3\n"
	if err := testutil.CollectAndCompare(c.stats, strings.NewReader(want), "tsugiki_offload_replays_total"); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	subnets := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}
	twin, stranger, faulty, fine := port(1), port(2), port(3), port(4)
	stranger.Addrs = []netip.Addr{netip.MustParseAddr("10.99.0.1")}
	faulty.Fault = "no such device"
	got := refuse(&ports.Table{Ports: []*ports.Port{port(1), twin, stranger, faulty, fine}}, subnets)
	for p, want := range map[*ports.Port]string{twin: "two ports", stranger: "in no subnet", faulty: "no such device", fine: ""} {
		if !strings.Contains(got[p], want) || want == "" && got[p] != "" {
			t.Errorf("%s: %q, want %q", p.Name, got[p], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d of 5 are refused", len(got))
	}
}
