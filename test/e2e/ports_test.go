package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A port of the host that one container has, or was promised, is no other container's,
// whatever the rules of that one lead to it and whatever its sockets share.

// sharedPorts is a range that the rules of several containers name.
const sharedPorts = "8000-8100"

// sharing are the rules for it.
func sharing() []string {
	return []string{
		"--endpoint", "in type ipv4 addr " + hostAddr4 + " port dynamic", "-i", "0.0.0.0:" + sharedPorts + "=in",
		"--endpoint", "in6 type ipv6 addr " + hostAddr6 + " port dynamic", "-i", "[::]:" + sharedPorts + "=in6",
	}
}

// binder starts a container with the program of testdata/ports.py, which answers with its
// name.
func binder(t *testing.T, run func(args ...string) *testkit.Cmd, name string, flags []string) *obedient {
	t.Helper()
	code, err := os.ReadFile("testdata/ports.py")
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{"--name", name}, flags, []string{"--", python(t), "-c", string(code), name})
	return &obedient{held: hold(t, run(args...), "ready"), name: name}
}

// sharedCase is a kind of socket that the kernel lets share its port.
type sharedCase struct {
	network, flags string
	host           string // where the endpoint is
	port           int
}

func (c sharedCase) String() string { return fmt.Sprintf("%s %s %s", c.network, c.host, c.flags) }

// any is the address that programs bind.
func (c sharedCase) any() string {
	if strings.Contains(c.host, ":") {
		return "::"
	}
	return "0.0.0.0"
}

func (c sharedCase) bind(o *obedient, name, want string) {
	o.t.Helper()
	if want == "ok" {
		want = fmt.Sprintf("ok %d", c.port)
	}
	o.want(want, "bind %s-%d %s %s %d %s", name, c.port, c.network, c.any(), c.port, c.flags)
}

func (c sharedCase) close(o *obedient, name string) {
	o.t.Helper()
	o.want("ok 0", "close %s-%d", name, c.port)
}

// waitFree waits until the connections of those who have closed the port have ended.
func (c sharedCase) waitFree(t *testing.T, ns *testkit.Namespace) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := ns.WaitFree(ctx, c.network, uint16(c.port)); err != nil {
		t.Fatal(err)
	}
}

// answers asks at the port again and again, as the kernel divides connections, and
// datagrams, among those who share it. All answers have to be of one.
func (c sharedCase) answers(t *testing.T, ns *testkit.Namespace, want string) {
	t.Helper()
	for range 30 {
		if got := answerAt(t, ns, c.network, net.JoinHostPort(c.host, fmt.Sprint(c.port))); got != want {
			t.Errorf("%s: %q answers, want %s", c, got, want)
			return
		}
	}
}

func answerAt(t *testing.T, ns *testkit.Namespace, network, at string) string {
	t.Helper()
	buf := make([]byte, 64)
	var n int
	err := ns.Do(func() error {
		conn, err := net.DialTimeout(network, at, testkit.Patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := conn.Write([]byte("who?")); err != nil {
				return err
			}
		}
		n, err = conn.Read(buf)
		return err
	})
	if err != nil {
		t.Errorf("%s %s: %v", network, at, err)
	}
	return strings.TrimSpace(string(buf[:n]))
}

// sharedCases are those of both families, each at a port of its own.
func sharedCases() (list []sharedCase) {
	for _, host := range []string{hostAddr4, hostAddr6} {
		for _, s := range []struct{ network, flags string }{
			{"tcp", "reuseport"},
			{"tcp", "reuseport reuseaddr"},
			{"tcp", "reuseaddr"},
			{"udp", "reuseport"},
			{"udp", "reuseaddr"},
			{"udp", "reuseport reuseaddr"},
		} {
			flags := s.flags
			if host == hostAddr6 {
				flags += " v6only"
			}
			list = append(list, sharedCase{s.network, flags, host, 8000 + len(list)})
		}
	}
	return list
}

// sharesWithItself tells whether the kernel lets two such sockets of one container be in
// use at the same port.
func (c sharedCase) sharesWithItself() bool {
	return c.network == "udp" || strings.Contains(c.flags, "reuseport")
}

var portUsers = []struct {
	name  string
	flags []string
}{{"root", nil}, {"nobody", []string{"--user", "nobody"}}}

func TestPortsAreNotShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	for _, u := range portUsers {
		t.Run(u.name, func(t *testing.T) {
			one := binder(t, d.graft, "one", append(sharing(), u.flags...))
			two := binder(t, d.graft, "two", append(sharing(), u.flags...))
			for _, c := range sharedCases() {
				t.Run(c.String(), func(t *testing.T) { c.passesOn(t, w, one, two) })
			}
			one.release()
			two.release()
		})
	}
}

// passesOn has one container have the port, and then the other.
func (c sharedCase) passesOn(t *testing.T, w *world, one, two *obedient) {
	c.bind(one, "a", "ok")
	c.answers(t, w.srv, "one")
	c.bind(two, "a", "EADDRINUSE")
	if c.sharesWithItself() {
		c.bind(one, "b", "ok")
		c.bind(two, "a", "EADDRINUSE")
		c.close(one, "b")
	}
	c.answers(t, w.srv, "one")
	c.close(one, "a")
	c.waitFree(t, w.h)
	c.bind(two, "a", "ok")
	c.answers(t, w.srv, "two")
	c.bind(one, "a", "EADDRINUSE")
	c.answers(t, w.srv, "two")
	c.close(two, "a")
}

// The next agent knows what containers have.
func TestPortsAreNotSharedAfterRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	for _, u := range portUsers {
		t.Run(u.name, func(t *testing.T) {
			one := binder(t, d.graft, "one", append(sharing(), u.flags...))
			two := binder(t, d.graft, "two", append(sharing(), u.flags...))
			for _, c := range sharedCases() { // two has had all of them, and one has them
				c.bind(two, "a", "ok")
				c.close(two, "a")
				c.bind(one, "a", "ok")
			}
			d.kill()
			d.start()
			for _, c := range sharedCases() {
				if c.sharesWithItself() {
					c.bind(one, "b", "ok")
					c.close(one, "b")
				}
				c.bind(two, "a", "EADDRINUSE")
				c.answers(t, w.srv, "one")
				c.close(one, "a")
				c.waitFree(t, w.h)
				c.bind(two, "a", "ok")
				c.answers(t, w.srv, "two")
			}
			one.release()
			two.release()
		})
	}
}

// Two containers that know nothing of each other are no one's.
func TestPortsAreNotSharedWithoutAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := func(args ...string) *testkit.Cmd {
		return graft(t, w.h, append([]string{"--agent", "none"}, args...)...)
	}
	for _, u := range portUsers {
		t.Run(u.name, func(t *testing.T) {
			one := binder(t, run, uniqueName("one"), append(sharing(), u.flags...))
			two := binder(t, run, uniqueName("two"), append(sharing(), u.flags...))
			for _, c := range sharedCases() {
				c.bind(one, "a", "ok")
				c.bind(two, "a", "EADDRINUSE")
				c.answers(t, w.srv, one.name)
				c.close(one, "a")
				c.waitFree(t, w.h)
				c.bind(two, "a", "ok")
				c.answers(t, w.srv, two.name)
			}
			one.release()
			two.release()
		})
	}
}

// A wildcard has the port of each address, and that of IPv6 those of IPv4.
func TestPortsOfWildcardsAreNotShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	one := binder(t, d.graft, "one", sharing())
	all := binder(t, d.graft, "all", []string{
		"--endpoint", "any type ipv4 addr 0.0.0.0 port dynamic", "-i", "0.0.0.0:" + sharedPorts + "=any",
		"--endpoint", "any6 type ipv6 addr :: port dynamic", "-i", "[::]:" + sharedPorts + "=any6",
	})
	// A listener of both families has the port of either address; datagrams come to one.
	for network, both := range map[string]string{"tcp": "EADDRINUSE", "udp": "ok 8006"} {
		for _, tt := range []struct{ has, asks, want string }{
			{"0.0.0.0 8001 reuseport", "0.0.0.0 8001 reuseport", "EADDRINUSE"},
			{"0.0.0.0 8002 reuseport", ":: 8002 reuseport", "EADDRINUSE"},
			{"0.0.0.0 8003 reuseport", ":: 8003 reuseport v6only", "ok 8003"},
			{":: 8004 reuseport v6only", "0.0.0.0 8004 reuseport", "ok 8004"},
			{":: 8005 reuseport v6only", ":: 8005 reuseport", "EADDRINUSE"},
			{":: 8006 reuseport", "0.0.0.0 8006 reuseport", both},
		} {
			one.do("bind has %s %s", network, tt.has)
			all.want(tt.want, "bind asks %s %s", network, tt.asks)
			if strings.HasPrefix(tt.want, "ok") {
				all.do("close asks")
			}
			one.do("close has")
			// Nothing else is in its way.
			all.want("ok "+strings.Fields(tt.asks)[1], "bind asks %s %s", network, tt.asks)
			all.do("close asks")
		}
	}
	one.release()
	all.release()
}

// The kernel lets two sockets have a port that both set SO_REUSEADDR, as long as neither
// listens. Who binds it last has it.
func TestPortsOfSocketsThatDoNotListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	one, two := binder(t, d.graft, "one", sharing()), binder(t, d.graft, "two", sharing())
	c := sharedCase{"tcp", "reuseport reuseaddr", hostAddr4, 8040}
	one.want("ok 8040", "bind quiet tcp 0.0.0.0 8040 reuseport reuseaddr quiet")
	c.bind(two, "a", "ok")
	one.want("EADDRINUSE", "listen quiet")
	c.answers(t, w.srv, "two")
	one.want("ok 8041", "bind quiet tcp 0.0.0.0 8041 reuseport quiet")
	two.want("EADDRINUSE", "bind b tcp 0.0.0.0 8041 reuseport reuseaddr")
	one.release()
	two.release()
}
