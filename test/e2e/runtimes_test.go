package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Runtimes that have an event loop of their own, see testdata/runtimes.

const runtimePort = 8000

// netProgram serves as testdata/serve does, and fetches as testdata/fetch.
type netProgram struct {
	name string
	// serve is followed by what address returns, fetch by URLs.
	serve, fetch []string
	address      string // of the port to serve, "" for the number alone
	udp          bool
	static       bool
	mapped       bool // sees the addresses of IPv4 as those of IPv6
}

func netPrograms(t *testing.T) []netProgram {
	t.Helper()
	const dir = "testdata/runtimes/"
	node := func(what string) []string { return []string{"node", dir + "net.js", what} }
	loop := func(kind, what string) []string { return []string{python(t), dir + "net.py", kind, what} }
	java := func(what string) []string {
		// One that stays small: there may be several on two processors.
		return []string{"java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", javaClasses(t), "Net", what}
	}
	tokio := tokioProgram(t)
	return []netProgram{
		{name: "node", serve: node("serve"), fetch: node("fetch"), mapped: true},
		{name: "node-cluster", serve: node("cluster"), mapped: true},
		{name: "java", serve: java("serve"), fetch: java("fetch"), udp: true},
		{name: "asyncio", serve: loop("asyncio", "serve"), fetch: loop("asyncio", "fetch"), udp: true},
		{name: "uvloop", serve: loop("uvloop", "serve"), fetch: loop("uvloop", "fetch"), udp: true},
		{name: "tokio-musl", serve: []string{tokio, "serve"}, fetch: []string{tokio, "fetch"}, address: "0.0.0.0:", udp: true, static: true},
	}
}

func TestRuntimeServer(t *testing.T) {
	t.Parallel()
	programs := netPrograms(t)
	fetch := static(t, "fetch")
	all := inModes(t.Name(), both)
	picked := cover(all, len(programs), func(v variant, i int) bool { return !programs[i].static || !v.mode.preloaded }) // see TestForms
	each(t, all, func(t *testing.T, w *world, v variant) {
		for i, p := range programs {
			if !picked(v, i) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				testkit.Program(t, p.serve[0])
				s := v.server(t, w, runtimePort, append(slices.Clone(p.serve), fmt.Sprint(p.address, runtimePort))...)
				want := remoteAddr4 + "\n"
				if p.mapped {
					want = "::ffff:" + want
				}
				base := fmt.Sprintf("%s:%d", hostAddr4, runtimePort)
				if body := curl(t, w.srv, "http://"+base, "http://"+base); body != want+want {
					t.Errorf("answered %q, want %q twice", body, want)
				}
				checkAB(t, succeed(t, command(t, w.srv, "ab", "-q", "-n", fmt.Sprint(abRequests), "-c", "8", "http://"+base+"/")))
				if p.udp {
					// Its socket is connected: it takes answers from there only.
					if got := succeed(t, command(t, w.srv, fetch, "udp://"+base, "udp://"+base)); got != want+want {
						t.Errorf("answered %q over UDP, want %q twice", got, want)
					}
				}
				if out := s.output.String(); out != "" {
					t.Errorf("printed:\n%s", out)
				}
			})
		}
	})
}

func TestRuntimeClient(t *testing.T) {
	t.Parallel()
	programs := slices.DeleteFunc(netPrograms(t), func(p netProgram) bool { return p.fetch == nil })
	all := inModes(t.Name(), both)
	picked := cover(all, len(programs), func(v variant, i int) bool { return !programs[i].static || !v.mode.preloaded })
	each(t, all, func(t *testing.T, w *world, v variant) {
		o := observe(t, w.srv)
		for i, p := range programs {
			if !picked(v, i) {
				continue
			}
			schemes := []string{"http"}
			if p.udp {
				schemes = append(schemes, "udp")
			}
			for _, scheme := range schemes {
				t.Run(p.name+"-"+scheme, func(t *testing.T) {
					testkit.Program(t, p.fetch[0])
					urls := observerURLs(scheme)
					line := slices.Concat(p.fetch, urls, urls)
					r := try(t, v.program(t, w, nil, line...))
					want := strings.Repeat(sourceAddr4+"\n"+sourceAddr6+"\n", 2)
					if r.err != nil || r.stdout != want || r.stderr != "" {
						t.Errorf("%v, printed %q, want %q; standard error:\n%s", r.err, r.stdout, want, r.stderr)
					}
					for _, seen := range o.take() {
						if seen != sourceAddr4 && seen != sourceAddr6 {
							t.Errorf("the remote saw %q", seen)
						}
					}
				})
			}
		}
	})
}

// observerURLs are those of the observer for a program that has a rule.
func observerURLs(scheme string) []string {
	return []string{
		fmt.Sprintf("%s://%s:%d", scheme, remoteAddr4, observerPort),
		fmt.Sprintf("%s://[%s]:%d", scheme, remoteAddr6, observerPort),
	}
}

var compileJava = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(tmpDir, "java")
	if out, err := exec.Command("javac", "-d", dir, "testdata/runtimes/Net.java").CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile Net.java: %w\n%s", err, out)
	}
	return dir, nil
})

// javaClasses is where the class of testdata/runtimes/Net.java is.
func javaClasses(t *testing.T) string {
	t.Helper()
	testkit.Program(t, "javac")
	dir, err := compileJava()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// buildTokio builds testdata/tokio. The result is kept: it takes a minute.
var buildTokio = sync.OnceValues(func() (string, error) {
	root, err := testkit.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "tokio")
	if out, err := exec.Command("testdata/tokio/build.sh", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build testdata/tokio: %w\n%s", err, out)
	}
	// Where other users can read it.
	program := filepath.Join(tmpDir, "tokio-net")
	content, err := os.ReadFile(filepath.Join(dir, "tokio-net"))
	if err != nil {
		return "", err
	}
	return program, testkit.WriteExecutable(program, content, 0o755)
})

// tokioProgram is the path of testdata/tokio, and is static, with musl.
func tokioProgram(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/cargo"); err != nil {
		t.Skip("skip: needs the program /usr/bin/cargo")
	}
	path, err := buildTokio()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("readelf", "--program-headers", path).CombinedOutput(); err != nil || strings.Contains(string(out), "INTERP") {
		t.Fatalf("%s is not static (%v):\n%s", path, err, out)
	}
	return path
}
