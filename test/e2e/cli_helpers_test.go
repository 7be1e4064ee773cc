package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	outEndpoint = "out type ipv4 addr 0.0.0.0 port dynamic"
	sixEndpoint = "six type ipv6 addr :: port dynamic"
)

// refusal is a command that must not start a program.
type refusal struct {
	name   string
	args   []string // of tsugiki run; the program follows, unless there is a "--"
	status int
	says   []string // regular expressions: what is wrong, and what to do about it
}

// check runs the command and looks at how it refuses: by its exit status, one
// line on standard error, no program, and nothing left behind.
func (r refusal) check(t *testing.T, host *testkit.Namespace) {
	t.Helper()
	marker := filepath.Join(t.TempDir(), "marker")
	runDir := t.TempDir()
	args := append([]string{"--run-dir", runDir}, r.args...)
	if !slices.Contains(args, "--") {
		args = append(args, "--", "touch", marker)
	}
	got := try(t, command(t, host, tsugiki, append([]string{"run"}, args...)...))
	r.judge(t, got, marker)
	if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
		t.Errorf("left in the run directory: %v %v", left, err)
	}
}

// judge looks at what a command has left.
func (r refusal) judge(t *testing.T, got result, marker string) {
	t.Helper()
	if status := exitStatus(got.err); status != r.status {
		t.Errorf("exit status %d, want %d", status, r.status)
	}
	if got.stdout != "" {
		t.Errorf("standard output: %q", got.stdout)
	}
	if strings.Count(got.stderr, "\n") != 1 || !strings.HasPrefix(got.stderr, "tsugiki: ") || !strings.HasSuffix(got.stderr, "\n") {
		t.Errorf("standard error is not one line that begins with tsugiki:\n%.400s", got.stderr)
	}
	for _, re := range r.says {
		if !regexp.MustCompile(re).MatchString(got.stderr) {
			t.Errorf("standard error does not say %q:\n%.400s", re, got.stderr)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the program has run")
	}
}

// installed is a folder with copies of the named binaries, for any user.
func installed(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(tmpDir, "copy-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(filepath.Dir(tsugiki), name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return testkit.WriteExecutable(to, content, 0o755)
}

// binaries are the names of all that was built.
func binaries(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(tsugiki))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names
}

func endpoints(list ...string) []string {
	var args []string
	for _, e := range list {
		args = append(args, "--endpoint", e)
	}
	return args
}

// with adds to the endpoints that the cases share.
func with(args ...string) []string {
	return append(endpoints(outEndpoint, sixEndpoint, "web type ipv4 addr 0.0.0.0 port 8080",
		"few type ipv4 addr 0.0.0.0 port 8000-8009", "un type unix path /nonexistent/un.sock"), args...)
}
