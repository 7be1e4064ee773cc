package flows

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// state is a node with pods, another node, an outside and rules.
func state(pods int) *State {
	s := &State{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("2001:db8:77::/64")},
		Nodes:   []Node{{netip.MustParseAddr("192.0.2.2"), []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16"), netip.MustParsePrefix("2001:db8:78::/64")}}},
		Switch: dpu.Health{
			Tunnel: netip.MustParseAddr("192.0.2.1"), TunnelPort: 1, OutsidePort: 2, Masquerade: netip.MustParseAddr("192.0.2.101"),
			MasqueradeMAC: dpu.MAC{2, 1}, GatewayMAC: dpu.MAC{2, 2},
		},
		Policy: Policy{Allow: true, Rules: []Rule{
			{To: netip.MustParsePrefix("10.77.0.5/32"), Protocol: "tcp", Ports: []uint16{80, 443}},
			{Allow: true, From: netip.MustParsePrefix("10.78.0.0/16")},
			{Protocol: "icmp"},
			{Protocol: "sctp", Ports: []uint16{1}},
			{From: netip.MustParsePrefix("2001:db8::/32"), Protocol: "icmp6"},
		}},
	}
	for i := range pods {
		s.Pods = append(s.Pods, Pod{256 + i, dpu.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}, []netip.Addr{
			netip.AddrFrom4([4]byte{10, 77, byte((i + 2) >> 8), byte(i + 2)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:77::%x", i+2)),
		}})
	}
	return s
}

// The switch's own parser takes all flows, and no two of them are for the same packets.
func TestFlowsAreUnderstood(t *testing.T) {
	list := Compute(state(3))
	seen := map[string]bool{}
	var lines []string
	for _, f := range list {
		if seen[f.Match] {
			t.Errorf("twice: %s", f.Match)
		}
		seen[f.Match] = true
		lines = append(lines, f.String())
	}
	cmd := exec.Command(testkit.Program(t, "ovs-ofctl"), "-O", "OpenFlow15", "parse-flows", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	state6 := state(1)
	state6.Switch.Tunnel = netip.MustParseAddr("2001:db8::1")
	state6.Nodes[0].Tunnel = netip.MustParseAddr("2001:db8::2")
	state6.Switch.Masquerade = netip.MustParseAddr("2001:db8::101")
	lines = nil
	for _, f := range Compute(state6) {
		lines = append(lines, f.String())
	}
	cmd = exec.Command(testkit.Program(t, "ovs-ofctl"), "-O", "OpenFlow15", "parse-flows", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("an uplink of IPv6: %v: %s", err, out)
	}
}

// Nothing of a pod is in the flows of a node without pods; without a gateway that answers, nothing
// leads outside; and without nodes nothing leads into the tunnel.
func TestFlowsThatAreMissing(t *testing.T) {
	text := func(s *State) string {
		var lines []string
		for _, f := range Compute(s) {
			lines = append(lines, f.String())
		}
		return strings.Join(lines, "\n")
	}
	s := state(1)
	for what, c := range map[string]struct {
		change func(*State)
		word   string
	}{
		"pods":    {func(s *State) { s.Pods = nil }, "=256"},
		"nodes":   {func(s *State) { s.Nodes = nil }, "tun_dst"},
		"tunnel":  {func(s *State) { s.Switch.TunnelPort = 0 }, "tun_"},
		"gateway": {func(s *State) { s.Switch.GatewayMAC = dpu.MAC{} }, "nat(src"},
		"outside": {func(s *State) { s.Switch.Masquerade = netip.Addr{} }, "nat"},
	} {
		if all := text(s); !strings.Contains(all, c.word) {
			t.Errorf("%s: %q is not in\n%s", what, c.word, all)
		}
		without := *s
		c.change(&without)
		if rest := text(&without); strings.Contains(rest, c.word) {
			t.Errorf("without %s: %q is in\n%s", what, c.word, rest)
		}
	}
}

// apply does to a list what the switch does with lines of Changes.
func apply(list []Flow, lines []string) (after []Flow) {
	has := map[string]string{}
	for _, f := range list {
		has[f.Match] = f.Actions
	}
	for _, line := range lines {
		if match, gone := strings.CutPrefix(line, "delete_strict "); gone {
			delete(has, match)
			continue
		}
		match, actions, _ := strings.Cut(strings.TrimPrefix(line, "add "), ",actions=")
		has[match] = actions
	}
	for m, a := range has {
		after = append(after, Flow{m, a})
	}
	slices.SortFunc(after, func(x, y Flow) int { return strings.Compare(x.Match, y.Match) })
	return after
}

// Changes from any list to any other lead there.
func TestChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() (list []Flow) {
		for i := range 20 {
			if random.IntN(2) == 0 {
				list = append(list, Flow{fmt.Sprintf("table=%02d", i), fmt.Sprint(random.IntN(2))})
			}
		}
		return list
	}
	for range 500 {
		from, to := some(), some()
		lines := Changes(from, to)
		if diff := cmp.Diff(to, apply(from, lines)); diff != "" {
			t.Fatalf("from %v: %v:\n%s", from, lines, diff)
		}
	}
	list := Compute(state(5))
	if lines := Changes(list, Compute(state(5))); lines != nil {
		t.Errorf("the same state: %v", lines)
	}
	if lines := Changes(list, Compute(state(6))); len(lines) != 12 {
		t.Errorf("one pod more: %d lines: %v", len(lines), lines)
	}
}

func TestRules(t *testing.T) {
	four, six := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")
	for name, c := range map[string]struct {
		rule Rule
		want string
	}{
		"families":      {Rule{From: four, To: six}, "different families"},
		"host bits":     {Rule{From: netip.MustParsePrefix("10.0.0.1/8")}, "write 10.0.0.0/8"},
		"icmp":          {Rule{From: six, Protocol: "icmp"}, "write icmp6"},
		"icmp6":         {Rule{To: four, Protocol: "icmp6"}, "write icmp"},
		"protocol":      {Rule{Protocol: "gre"}, "unknown protocol"},
		"ports of any":  {Rule{Ports: []uint16{1}}, "belong to a protocol"},
		"ports of icmp": {Rule{Protocol: "icmp", Ports: []uint16{1}}, "belong to a protocol"},
		"port 0":        {Rule{Protocol: "tcp", Ports: []uint16{0}}, "no port 0"},
		"right":         {Rule{From: four, To: four, Protocol: "tcp", Ports: []uint16{80}}, ""},
	} {
		err := c.rule.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// slowly tells whether everything passes, by trying each protocol and port that a rule names, and one
// that none names.
func slowly(p *Policy, a, b []netip.Addr) bool {
	passes := func(from, to netip.Addr, protocol string, port uint16) bool {
		for _, r := range p.Rules {
			if (!r.From.IsValid() || r.From.Contains(from)) && (!r.To.IsValid() || r.To.Contains(to)) &&
				(r.Protocol == "" || r.Protocol == protocol) && (len(r.Ports) == 0 || slices.Contains(r.Ports, port)) {
				return r.Allow
			}
		}
		return p.Allow
	}
	for _, x := range a {
		for _, y := range b {
			for _, protocol := range []string{"tcp", "udp", "icmp", "icmp6", "other"} {
				for port := range uint16(4) {
					wrong := protocol == "icmp" && x.Is6() || protocol == "icmp6" && x.Is4()
					if x.Is4() == y.Is4() && !wrong && (!passes(x, y, protocol, port) || !passes(y, x, protocol, port)) {
						return false
					}
				}
			}
		}
	}
	return true
}

// Judge calls no pair free between which a rule forbids something. It may call a pair restricted
// that is free by several rules together.
func TestJudge(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	prefix := func() netip.Prefix {
		p, _ := netip.ParsePrefix(pick("", "10.0.0.0/8", "10.0.0.1/32", "10.0.0.2/32", "2001:db8::/32", "2001:db8::1/128"))
		return p
	}
	pods := [][]netip.Addr{
		{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}, {netip.MustParseAddr("10.0.0.2")}, {netip.MustParseAddr("2001:db8::2")},
	}
	free := 0
	for range 3000 {
		p := &Policy{Allow: random.IntN(2) == 0}
		for range random.IntN(4) {
			r := Rule{Allow: random.IntN(2) == 0, From: prefix(), To: prefix(), Protocol: pick("", "", "tcp", "udp", "icmp", "icmp6")}
			if r.Protocol == "tcp" && random.IntN(2) == 0 {
				r.Ports = []uint16{1, 2}
			}
			if r.Check() == nil {
				p.Rules = append(p.Rules, r)
			}
		}
		j := NewJudge(p)
		for _, a := range pods {
			for _, b := range pods {
				if got := j.Free(j.Subject(a), j.Subject(b)); got && !slowly(p, a, b) {
					t.Fatalf("%+v: %v and %v are called free", p, a, b)
				} else if got {
					free++
				}
			}
		}
	}
	if free == 0 {
		t.Error("no pair was free")
	}
}
