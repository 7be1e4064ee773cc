package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

// The host's link and its neighbour, of which a container must not be told.
const (
	hostLink      = "srv"
	neighbourAddr = "198.51.100.77"
)

// interfacesAttack are the attack's arguments.
var interfacesAttack = []string{
	"interfaces", hostLink, neighbourAddr,
	fmt.Sprintf("%s:%d", remoteAddr4, observerPort), fmt.Sprintf("[%s]:%d", remoteAddr6, observerPort),
}

func addNeighbour(t *testing.T, host *testkit.Namespace) {
	t.Helper()
	succeed(t, command(t, host, "ip", "neigh", "replace", neighbourAddr, "lladdr", "02:00:5e:00:53:01", "dev", hostLink, "nud", "permanent"))
}

// checkNotTold checks that host sockets have told of the container's own interfaces,
// which are listed as "NAME ADDRESS", and of nothing else.
func checkNotTold(t *testing.T, out string, own []string) {
	t.Helper()
	for _, kind := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		found := map[string][]string{}
		for step, results := range steps(out) {
			if name, ok := strings.CutPrefix(step, kind+" "); ok {
				found[name] = results
			}
		}
		if len(found) < 40 {
			t.Errorf("%s: only %d steps were tried:\n%s", kind, len(found), out)
		}
		for name, results := range found {
			want := []string{"ENODEV", "ENOTTY", "EOPNOTSUPP", "ENXIO"} // some are no requests of IPv6's
			switch {
			case name == "elsewhere":
				want = []string{"yes"}
			case name == "listed":
				want = own
			case strings.Contains(name, "SIOCGIFCONF"):
				want = []string{"ok", "ENOSYS"} // no i386
			case strings.HasPrefix(name, "x32"), strings.HasPrefix(name, "i386"):
				want = append(want, "ENOSYS")
			case strings.Contains(name, "SIOCGIFHWADDR"):
				want = []string{"ENODEV"}
			}
			for _, got := range results {
				if !slices.Contains(want, got) {
					t.Errorf("%s %s: %s, want one of %v", kind, name, got, want)
				}
			}
		}
		for _, want := range own {
			if !slices.Contains(found["listed"], want) {
				t.Errorf("%s: %s is not listed but %v", kind, want, found["listed"])
			}
		}
	}
}

// resolversAddr is the second address of a loopback that is all a container has: getaddrinfo(3)
// asks for it.
var resolversAddr = []string{"lo 192.0.0.8"}

// ownInterfaces are those of the variant's container.
func (v variant) ownInterfaces() []string {
	own := []string{"lo 127.0.0.1"}
	if v.bridge {
		return append(own, "eth0 "+testkit.ContainerAddr4(0).String())
	}
	return append(own, resolversAddr...)
}

// By a host socket, a program of any ABI is told of its container's own interfaces, and
// of no address, device or neighbour of the host's. A process of the host is told of
// these by the same calls.
func TestAttackInterfaces(t *testing.T) {
	t.Parallel()
	each(t, variants, func(t *testing.T, w *world, v variant) {
		addNeighbour(t, w.h)
		bare := steps(succeed(t, command(t, w.h, attackProgram(t, "static"), interfacesAttack...)))
		for _, step := range []string{"udp4 SIOCGIFADDR", "udp4 SIOCGIFHWADDR", "udp4 ETHTOOL_GDRVINFO", "udp6 ETHTOOL_GPERMADDR"} {
			if !slices.Equal(bare[step], []string{"ok"}) {
				t.Errorf("on the host: %s: %v", step, bare[step])
			}
		}
		if !slices.Contains(bare["udp4 SIOCGARP"], "ok") || !slices.Contains(bare["tcp4 listed"], hostLink+" "+hostAddr4) {
			t.Errorf("on the host: SIOCGARP: %v, listed: %v", bare["udp4 SIOCGARP"], bare["tcp4 listed"])
		}
		for user, flags := range users {
			t.Run(user, func(t *testing.T) {
				args := slices.Concat(flags, []string{"--", attackProgram(t, "static")}, interfacesAttack)
				checkNotTold(t, succeed(t, v.run(t, w, args...)), v.ownInterfaces())
			})
		}
	})
}

// A thread that puts a host socket under the number of a pipe, or of a socket of the
// container's own, while a call waits for its answer, is told nothing either.
func TestAttackFlippedInterfaces(t *testing.T) {
	t.Parallel()
	const flips = 2000
	each(t, variants, func(t *testing.T, w *world, v variant) {
		for user, flags := range users {
			for _, own := range []string{"pipe", "socket"} {
				t.Run(user+"-"+own, func(t *testing.T) {
					args := append(slices.Clone(flags), "--", attackProgram(t, "static"),
						"interfaces-flip", hostLink, fmt.Sprintf("%s:%d", remoteAddr4, observerPort), fmt.Sprint(flips), own)
					out := succeed(t, v.run(t, w, args...))
					if want := "elsewhere: yes\nsocket: seen\nother: seen\ntold: nothing\n"; out != want {
						t.Errorf("got:\n%swant:\n%s", out, want)
					}
				})
			}
		}
	})
}

// The same in containers of an engine, whose profile ours is composed with.
func TestAttackInterfacesOfEngines(t *testing.T) {
	t.Parallel()
	for _, c := range []engineCase{{engine: "docker", none: true}, {engine: "docker"}} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c)
			addNeighbour(t, n.h)
			for _, user := range []string{"0", "65534"} {
				name := "user" + user
				n.run(t, engines.Container{
					Name: name, Runtime: "tsugiki", None: n.none,
					Annotations: map[string]string{"tsugiki.dev/egress": "0.0.0.0/0=" + sourceAddr4 + ", ::/0=" + hostAddr6},
					Flags:       []string{"--user", user, "--volume", attackProgram(t, "static") + ":/attack:ro"},
				})
				own, second := []string{"lo 127.0.0.1"}, resolversAddr
				if !n.none {
					ip, err := n.IP(name)
					if err != nil {
						t.Fatal(err)
					}
					own, second = append(own, "eth0 "+ip), nil
				}
				checkNotTold(t, n.exec(t, name, append([]string{"/attack"}, interfacesAttack...)...), slices.Concat(own, second))
				list := n.exec(t, name, "ifconfig", "-a")
				for _, want := range own {
					if !strings.Contains(list, strings.Fields(want)[1]) {
						t.Errorf("ifconfig does not list %s:\n%s", want, list)
					}
				}
				if strings.Contains(list, hostAddr4) || strings.Contains(list, hostLink+" ") {
					t.Errorf("ifconfig lists the host's:\n%s", list)
				}
				n.remove(t, name)
			}
		})
	}
}

// Programs are told of the container's own interfaces what they are told without being
// grafted, whatever they ask; so is who has a tap device.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "python3")
	each(t, variants[1:], func(t *testing.T, w *world, v variant) {
		const neighbour = "10.88.0.77"
		succeed(t, command(t, w.c1, "ip", "neigh", "replace", neighbour, "lladdr", "02:00:5e:00:53:02", "dev", "eth0", "nud", "permanent"))
		tap := "" // where the machine has no such devices
		if try(t, command(t, w.c1, "ip", "tuntap", "add", "dev", "tap9", "mode", "tap", "user", "0")).err == nil {
			tap = "tap9"
			defer succeed(t, command(t, w.c1, "ip", "link", "del", "tap9"))
		}
		args := []string{"python3", "testdata/interfaces.py", neighbour, tap, "lo", "eth0", "nil0"}
		// Without the capability that no grafted program has.
		bare := succeed(t, command(t, w.c1, "setpriv", append([]string{"--bounding-set=-net_admin", "--inh-caps=-net_admin"}, args...)...))
		if strings.Count(bare, "\n") < 200 {
			t.Fatalf("the program has printed only:\n%s", bare)
		}
		if diff := cmp.Diff(bare, succeed(t, v.run(t, w, append([]string{"--"}, args...)...))); diff != "" {
			t.Errorf("-bare +grafted:\n%s", diff)
		}
	})
}
