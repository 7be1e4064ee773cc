package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Endpoints that come and go while a program runs.

// obedient is a container whose program does what it is told.
type obedient struct {
	*held
	w            *world
	name, runDir string
}

func (w *world) obey(t *testing.T, runDir string, flags ...string) *obedient {
	t.Helper()
	o := &obedient{w: w, name: uniqueName("obey"), runDir: runDir}
	args := append([]string{"run", "--run-dir", runDir, "--name", o.name}, flags...)
	o.held = hold(t, command(t, w.h, tsugiki, append(args, "--", static(t, "obey"))...), "ready")
	return o
}

// do has the program do something and returns what it answers.
func (o *obedient) do(format string, args ...any) string {
	o.t.Helper()
	o.begin(format, args...)
	return o.answer()
}

// begin has the program do something. Its answer is to be read before it is told more.
func (o *obedient) begin(format string, args ...any) {
	o.t.Helper()
	if _, err := fmt.Fprintf(o.stdin, format+"\n", args...); err != nil {
		o.t.Fatal(err)
	}
}

func (o *obedient) answer() string {
	o.t.Helper()
	if !o.lines.Scan() {
		o.t.Fatalf("%s ended: %s", line(o.Cmd), o.stderr)
	}
	return o.lines.Text()
}

func (o *obedient) want(want, format string, args ...any) {
	o.t.Helper()
	if got := o.do(format, args...); got != want {
		o.t.Errorf("%s: %s, want %s", fmt.Sprintf(format, args...), got, want)
	}
}

// graft runs tsugiki graft for the container.
func (o *obedient) graft(args string) string {
	o.t.Helper()
	return succeed(o.t, graftCommand(o.t, o.w, o.runDir, args+" for "+o.name))
}

func graftCommand(t *testing.T, w *world, runDir, args string) *testkit.Cmd {
	t.Helper()
	return command(t, w.h, tsugiki, append([]string{"graft", "--run-dir", runDir}, strings.Fields(args)...)...)
}

func remoteObserver() string { return fmt.Sprintf("%s:%d", remoteAddr4, observerPort) }

func TestEndpointsOfClients(t *testing.T) {
	t.Parallel()
	const otherSource4 = "198.51.100.10"
	w := newWorld(t)
	addAddr(t, w.h, otherSource4+"/24", "srv")
	observe(t, w.srv)
	for _, v := range variants {
		// What the container's own namespace says of the remote.
		own := map[bool]string{false: "ENETUNREACH", true: hostAddr4}[v.bridge]
		t.Run(v.name, func(t *testing.T) {
			o := w.obey(t, t.TempDir(), v.flags(w)...)
			for _, network := range []string{"tcp", "udp"} {
				dial := func(want, name string) {
					t.Helper()
					o.want(want, "dial %s %s %s", name, network, remoteObserver())
				}
				dial(sourceAddr4, "first")
				o.graft("del out")
				o.want(sourceAddr4, "ask first")
				dial(own, "own")
				o.graft("add out type ipv4 addr " + otherSource4 + " port dynamic")
				o.want(sourceAddr4, "ask first")
				dial(otherSource4, "other")
				o.graft("del out")
				dial(own, "own")
				o.graft("add out type ipv4 addr " + sourceAddr4 + " port dynamic")
				dial(sourceAddr4, "again")
				o.want(otherSource4, "ask other")
				o.want(sourceAddr4, "ask first")
			}
			o.release()
		})
	}
}

// asking connects for each line that it reads, and prints who it was to the
// observer, or the name of the error.
const asking = `
import errno, socket, sys
print("ready", flush=True)
for line in sys.stdin:
    try:
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        print(s.makefile().read().split()[-1], flush=True)
        s.close()
    except OSError as e:
        print(errno.errorcode.get(e.errno, e), flush=True)
`

// A program that is linked dynamically may have its calls answered within itself.
func TestEndpointsOfPreloaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	for _, v := range variants {
		own := map[bool]string{false: "ENETUNREACH", true: hostAddr4}[v.bridge]
		for _, mode := range []string{"seccomp", "auto"} {
			t.Run(v.name+"-"+mode, func(t *testing.T) {
				o := &obedient{w: w, name: uniqueName("asking"), runDir: t.TempDir()}
				args := append([]string{"run", "--run-dir", o.runDir, "--name", o.name, "--mode", mode}, v.flags(w)...)
				args = append(args, "--", python(t), "-c", asking, remoteAddr4, fmt.Sprint(observerPort))
				o.held = hold(t, command(t, w.h, tsugiki, args...), "ready")
				for range 3 {
					o.want(sourceAddr4, "connect")
					o.want(sourceAddr4, "connect")
					o.graft("del out")
					o.want(own, "connect")
					o.want(own, "connect")
					o.graft("add out type ipv4 addr " + hostAddr4 + " port dynamic")
					o.want(hostAddr4, "connect")
					o.graft("del out")
					o.graft("add out type ipv4 addr " + sourceAddr4 + " port dynamic")
				}
				o.release()
			})
		}
	}
}

// A socket that is not connected meets the kernel programs with each datagram; or,
// where datagrams are looked at, it goes where its destination has gone.
func TestEndpointsOfDatagrams(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		v       variant
		deleted string // what a send gives without the endpoint
	}{{variants[0], "EPERM"}, {variants[2], hostAddr4}} {
		t.Run(tt.v.name, func(t *testing.T) {
			w := newWorld(t)
			observe(t, w.srv)
			o := w.obey(t, t.TempDir(), tt.v.flags(w)...)
			o.do("open socket")
			for range 3 {
				o.want(sourceAddr4, "send socket %s", remoteObserver())
				o.graft("del out")
				o.want(tt.deleted, "send socket %s", remoteObserver())
				o.graft("add out type ipv4 addr " + sourceAddr4 + " port dynamic")
			}
			o.release()
		})
	}
}

// A rule for the loopback that is no more leaves the container its own.
func TestEndpointsOfLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.h)
	local := fmt.Sprintf("127.0.0.1:%d", observerPort)
	o := w.obey(t, t.TempDir(), "--endpoint", "lo type ipv4 addr 0.0.0.0 port dynamic", "-e", local+"=lo")
	o.want("127.0.0.1", "dial a tcp %s", local)
	o.graft("del lo")
	o.want("ECONNREFUSED", "dial b tcp %s", local)
	o.graft("add lo type ipv4 addr 0.0.0.0 port dynamic")
	o.want("127.0.0.1", "dial c tcp %s", local)
	o.release()
}

func TestEndpointsOfServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fetch := func(url string) string {
		t.Helper()
		r := try(t, command(t, w.srv, static(t, "fetch"), url))
		if r.err != nil {
			return "refused"
		}
		return strings.TrimSpace(r.stdout)
	}
	for _, v := range []variant{{name: "new"}, {name: "bridge", bridge: true}} {
		t.Run(v.name, func(t *testing.T) {
			first, second := "http://"+hostAddr4+":80/", "http://"+sourceAddr4+":81/"
			reached := func(url, want string) {
				t.Helper()
				if got := fetch(url); got != want {
					t.Errorf("%s: %s, want %s", url, got, want)
				}
			}
			o := w.obey(t, t.TempDir(), append(v.flags(w), "--endpoint", "in type ipv4 addr "+hostAddr4+" port 80", "-i", "0.0.0.0:8080=in")...)
			o.want("listens", "listen one 0.0.0.0:8080")
			reached(first, remoteAddr4)
			// It serves on, and so nobody else has the port.
			o.graft("del in")
			reached(first, remoteAddr4)
			o.graft("add in type ipv4 addr " + hostAddr4 + " port 80")
			reached(first, remoteAddr4)
			o.graft("del in")
			o.want("closed", "close one")
			o.want("listens", "listen two 0.0.0.0:8080")
			reached(first, "refused")
			o.want("closed", "close two")
			o.graft("add in type ipv4 addr " + sourceAddr4 + " port 81")
			o.want("listens", "listen three 0.0.0.0:8080")
			reached(first, "refused")
			reached(second, remoteAddr4)
			o.release()
		})
	}
}

// An endpoint's namespace may be another each time, if some rule has led to another from the
// beginning.
func TestEndpointsOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	far, near := observe(t, w.srv), observe(t, w.h)
	local := fmt.Sprintf("127.0.0.1:%d", observerPort)
	here, there := "ep type ipv4 addr 0.0.0.0 port dynamic", "ep type ipv4 addr 0.0.0.0 port dynamic netns "+w.srv.Path()
	o := w.obey(t, t.TempDir(), "--endpoint", here, "-e", local+"=ep", "--endpoint", "far"+strings.TrimPrefix(there, "ep"), "-e", "192.0.2.1=far")
	for i := range 6 {
		o.want("127.0.0.1", "dial x tcp %s", local)
		if n, f := near.take(), far.take(); len(n) != (i+1)%2 || len(f) != i%2 {
			t.Errorf("round %d: here came %v, there %v", i, n, f)
		}
		o.graft("del ep")
		o.graft("add " + []string{there, here}[i%2])
	}
	o.release()
}

// What was opened for endpoints that are gone is closed, but for what sockets of
// the container may be in, which is opened once.
func TestEndpointsLeaveNothingOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	local := fmt.Sprintf("127.0.0.1:%d", observerPort)
	far := "far type ipv4 addr 0.0.0.0 port dynamic netns " + w.srv.Path()
	o := w.obey(t, t.TempDir(), "--endpoint", far, "-e", local+"=far")
	o.want("127.0.0.1", "dial x tcp %s", local)
	o.want("closed", "close x")
	round := func() {
		t.Helper()
		o.graft("del far")
		o.graft("add " + far)
		o.want("127.0.0.1", "dial x tcp %s", local)
		o.want("closed", "close x")
		o.graft("add unused type ipv4 addr 0.0.0.0 port dynamic netns " + w.c1.Path())
		o.graft("del unused")
		try(t, graftCommand(t, w, o.runDir, "add nowhere type ipv4 addr 203.0.113.99 port dynamic netns "+w.c1.Path()))
	}
	round()
	open := func() map[string]string {
		t.Helper()
		files, err := testkit.OpenFiles(o.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	before := open()
	const rounds = 10
	for range rounds {
		round()
	}
	// Fewer may be sockets in advance, one of each kind: a keeper makes some while it is asked for
	// them, and most are closed again when nobody wants them.
	testkit.Eventually(t, func() error {
		if now := open(); len(now) >= len(before)+rounds {
			return fmt.Errorf("%d rounds: the supervisor has open %v, had %v", rounds, now, before)
		}
		return nil
	})
	o.release()
}

// A rule may name a host address. It makes an endpoint, which comes and goes as
// others do.
func TestRulesByAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	observe(t, w.srv)
	flags := []string{
		"-i", "0.0.0.0:80=" + hostAddr4 + ":8080", "-i", "[::]:7081=" + hostAddr6,
		"-e", "0.0.0.0/0=" + sourceAddr4, "-e", "::/0=" + sourceAddr6,
	}
	o := w.obey(t, t.TempDir(), flags...)
	o.want(sourceAddr4, "dial four tcp %s", remoteObserver())
	o.want(sourceAddr6, "dial six tcp [%s]:%d", remoteAddr6, observerPort)
	want := strings.Join([]string{
		"e-1 type ipv4 addr " + sourceAddr4 + " port dynamic", "e-2 type ipv6 addr " + sourceAddr6 + " port dynamic",
		"i-1 type ipv4 addr " + hostAddr4 + " port 8080", "i-2 type ipv6 addr " + hostAddr6 + " port 7081",
	}, "\n") + "\n"
	if got := o.graft("show"); got != want {
		t.Errorf("endpoints:\n%s, want:\n%s", got, want)
	}
	o.graft("del e-1")
	o.want("ENETUNREACH", "dial gone tcp %s", remoteObserver())
	o.graft("add e-1 type ipv4 addr " + hostAddr4 + " port dynamic")
	o.want(hostAddr4, "dial back tcp %s", remoteObserver())
	o.release()

	serve(t, graft(t, w.h, append(flags, "--", static(t, "serve"), "tcp://0.0.0.0:80", "udp://0.0.0.0:80", "tcp://[::]:7081")...),
		port{w.h, "tcp", 8080}, port{w.h, "udp", 8080}, port{w.h, "tcp", 7081})
	answers := succeed(t, command(t, w.srv, static(t, "fetch"),
		"http://"+hostAddr4+":8080", "udp://"+hostAddr4+":8080", "http://["+hostAddr6+"]:7081"))
	if want := strings.Join([]string{remoteAddr4, remoteAddr4, remoteAddr6}, "\n") + "\n"; answers != want {
		t.Errorf("clients are %q, want %q", answers, want)
	}
}
