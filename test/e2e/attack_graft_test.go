package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// namedEndpoints are those that the attack names.
var namedEndpoints = []string{
	"--endpoint", "any type ipv4 addr 0.0.0.0 port dynamic nameable",
	"--endpoint", "any6 type ipv6 addr :: port dynamic nameable",
	"--endpoint", "addr type ipv4 addr " + hostAddr4 + " port dynamic nameable",
	"--endpoint", "addr6 type ipv6 addr " + hostAddr6 + " port dynamic nameable",
	"--endpoint", "lo type ipv4 addr 127.0.0.1 port dynamic nameable",
	"--endpoint", "lo6 type ipv6 addr ::1 port dynamic nameable",
}

// graftAttack prepares an attack by AF_GRAFT sockets.
func (a *arena) graftAttack(build, user string, args ...string) []string {
	flags := append([]string{"--mode", apiModes[0]}, namedEndpoints...)
	return steppedLines(succeed(a.t, a.attack(build, append(flags, users[user]...), args...)))
}

func steppedLines(out string) []string { return strings.Split(strings.TrimSpace(out), "\n") }

// An endpoint that a program names opens no destination that is special, nor one of
// another family; and it does open the others.
func TestAttackGraftReach(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	special := func(targets []string) []string {
		return slices.DeleteFunc(targets, func(s string) bool {
			for _, addr := range []string{hostAddr4 + ":", "[" + hostAddr6, remoteAddr4 + ":", "[" + remoteAddr6, otherRemote4, otherRemote6, "198.51.100.255"} {
				if strings.HasPrefix(s, addr) || strings.HasPrefix(s, "["+addr) {
					return true
				}
			}
			return false
		})
	}
	ip4, ip6 := a.forbidden()
	ip4, ip6 = special(ip4), special(ip6)
	if len(ip4) < 8 || len(ip6) < 6 {
		t.Fatalf("only %v and %v are left", ip4, ip6)
	}
	for _, user := range slices.Collect(maps.Keys(users)) {
		for endpoint, targets := range map[string][]string{"any": ip4, "addr": ip4, "lo": ip4, "any6": ip6, "addr6": ip6, "lo6": ip6} {
			for _, l := range a.graftAttack("static", user, append([]string{"graft-reach", endpoint}, targets...)...) {
				if strings.HasSuffix(l, ": ok") {
					t.Errorf("%s, from %s: %s", user, endpoint, l)
				}
			}
		}
	}
	a.unharmed()
	for endpoint, to := range map[string]string{"any": allowed4.String(), "addr": allowed4.String(), "any6": allowed6.String(), "addr6": allowed6.String()} {
		a.graftAttack("dynamic", "root", "graft-reach", endpoint, to)
		allowed, forbidden := a.arrived()
		for _, way := range []string{"tcp connect", "tcp fastopen", "tcp reconnect", "udp sendto", "udp connect"} {
			if !slices.Contains(allowed, way+" "+to) {
				t.Errorf("from %s: %s did not arrive; %v did", endpoint, way, allowed)
			}
		}
		if len(forbidden) > 0 {
			t.Errorf("from %s, also arrived: %v", endpoint, forbidden)
		}
	}
}

// A rule's endpoint is the rule's: a program can name only what was given for naming.
// Through e-1 it would reach all that one rule opens a single port of.
func TestAttackGraftNames(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	flags := []string{
		"--mode", apiModes[0], "-e", allowed4.String() + "=0.0.0.0", "-e", "[" + remoteAddr6 + "/128]:7001=::",
		"-i", "0.0.0.0:80=" + hostAddr4, "--endpoint", "rule type ipv4 addr 0.0.0.0 port dynamic", "-e", otherRemote4 + "/32=rule",
		"--endpoint", "spare type ipv4 addr 0.0.0.0 port dynamic", "--endpoint", "mine type ipv4 addr 0.0.0.0 port dynamic nameable",
		"--endpoint", "both type ipv4 addr 0.0.0.0 port dynamic nameable", "-e", "203.0.113.77/32=both",
	}
	flags[3] = strings.Replace(flags[3], ":", "/32:", 1)
	for user, as := range users {
		for _, build := range apiBuilds {
			out := steppedLines(succeed(t, a.attack(build, append(slices.Clone(flags), as...),
				"graft-names", "e-1", "e-2", "i-1", "rule", "spare", "mine", "both")))
			var want []string
			for _, name := range []string{"e-1", "e-2", "i-1", "rule", "spare", "mine", "both"} {
				errno := "ENOENT"
				if name == "mine" || name == "both" {
					errno = "ok"
				}
				want = append(want, "endpoint: "+name, "tcp bind: "+errno, "udp bind: "+errno)
			}
			if !slices.Equal(out, want) {
				t.Errorf("%s, %s printed %q, want %q", user, build, out, want)
			}
		}
	}
}

// Whatever the pointers and lengths, the supervisor survives and writes nowhere
// that the program could not.
func TestAttackGraftHostile(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for user := range users {
		for _, build := range apiBuilds {
			if out := a.graftAttack(build, user, "graft-hostile", "any"); len(out) != 2 || !strings.HasPrefix(out[0], "calls: ") || out[1] != "file: unchanged" {
				t.Errorf("%s, %s printed %q", user, build, out)
			}
		}
	}
	a.unharmed()
}

// What was read is what is done.
func TestAttackGraftFlip(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	want := []string{"bound: some", "marked: 0"}
	for user := range users {
		if out := a.graftAttack("static", user, "graft-flip", "any"); !slices.Equal(out, want) {
			t.Errorf("%s printed %q, want %q", user, out, want)
		}
	}
}

// Memory that is never there holds up nobody but who passed it, not even on the
// same socket; and the container ends.
func TestAttackGraftMemory(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	want := []string{"set: ok", "bind: ok", "listen: ok"}
	// With the capability that userfaultfd(2) needs.
	flags := append([]string{"--mode", apiModes[0], "--cap-add", "SYS_PTRACE"}, namedEndpoints...)
	out := steppedLines(succeed(t, a.attack("static", flags, "graft-memory", "60", "any")))
	if !slices.Equal(out, want) {
		t.Errorf("it printed %q, want %q", out, want)
	}
}

// Ten thousand sockets are a program's own affair, and so is its limit.
func TestAttackGraftMany(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	want := []string{"sockets: ok", "bind the last: ok", "one more: EMFILE"}
	if out := a.graftAttack("static", "root", "graft-many", "10000", "any"); !slices.Equal(out, want) {
		t.Errorf("it printed %q, want %q", out, want)
	}
	// And nothing is left of them.
	out := a.graftAttack("static", "root", "graft-reach", "any", allowed4.String())
	if !slices.Contains(out, "tcp connect "+allowed4.String()+": ok") {
		t.Errorf("after that, a program printed %q", out)
	}
}

// A socket that has lost its port by a reset may get another when it listens, at which
// nobody reaches it.
func TestAttackGraftRaw(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	flags := append([]string{"--mode", apiModes[0]}, namedEndpoints...)
	for _, endpoint := range []string{"any", "addr"} {
		h := hold(t, a.attack("static", flags, "graft-raw", endpoint, allowed4.String()), "hold")
		for _, network := range []string{"tcp", "udp"} {
			if a.taken(network, 9091) {
				t.Errorf("the container has the host's %s port 9091", network)
			}
		}
		a.noListeners()
		want := []string{
			"bind elsewhere: EAFNOSUPPORT", "connect: ok", "bind elsewhere after a reset: EAFNOSUPPORT", "listen after a reset: ok", "hold: ok",
		}
		if out := h.release(); !slices.Equal(out, want) {
			t.Errorf("%s: it printed %q, want %q", endpoint, out, want)
		}
	}
}
