package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Real programs in each way to intercept their calls.

// mode is a way to intercept the calls of programs: flags of tsugiki run.
type mode struct {
	name  string
	flags []string
	// preloaded says that only calls that come by a preloaded library are seen:
	// not those of static and setuid programs, of glibc's resolver, or made by
	// syscall(2). They stay in the container's own namespace.
	preloaded bool
}

// modes are those in which real programs have to work.
var modes = []mode{
	{name: "auto"}, // as who says nothing gets it
	{name: "seccomp", flags: []string{"--mode", "seccomp"}},
	{name: "preload", flags: []string{"--mode", "preload"}, preloaded: true},
}

// both are the containers in which real programs run: their sockets are created on
// the host first, or swapped when they connect.
var both = []variant{variants[0], variants[2]}

// inModes are the variants in all modes. Outside of the soak each mode has one of them: another
// one by the length of the test's name, so that all tests together have all.
func inModes(name string, variants []variant) []variant {
	var all []variant
	for i, m := range modes {
		for j, v := range variants {
			if testkit.Soaking() || (i+j+len(name))%len(variants) == 0 {
				v.name, v.mode = m.name+"-"+v.name, m
				all = append(all, v)
			}
		}
	}
	return all
}

// eachMode is each, in all modes.
func eachMode(t *testing.T, variants []variant, test func(t *testing.T, w *world, v variant)) {
	t.Helper()
	each(t, inModes(t.Name(), variants), test)
}

// ingress are the flags by which ports of a container are the same ports of the
// host.
func ingress(ports ...int) []string {
	var flags []string
	for _, p := range ports {
		flags = append(flags, "--endpoint", fmt.Sprintf("in%d type ipv4 addr %s port %d", p, hostAddr4, p),
			"-i", fmt.Sprintf("0.0.0.0:%d=in%d", p, p))
	}
	return flags
}

// openDir is a folder that goes with the test, and into which other users can
// look, unlike testing's.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(tmpDir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // as is tmpDir, at last
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// program prepares a program in a container, which may listen on some ports.
func (v variant) program(t *testing.T, w *world, ports []int, line ...string) *testkit.Cmd {
	t.Helper()
	return v.run(t, w, slices.Concat(ingress(ports...), []string{"--"}, line)...)
}

// server is program for one that serves TCP on the port.
func (v variant) server(t *testing.T, w *world, number int, line ...string) *server {
	t.Helper()
	return serve(t, v.program(t, w, []int{number}, line...), port{w.h, "tcp", uint16(number)})
}

// client is program for one that has to succeed, and returns what it printed.
func (v variant) client(t *testing.T, w *world, line ...string) string {
	t.Helper()
	return succeed(t, v.program(t, w, nil, line...))
}

// remoteServer starts a program on the remote that serves TCP on the port.
func (w *world) remoteServer(t *testing.T, number int, line ...string) *server {
	t.Helper()
	return serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "tcp", uint16(number)})
}
