package e2e

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// ways4 are those of the attack that carry a payload to an IPv4 destination.
var ways4 = []string{
	"tcp connect", "tcp syscall", "tcp reconnect", "tcp fastopen sendto", "tcp fastopen sendmsg",
	"tcp fastopen sendmmsg", "tcp fastopen connect", "tcp mapped", "udp connect", "udp reconnect",
	"udp sendto", "udp sendmsg", "udp sendmmsg", "-udp corked", "udp connected sendto",
	"udp unspec sendto", "udp mapped", "udp mapped sendto", "udp IPv4 address on IPv6",
	"udp IPv4 connect on IPv6",
}

var waysI386 = []string{"tcp i386", "tcp socketcall", "udp i386", "udp i386 sendto"}

// The attack can hit: every way works where a rule allows it. The sources of
// what arrives are host sockets, whichever way it took.
func TestAttackReachesWhatIsAllowed(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	for _, build := range []string{"dynamic", "static"} {
		t.Run(build, func(t *testing.T) {
			out := succeed(t, a.attack(build, minimal(), "reach", allowed4.String(), allowed4.String()))
			allowed, forbidden := a.arrived()
			want := slices.Clone(ways4)
			if runtime.GOARCH == "amd64" {
				want = append(want, waysI386...)
			}
			for _, way := range want {
				if !slices.Contains(allowed, way) {
					t.Errorf("%s did not arrive", way)
				}
			}
			if len(forbidden) > 0 {
				t.Errorf("also arrived: %v", forbidden)
			}
			if t.Failed() {
				t.Log(out)
			}
			succeed(t, a.attack(build, minimal(), "reach", allowed6.String(), allowed6.String()))
			allowed, _ = a.arrived()
			for _, way := range []string{"tcp connect", "tcp fastopen sendmmsg", "udp sendto", "udp sendmmsg"} {
				if !slices.Contains(allowed, way) {
					t.Errorf("IPv6 %s did not arrive", way)
				}
			}
		})
	}
}

// The traps see: a process of the host gets everywhere.
func TestAttackTrapsSee(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, ip6 := a.forbidden()
	for allowed, targets := range map[string][]string{allowed4.String(): ip4, allowed6.String(): ip6} {
		for _, target := range targets {
			bare := command(t, a.Host, attackProgram(t, "static"), "reach", allowed, target)
			succeed(t, bare)
			if allowed, forbidden := a.arrived(); len(allowed)+len(forbidden) == 0 {
				t.Errorf("nothing that a process of the host sends to %s is noticed", target)
			}
		}
	}
}

// Nothing else is reached, by any way, with any of the builds and users.
func TestAttackReachesNothingElse(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, ip6 := a.forbidden()
	for _, tt := range []struct {
		build string
		flags []string
	}{
		{"dynamic", nil},
		{"static", []string{"-u", "65534:65534"}},
	} {
		t.Run(tt.build, func(t *testing.T) {
			flags := append(minimal(), tt.flags...)
			succeed(t, a.attack(tt.build, flags, append([]string{"reach", allowed4.String()}, ip4...)...))
			succeed(t, a.attack(tt.build, flags, append([]string{"reach", allowed6.String()}, ip6...)...))
			succeed(t, a.attack(tt.build, flags, append([]string{"passed"}, append(ip4, ip6...)...)...))
			a.unharmed()
		})
	}
}

// A rule for all addresses does not speak of those that only the host's own
// processes reach.
func TestAttackDefaultRouteLeavesOutTheHost(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	ip4, ip6 := a.forbidden()
	rules := []string{
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
		"--endpoint", "out6 type ipv6 addr :: port dynamic",
		"-e", "0.0.0.0/0=out", "-e", "::/0=out6",
	}
	// What is left are addresses of a wider rule: the host's own, the remote's
	// others and the subnet's broadcast.
	inRule := func(s string) bool {
		for _, addr := range []string{hostAddr4, hostAddr6, remoteAddr4 + ":", remoteAddr6 + "]", otherRemote4, otherRemote6, "198.51.100.255"} {
			if strings.Contains(s, addr) {
				return true
			}
		}
		return false
	}
	ip4, ip6 = slices.DeleteFunc(ip4, inRule), slices.DeleteFunc(ip6, inRule)
	if len(ip4) < 7 || len(ip6) < 6 {
		t.Fatalf("only %v and %v are left", ip4, ip6)
	}
	succeed(t, a.attack("static", rules, append([]string{"reach", allowed4.String()}, ip4...)...))
	succeed(t, a.attack("static", rules, append([]string{"reach", allowed6.String()}, ip6...)...))
	succeed(t, a.attack("static", rules, append([]string{"passed"}, append(ip4, ip6...)...)...))
	a.unharmed()
}

// What changes between the look at a call and the call does not help.
func TestAttackRaces(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	good := allowed4.String()
	secret := fmt.Sprintf("127.0.0.1:%d", secretPort)
	for _, tt := range []struct {
		kind      string
		rounds    int
		good, bad string
	}{
		{"connect", 1500, good, secret},
		{"udp-connect", 3000, good, secret},
		{"fastopen", 1500, good, secret},
		{"sendto", 20000, good, secret},
		{"sendmsg", 20000, good, secret},
		{"dup-connect", 2000, good, secret},
		{"bind", 1500, "0.0.0.0:8000", "0.0.0.0:9091"},
		{"udp-bind", 1500, "0.0.0.0:8000", "0.0.0.0:9091"},
		{"dup-bind", 2000, good, "0.0.0.0:9091"},
		{"dup-listen", 3000, good, secret},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			h := hold(t, a.attack("static", withIngress(), "race", tt.kind, fmt.Sprint(tt.rounds), tt.good, tt.bad), "hold")
			if tt.bad != secret {
				for _, network := range []string{"tcp", "udp"} {
					if a.taken(network, 9091) {
						t.Errorf("the container has the host's %s port 9091", network)
					}
				}
			}
			a.noListeners()
			h.release()
			a.unharmed()
		})
	}
}
