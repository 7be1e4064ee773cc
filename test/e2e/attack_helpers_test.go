package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// What the attacked container may reach, and what it may not.
const (
	allowedPort = 7001
	secretPort  = 7101 // on the host, everywhere
	ingressPort = 8000

	otherRemote4   = "198.51.100.3"
	otherRemote6   = "2001:db8:1::3"
	linkLocal4     = "169.254.7.1"
	otherLinkLocal = "169.254.7.2"
)

var (
	allowed4 = netip.AddrPortFrom(testkit.RemoteAddr4, allowedPort)
	allowed6 = netip.AddrPortFrom(testkit.RemoteAddr6, allowedPort)
)

// buildAttack builds the program of testdata/attack, once.
var buildAttack = sync.OnceValues(func() (string, error) { return buildSources("attack", staticAndDynamic) })

var staticAndDynamic = map[string]string{"dynamic": "-rdynamic", "static": "-static"}

// buildSources builds the C program of a directory of testdata in some ways.
func buildSources(name string, builds map[string]string) (string, error) {
	sources, err := filepath.Glob(filepath.Join("testdata", name, "*.c"))
	if err != nil {
		return "", err
	}
	return built(name, func(dir string) error {
		flags := []string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"}
		for build, extra := range builds {
			args := append(slices.Clone(flags), extra, "-o", filepath.Join(dir, build))
			if out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("build %s: %w\n%s", name, err, out)
			}
		}
		return nil
	})
}

// built returns a directory with programs that build has put there. It is in the directory
// TSUGIKI_PROGRAMS, where later runs find it, or else in tmpDir.
func built(name string, build func(dir string) error) (string, error) {
	dir := filepath.Join(tmpDir, name)
	if kept := os.Getenv("TSUGIKI_PROGRAMS"); kept != "" {
		dir = filepath.Join(kept, name)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, build(dir)
}

// attackProgram is the path of the attack, built "static" or "dynamic".
func attackProgram(t *testing.T, build string) string {
	t.Helper()
	testkit.Program(t, "gcc")
	dir, err := buildAttack()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, build)
}

// minimal are the rules of the attacked container: one address and port of each
// family.
func minimal() []string {
	return []string{
		"--endpoint", "out type ipv4 addr 0.0.0.0 port dynamic",
		"--endpoint", "out6 type ipv6 addr :: port dynamic",
		"-e", fmt.Sprintf("%s/32:%d=out", remoteAddr4, allowedPort),
		"-e", fmt.Sprintf("[%s/128]:%d=out6", remoteAddr6, allowedPort),
	}
}

// withIngress adds a rule by which the container may listen on one port.
func withIngress() []string {
	return append(minimal(),
		"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, ingressPort),
		"-i", fmt.Sprintf("0.0.0.0:%d=in", ingressPort))
}

// attack prepares the attack as a grafted program. What comes before "--" are
// flags of tsugiki.
func (a *arena) attack(build string, flags []string, args ...string) *testkit.Cmd {
	a.t.Helper()
	flags = append(slices.Clone(flags), "--", attackProgram(a.t, build))
	return graft(a.t, a.Host, append(flags, args...)...)
}

// held is an attack that waits to be looked at.
type held struct {
	*testkit.Cmd
	t      *testing.T
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	stderr *syncBuffer
	said   []string
}

// hold starts an attack and waits for a line that it prints.
func hold(t *testing.T, c *testkit.Cmd, until string) *held {
	t.Helper()
	h := &held{Cmd: c, t: t, stderr: &syncBuffer{}}
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.stdin, h.lines, c.Stderr = stdin, bufio.NewScanner(stdout), h.stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = c.Wait() // see release
	})
	h.await(until)
	return h
}

// await reads until a line is printed.
func (h *held) await(until string) {
	h.t.Helper()
	for h.lines.Scan() {
		h.said = append(h.said, h.lines.Text())
		if strings.HasPrefix(h.lines.Text(), until) {
			return
		}
	}
	_ = h.Wait()
	h.t.Fatalf("%s ended before %q: %v\n%s\n%s", line(h.Cmd), until, h.ProcessState, strings.Join(h.said, "\n"), h.stderr)
}

// release lets an attack end and returns all that it printed.
func (h *held) release() []string {
	h.t.Helper()
	_ = h.stdin.Close()
	for h.lines.Scan() {
		h.said = append(h.said, h.lines.Text())
	}
	if err := h.Wait(); err != nil {
		h.t.Errorf("%s: %v\n%s", line(h.Cmd), err, h.stderr)
	}
	checkLog(h.t, h.Cmd, h.stderr.String())
	return h.said
}

// scanLines reads what an attack prints, "step: result" on each line.
func scanLines(r io.Reader, each func(step, result string)) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		i := strings.LastIndex(lines.Text(), ": ")
		if i > 0 {
			each(lines.Text()[:i], lines.Text()[i+2:])
		}
	}
}

// steps are the results that an attack printed, by step; of steps that came more
// than once, all, once each.
func steps(out string) map[string][]string {
	found := map[string][]string{}
	scanLines(strings.NewReader(out), func(step, result string) {
		if !slices.Contains(found[step], result) {
			found[step] = append(found[step], result)
		}
	})
	return found
}
