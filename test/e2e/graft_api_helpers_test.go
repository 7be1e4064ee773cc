package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// apiModes are the ways of interception that programs written for AF_GRAFT are
// run with.
var apiModes = []string{"seccomp", "auto", "preload"}

// apiBuilds are the ways in which the test program is linked.
var apiBuilds = []string{"dynamic", "static"}

// installTree puts tsugiki below a directory, as a package would, and returns it.
var installTree = sync.OnceValues(func() (string, error) {
	root, err := testkit.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(tmpDir, "installed")
	out, err := exec.Command("make", "-s", "-C", root, "install", "DESTDIR="+dir, "PREFIX=/usr", "BIN="+filepath.Dir(tsugiki)).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make install: %w\n%s", err, out)
	}
	return dir, nil
})

// apiFlags are what pkg-config says of an installed tree.
var apiFlags = sync.OnceValues(func() ([]string, error) {
	dir, err := installTree()
	if err != nil {
		return nil, err
	}
	c := exec.Command("pkg-config", "--cflags", "tsugiki-graft")
	// Without the first, it leaves out what compilers look into anyway.
	c.Env = append(os.Environ(), "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1",
		"PKG_CONFIG_SYSROOT_DIR="+dir, "PKG_CONFIG_PATH="+filepath.Join(dir, "usr/share/pkgconfig"))
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("pkg-config: %w", err)
	}
	return strings.Fields(string(out)), nil
})

var buildMu sync.Mutex

// buildC builds a C program for AF_GRAFT, "static" or "dynamic", if it has not been
// built yet, and returns its path.
func buildC(t *testing.T, build, source string) string {
	t.Helper()
	testkit.Program(t, "gcc")
	testkit.Program(t, "pkg-config")
	flags, err := apiFlags()
	if err != nil {
		t.Fatal(err)
	}
	buildMu.Lock()
	defer buildMu.Unlock()
	path := filepath.Join(tmpDir, strings.TrimSuffix(filepath.Base(source), ".c")+"-"+build)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, source}, flags...)
	if build == "static" {
		args = append(args, "-static")
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", source, err, out)
	}
	return path
}

// The ports of endpoints that serve.
const (
	apiPort      = 8001
	apiOtherPort = 8002
)

// apiEndpoints are those that programs name, and no rule.
var apiEndpoints = []string{
	"--endpoint", fmt.Sprintf("in4 type ipv4 addr %s port %d nameable", hostAddr4, apiPort),
	"--endpoint", fmt.Sprintf("in6 type ipv6 addr %s port %d nameable", hostAddr6, apiPort),
	"--endpoint", fmt.Sprintf("range type ipv4 addr %s port %d-%d nameable", hostAddr4, apiPort, apiOtherPort),
	"--endpoint", "out4 type ipv4 addr " + sourceAddr4 + " port dynamic nameable",
	"--endpoint", "out6 type ipv6 addr " + sourceAddr6 + " port dynamic nameable",
	"--endpoint", "any4 type ipv4 addr 0.0.0.0 port dynamic nameable",
}

// apiWorld is a world in which a program is run that does what it is told.
type apiWorld struct {
	*world
	build, mode string
}

func eachAPI(t *testing.T, test func(t *testing.T, w apiWorld)) {
	t.Helper()
	w := newWorld(t)
	for _, mode := range apiModes {
		for _, build := range apiBuilds {
			if mode == "preload" && build == "static" {
				continue // which no library sees
			}
			t.Run(mode+"-"+build, func(t *testing.T) { test(t, apiWorld{w, build, mode}) })
		}
	}
}

// steps prepares the program with its steps. FLAGS are tsugiki's.
func (w apiWorld) steps(t *testing.T, flags []string, steps ...string) *testkit.Cmd {
	t.Helper()
	args := append([]string{"--mode", w.mode}, flags...)
	args = append(args, "--", buildC(t, w.build, "testdata/api/api.c"))
	return graft(t, w.h, append(args, steps...)...)
}

// check runs steps of which each has its result behind an arrow.
func (w apiWorld) check(t *testing.T, flags []string, steps ...string) {
	t.Helper()
	do, want := splitSteps(steps)
	compare(t, want, strings.Split(strings.TrimSpace(succeed(t, w.steps(t, flags, do...))), "\n"))
}

// splitSteps takes steps and the lines apart that they have to print.
func splitSteps(steps []string) (do, want []string) {
	for _, s := range steps {
		step, result, _ := strings.Cut(s, " -> ")
		do = append(do, step)
		want = append(want, step+": "+result)
	}
	return do, want
}

// compare compares lines. The word PORT in one that is wanted is any but 0.
func compare(t *testing.T, want, got []string) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		w, g := "nothing", "nothing"
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(w), " PORT", " [1-9][0-9]*") + "$"
		if !regexp.MustCompile(pattern).MatchString(g) {
			t.Errorf("step %d printed %q, want %q, in\n%s", i+1, g, w, strings.Join(got, "\n"))
			return
		}
	}
}

// serving runs steps up to one that is printed so, lets fn talk to them, and
// compares what all have printed. As in hold, standard input is closed then.
func (w apiWorld) serving(t *testing.T, flags []string, until string, fn func(), steps ...string) {
	t.Helper()
	do, want := splitSteps(steps)
	h := hold(t, w.steps(t, flags, do...), until)
	fn()
	compare(t, want, h.release())
}

// dial connects from a namespace.
func dial(t *testing.T, ns *testkit.Namespace, network, to string) net.Conn {
	t.Helper()
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout(network, to, testkit.Patience)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// hears fails the test if what a peer sends, until it ends, is something else.
func hears(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got, err := io.ReadAll(io.LimitReader(c, int64(len(want))))
	if err != nil || string(got) != want {
		t.Errorf("the peer says %q, %v; want %q", got, err, want)
	}
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Error(err)
	}
}

// named adds flags to those of apiEndpoints.
func named(flags ...string) []string { return append(slices.Clone(apiEndpoints), flags...) }

// greet starts a TCP server in a namespace that tells all who they are.
func greet(t *testing.T, ns *testkit.Namespace) {
	t.Helper()
	var l net.Listener
	listenAgain(t, ns, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", greetPort))
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, host)
			_ = c.Close()
		}
	}()
}

const greetPort = 7071
