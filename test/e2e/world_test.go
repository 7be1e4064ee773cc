package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Addresses besides those of testkit.
const (
	// The host's: endpoints have them, so that a source address that the
	// host would choose by itself is told from the one that they say.
	sourceAddr4 = "198.51.100.9"
	sourceAddr6 = "2001:db8:1::9"
	// The host's and the remote's, for which the rules of remoteOnly are not.
	otherHostAddr4   = "203.0.113.1"
	otherRemoteAddr4 = "203.0.113.2"
)

var (
	hostAddr4   = testkit.HostAddr4.String()
	hostAddr6   = testkit.HostAddr6.String()
	remoteAddr4 = testkit.RemoteAddr4.String()
	remoteAddr6 = testkit.RemoteAddr6.String()
)

// world is a topology with one container and what these tests add to it.
type world struct {
	*testkit.Topology
	h, srv, c1 *testkit.Namespace
}

func newWorld(t *testing.T) *world {
	t.Helper()
	top := testkit.Build(t, testkit.Options{Containers: 1})
	w := &world{top, top.Host, top.Remote, top.Containers[0]}
	addAddr(t, w.h, sourceAddr4+"/24", "srv")
	addAddr(t, w.h, sourceAddr6+"/64", "srv")
	addAddr(t, w.h, otherHostAddr4+"/24", "srv")
	addAddr(t, w.srv, otherRemoteAddr4+"/24", "h")
	return w
}

func addAddr(t *testing.T, ns *testkit.Namespace, addr, link string) {
	t.Helper()
	// Not preferred: only who asks for it has it as a source.
	args := []string{"addr", "add", addr, "dev", link, "preferred_lft", "0"}
	if strings.Contains(addr, ":") {
		args = append(args, "nodad")
	}
	succeed(t, command(t, ns, "ip", args...))
}

// prefer has the host's routes choose the address that the variants' rules leave from. A container
// with a network of its own has its loopback on the host then.
func (w *world) prefer(t *testing.T) {
	t.Helper()
	succeed(t, command(t, w.h, "ip", "route", "change", "198.51.100.0/24", "dev", "srv", "src", sourceAddr4))
	succeed(t, command(t, w.h, "ip", "route", "add", "default", "via", remoteAddr4, "src", sourceAddr4))
	succeed(t, command(t, w.h, "ip", "-6", "route", "add", "default", "via", remoteAddr6, "src", sourceAddr6))
	succeed(t, command(t, w.h, "ip", "-6", "route", "add", "2001:db8:1::/64", "dev", "srv", "src", sourceAddr6, "metric", "1"))
}

// variant is a kind of container and of egress rules for it, which decides how
// its sockets get to the host's side.
type variant struct {
	name   string
	bridge bool // else a namespace of its own that has only a loopback
	egress []string
	mode   mode
}

var (
	everything = []string{"-e", "0.0.0.0/0=out", "-e", "::/0=out6"}
	remoteOnly = []string{"-e", "198.51.100.0/24=out", "-e", "2001:db8:1::/64=out6"}
)

var variants = []variant{
	{name: "new", egress: everything},                       // created there, with the loopback
	{name: "bridge", bridge: true, egress: everything},      // likewise, with a way around
	{name: "bridge-part", bridge: true, egress: remoteOnly}, // swapped when they connect
}

// serving are those in which a server has to work: also where there is no rule
// for what it connects to.
var serving = append(slices.Clone(variants),
	variant{name: "new-ingress"},
	variant{name: "bridge-ingress", bridge: true},
)

// run prepares a program in a container of the variant. What comes before "--"
// in args are flags of tsugiki.
func (v variant) run(t *testing.T, w *world, args ...string) *testkit.Cmd {
	t.Helper()
	return graft(t, w.h, append(v.flags(w), args...)...)
}

func (v variant) flags(w *world) []string {
	netns := "new"
	if v.bridge {
		netns = w.c1.Path()
	}
	return slices.Concat([]string{
		"--netns", netns,
		"--endpoint", "out type ipv4 addr " + sourceAddr4 + " port dynamic",
		"--endpoint", "out6 type ipv6 addr " + sourceAddr6 + " port dynamic",
	}, v.egress, v.mode.flags)
}

// each runs a test for each variant, in one world.
func each(t *testing.T, variants []variant, test func(t *testing.T, w *world, v variant)) {
	w := newWorld(t)
	w.prefer(t)
	translated := w.countTranslated(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { test(t, w, v) })
	}
	if n := translated(); n != 0 {
		t.Errorf("%d packets of grafted programs went to the remote through the bridge", n)
	}
}

// countTranslated counts what containers send to the remote over the bridge, and
// the host's address translation has to do with: packets that open or accept a TCP
// connection, and all that are not TCP. A connection's last packets may come long
// after its programs have ended.
func (w *world) countTranslated(t *testing.T) func() int {
	t.Helper()
	const table = `table ip count {
	counter bridged { }
	chain arrives {
		type filter hook prerouting priority raw
		ip saddr 10.88.0.0/24 ip daddr 198.51.100.0/24 meta l4proto != tcp counter name bridged
		ip saddr 10.88.0.0/24 ip daddr 198.51.100.0/24 tcp flags & syn == syn counter name bridged
	}
}
`
	nft := command(t, w.h, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(table)
	succeed(t, nft)
	packets := regexp.MustCompile(`packets (\d+)`)
	return func() int {
		t.Helper()
		out := succeed(t, command(t, w.h, "nft", "list", "counter", "ip", "count", "bridged"))
		found := packets.FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("no packet count in:\n%s", out)
		}
		n, _ := strconv.Atoi(found[1])
		return n
	}
}

// observer is an HTTP and UDP server of the test's own process, which notes
// who asked it. It answers with the address, as testdata/serve does.
type observer struct {
	mu   sync.Mutex
	seen []string // addresses without ports
}

const observerPort = 7070

// observe starts an observer in a namespace, on all of its addresses.
func observe(t *testing.T, ns *testkit.Namespace) *observer {
	t.Helper()
	o := &observer{}
	addr := fmt.Sprintf("[::]:%d", observerPort)
	var l net.Listener
	var p net.PacketConn
	listenAgain(t, ns, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	listenAgain(t, ns, func() (err error) {
		p, err = net.ListenPacket("udp", addr)
		return err
	})
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, o.note(r.RemoteAddr))
	})}
	go s.Serve(l) // until Close
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := p.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			_, _ = p.WriteTo([]byte(o.note(from.String())+"\n"), from)
		}
	}()
	t.Cleanup(func() {
		s.Close()
		p.Close()
	})
	return o
}

// listenAgain listens at a port that this process has just let go of. Programs that other tests
// start have copies of its sockets until they are executed.
func listenAgain(t *testing.T, ns *testkit.Namespace, listen func() error) {
	t.Helper()
	testkit.Eventually(t, func() error {
		err := ns.Do(listen)
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
		return err
	})
}

func (o *observer) note(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, host)
	return host
}

// take returns who has asked since the last call.
func (o *observer) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := o.seen
	o.seen = nil
	return seen
}

// buildPrograms builds the programs of testdata, static, once.
var buildPrograms = sync.OnceValues(func() (string, error) {
	return built("bin", func(dir string) error {
		build := exec.Command("go", "build", "-o", dir+"/", "./testdata/serve", "./testdata/fetch", "./testdata/obey")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build test programs: %w\n%s", err, out)
		}
		return nil
	})
})

// static is the path of a static program of testdata.
func static(t *testing.T, name string) string {
	t.Helper()
	dir, err := buildPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// python is the system's interpreter, where there is one: what a version
// manager puts before it in PATH is a script, which other users cannot read.
func python(t *testing.T) string {
	t.Helper()
	const system = "/usr/bin/python3"
	if _, err := os.Stat(system); err == nil {
		return system
	}
	return testkit.Program(t, "python3")
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
