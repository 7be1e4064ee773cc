package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Garbage from many threads breaks nothing: not the supervisor, and not the next
// container.
func TestAttackGarbage(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for i, build := range []string{"dynamic", "static"} {
		out := succeed(t, a.attack(build, withIngress(), "garbage", "3", strconv.Itoa(100*i+1), allowed4.String()))
		if !strings.Contains(out, "survived: ok") {
			t.Errorf("%s printed %q", build, out)
		}
	}
	_, forbidden := a.arrived()
	if len(forbidden) > 0 {
		t.Errorf("reached what no rule allows:\n%s", strings.Join(forbidden, "\n"))
	}
	succeed(t, a.attack("static", minimal(), "reach", allowed4.String(), allowed4.String()))
	if allowed, _ := a.arrived(); !slices.Contains(allowed, "tcp connect") {
		t.Error("after that, nothing arrives any more")
	}
}

// same makes one of two errors that differ by when a reset arrives.
func same(line string) string { return strings.Replace(line, "EPIPE", "ECONNRESET", 1) }

// Random calls of one thread return what they return to a process of the host
// that has the same capabilities.
func TestAttackSequencesEqualBare(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	rules := []string{
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic nameable",
		"--endpoint", "out6 type ipv6 addr :: port dynamic nameable",
		"-e", "0.0.0.0/0=out", "-e", "::/0=out6",
	}
	const limits = "--bounding-set=-all,+net_bind_service"
	for seed := range testkit.Times(4, 24) {
		args := []string{"sequence", strconv.Itoa(seed + 1), "250", allowed4.String()}
		bare := succeed(t, command(t, a.Host, "setpriv", append([]string{limits, "--inh-caps=-all", attackProgram(t, "static")}, args...)...))
		if difference := firstDifference(bare, succeed(t, a.attack("static", rules, args...))); difference != "" {
			t.Errorf("seed %d: %s", seed+1, difference)
		}
	}
}

// firstDifference compares two outputs; what follows it is a consequence.
func firstDifference(bare, grafted string) string {
	want, got := strings.Split(bare, "\n"), strings.Split(grafted, "\n")
	for i := range min(len(want), len(got)) {
		if same(want[i]) != same(got[i]) {
			return fmt.Sprintf("step %d: bare %q, grafted %q, after\n%s", i+1, want[i], got[i], strings.Join(want[max(0, i-12):i], "\n"))
		}
	}
	if len(want) != len(got) {
		return fmt.Sprintf("%d steps bare, %d grafted", len(want), len(got))
	}
	return ""
}
